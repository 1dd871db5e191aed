"""Do the tensor-core convolutions fit GPUs of other architectures? Compiles for them; needs no GPU.

    python benchmarks/long_conv_architectures.py --json benchmarks/results/long-conv-architectures.json
    python benchmarks/long_conv_architectures.py --architectures 86 --quick

For each architecture and shape, the plan chosen for it is compiled, forward and backward, by Triton and ptxas. A row
has the largest shared memory of its kernels beside the plan's estimate and the limit, and the most registers per
thread and bytes spilled. A shape without a plan on this architecture is left to the FFT.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from _measure import Budget
from _tables import MISSING, save, table
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from kernelfield.ops.architectures import ARCHITECTURES, Architecture
from kernelfield.ops.conv.triton import launch, outer_launch, plan_of, toeplitz_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: (batch, channels, *lengths), points of the kernel, causal
SHAPES = (
    ((64, 64, 256), (256,), True),
    ((64, 64, 784), (1567,), False),
    ((64, 64, 1024), (1024,), True),
    ((64, 64, 2048), (2048,), True),
    ((64, 64, 4096), (4096,), True),
    ((32, 16, 16384), (16384,), True),
    ((8, 2, 2**18), (2**18,), True),
    ((8, 2, 2**20), (2**20,), True),
    ((64, 64, 32, 32), (63, 63), False),
    ((64, 64, 64, 64), (127, 127), False),
    ((8, 8, 128, 128), (255, 255), False),
    ((4, 4, 256, 256), (511, 511), False),
    ((4, 4, 16, 16, 16), (31, 31, 31), False),
    ((4, 4, 32, 32, 32), (63, 63, 63), False),
)
QUICK = SHAPES[2:3]
#: name, dtype and the setting of float32 products
PRECISIONS = (
    ("bf16", torch.bfloat16, "high"),
    ("tf32", torch.float32, "high"),
    ("three tf32", torch.float32, "highest"),
)
KERNELS = {
    launch: ("conv_kernel", "grads_kernel", "gradient_kernel", "spectrum_kernel"),
    outer_launch: (
        *("merge_kernel", "merge_points_kernel", "split_kernel", "split_points_kernel"),
        *("gather_kernel", "scatter_kernel"),
    ),
    toeplitz_launch: ("copies_kernel", "toeplitz_kernel", "toeplitz_grads_kernel"),
}
Row = dict[str, Any]


class AbsentGPU:
    """Driver of a GPU that is not there: kernels are compiled for it, and never launched."""

    def __init__(self, limits: Architecture) -> None:
        self.capability = 10 * limits.capability[0] + limits.capability[1]

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps compiled kernels by the device's number

    def get_current_stream(self, _: int) -> int:
        return 0


class Compiler:
    """Stand-in for a kernel: a launch compiles it and records its resources."""

    def __init__(self, kernel: Any, used: list[Row], capability: int) -> None:
        self.kernel, self.used, self.capability = kernel, used, capability

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def compile_only(*args: Any, **options: Any) -> None:
            mocked = [MockTensor(a.dtype) if isinstance(a, torch.Tensor) else a for a in args]
            compiled = self.kernel.warmup(*mocked, grid=grid, **options)
            registers, spilled = registers_of(compiled.asm["ptx"], self.capability)
            name, shared = self.kernel.__name__, compiled.metadata.shared
            self.used.append({"kernel": name, "shared": shared, "registers": registers, "spilled": spilled})

        return compile_only


_registers: dict[tuple[str, int], tuple[int, int]] = {}


def registers_of(ptx: str, capability: int) -> tuple[int, int]:
    """Return the registers per thread of a compiled kernel, and the bytes that it spills to memory."""
    key = ptx, capability
    if key not in _registers:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernel.ptx"
            source.write_text(ptx)
            arch = sm_arch_from_capability(capability)
            command = [get_ptxas(capability).path, "-v", f"--gpu-name={arch}", source, "-o", source.with_suffix(".o")]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        used, stores = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
        _registers[key] = int(used[1]) if used else 0, int(stores[1]) if stores else 0
    return _registers[key]


@contextlib.contextmanager
def compiling_for(limits: Architecture, used: list[Row]) -> Iterator[None]:
    """Compile launches for an architecture inside the block, with tensors of the CPU in place of the GPU's."""
    cpu, gpu = torch.device("cpu"), SimpleNamespace(type="cuda")
    target = AbsentGPU(limits)
    driver.set_active(target)

    def on_cpu(module: Any, name: str, place: int) -> Any:
        make = getattr(module, name)
        return mock.patch.object(module, name, lambda *args: make(*args[:place], cpu, *args[place + 1 :]))

    def make_call(shape: Any, points: Any, dtype: Any, _: Any, *how: Any) -> Any:
        return launch.Call(shape, points, dtype, gpu, *how[:-2])  # type: ignore[arg-type]

    with contextlib.ExitStack() as stack:
        for module, names in KERNELS.items():
            for name in names:
                stand_in = Compiler(getattr(module, name), used, target.capability)
                stack.enter_context(mock.patch.object(module, name, stand_in))
        stack.enter_context(on_cpu(launch, "inner_tables", 2))
        stack.enter_context(on_cpu(outer_launch, "outer_tables", 5))
        stack.enter_context(on_cpu(outer_launch, "outer_products", 3))
        stack.enter_context(mock.patch.object(launch, "make_call", make_call))
        stack.enter_context(mock.patch.object(launch, "architecture_of", return_value=limits))
        properties = SimpleNamespace(multi_processor_count=132)
        stack.enter_context(mock.patch.object(torch.cuda, "get_device_properties", return_value=properties))
        yield


def measure(limits: Architecture, case: tuple[Any, ...], precision: tuple[Any, ...]) -> Row:
    """Compile the plan for one shape, and its Toeplitz product if it is short."""
    (shape, points, causal), (name, dtype, setting) = case, precision
    torch.set_float32_matmul_precision(setting)
    row: Row = {"architecture": str(limits), "signal": shape[2:], "precision": name, "limit": limits.shared_bytes}
    zeros = [False] * len(points)
    plan = plan_of(shape[2:], points, causal, zeros, dtype, limits)
    if plan is None:
        return row
    x, kernel = torch.zeros(shape, dtype=dtype), torch.zeros(shape[1], 1, *points, dtype=dtype)
    used: list[Row] = []
    with compiling_for(limits, used):
        launch.spectral_conv(x, kernel, causal, zeros, shape[1])
        launch.spectral_grads(x, x, kernel, (True, True), causal, zeros, shape[1])
        if dtype == torch.bfloat16 and len(points) == 1 and shape[2] <= 512:
            toeplitz_launch.toeplitz_conv(x, kernel, causal)
            toeplitz_launch.toeplitz_grads(x, x, kernel, (True, True), causal)
    most = {name: max(kernel[name] for kernel in used) for name in ("shared", "registers", "spilled")}
    return row | {"tile": plan.tile, "outer": plan.outer, "estimate": plan.shared_bytes, **most, "kernels": used}


def render(rows: list[Row]) -> str:
    """Return the rows as a table."""
    header = ["architecture", "precision", "signal", "estimate KiB", "shared KiB", "limit KiB", "registers", "spilled"]
    body = []
    for row in rows:
        line = [row["architecture"], row["precision"], "×".join(map(str, row["signal"]))]
        sizes = [f"{row[name] / 1024:.0f}" if name in row else MISSING for name in ("estimate", "shared", "limit")]
        line += [*sizes, str(row.get("registers", "FFT")), str(row.get("spilled", MISSING))]
        body.append(line)
    return table(header, body)


def main() -> None:
    """Read the command line, compile, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {10 * major + minor: limits for (major, minor), limits in ARCHITECTURES.items()}
    parser.add_argument("--architectures", type=int, nargs="+", choices=tuple(known), default=(80, 86, 90, 100, 120))
    parser.add_argument("--quick", action="store_true", help="one shape")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the rows")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no row starts")
    args = parser.parse_args()
    budget, rows = Budget(args.limit), []
    for number in args.architectures:
        for precision in PRECISIONS:
            for case in QUICK if args.quick else SHAPES:
                if budget.spent:
                    break
                rows.append(measure(known[number], case, precision))
                budget.log(f"{rows[-1]['architecture']} {precision[0]} {case[0][2:]}")
                save({"triton": __import__("triton").__version__, "rows": rows}, args.json)
    print(render(rows))
    wrong = [row for row in rows if row.get("shared", 0) > row["limit"]]
    if wrong:
        raise SystemExit(f"{len(wrong)} plans do not fit")


if __name__ == "__main__":
    main()

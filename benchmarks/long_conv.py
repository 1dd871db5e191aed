"""Long convolutions on tensor cores, compared with the formula with torch.fft and with the time to move the bytes.

    python benchmarks/long_conv.py --json benchmarks/results/long-conv-h200.json
    python benchmarks/long_conv.py --from-json benchmarks/results/long-conv-h200.json \
        --markdown docs/benchmarks/long-convolutions.md
    python benchmarks/long_conv.py --quick                 # tiny shapes in Triton's interpreter, to see that it runs
    python benchmarks/long_conv.py --sizes                 # lines to 2²⁴, planes to 4096² and volumes to 256³
    python benchmarks/long_conv.py --warm 3/16             # compile a sixteenth of the kernels into Triton's cache

Every row is one depthwise convolution, forward and backward to input and kernel, replayed as a CUDA graph so that
launches do not count: ours in bfloat16 and in float32 with the precision of tf32 ("high"), the plain formula with
torch.fft in float32, and on request the formula under torch.compile. ``floor`` is the time to read x and k and to write
y, then to read the gradient of y, x and k and to write both gradients, at the bandwidth of a copy in the same run.
``ccnn_step.py`` times them in networks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _convolutions import Case, Problem
from _measure import copy_bandwidth, graphed, machine, median_seconds, peak_bytes
from _tables import MISSING, describe, number, replace_section, table

from kernelfield.ops import conv
from kernelfield.ops.conv.triton import obstacle, selfcheck

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Results = dict[str, Any]
#: a row, and the ratio to the formula it is to reach in bfloat16; in float32 all are to reach 3
ROWS = {
    "1D 256": (Case(64, 140, (256,), (256,), causal=True), 8),
    "1D 1,024": (Case(64, 140, (1024,), (1024,), causal=True), 8),
    "1D 4,096": (Case(64, 140, (4096,), (4096,), causal=True), 8),
    "1D 16,384": (Case(32, 140, (16384,), (16384,), causal=True), 8),
    "1D 65,536": (Case(8, 140, (65536,), (65536,), causal=True), 6),
    "1D 1,048,576": (Case(1, 140, (1 << 20,), (1 << 20,), causal=True), 4),
    "2D 32²": (Case(64, 140, (32, 32), (63, 63)), 10),
    "2D 64²": (Case(64, 140, (64, 64), (127, 127)), 10),
    "2D 128²": (Case(16, 140, (128, 128), (255, 255)), 10),
    "2D 256²": (Case(4, 140, (256, 256), (511, 511)), 10),
    "3D 32³": (Case(8, 32, (32,) * 3, (63,) * 3), 5),
}
#: large signals with few channels, one at a time
SIZES = {
    **{f"1D 2^{n}": (Case(1, 16 if n < 23 else 4, (1 << n,), (1 << n,), causal=True), 4) for n in (21, 22, 23, 24)},
    **{f"2D {n}²": (Case(1, 8 if n < 2048 else 2, (n, n), (2 * n - 1,) * 2), 4) for n in (512, 1024, 2048, 4096)},
    "2D 300 × 4,096": (Case(1, 4, (300, 4096), (599, 8191)), 4),
    "2D 4,096 × 300": (Case(1, 4, (4096, 300), (8191, 599)), 4),
    **{f"3D {n}³": (Case(1, 4 if n < 128 else 1, (n,) * 3, (2 * n - 1,) * 3), 4) for n in (64, 128, 256)},
    "3D 100 × 60 × 80": (Case(1, 4, (100, 60, 80), (199, 119, 159)), 4),
}
QUICK = {"1D 40": (Case(2, 3, (40,), (40,), causal=True), 8), "2D 8²": (Case(1, 2, (8, 8), (15, 15)), 10)}
#: signals whose errors are measured
FIRST = 2
DTYPES = {"bf16": torch.bfloat16, "tf32": torch.float32}


def step(problem: Problem, method: str, dtype: torch.dtype) -> Callable[[], tuple[Tensor, ...]]:
    """Return a call that computes the output and both gradients in this dtype."""
    # New leaves: other results of the problem's tensors must not reach into a captured graph.
    x, kernel = (t.detach().to(dtype).requires_grad_() for t in (problem.x, problem.kernel))
    grad = problem.grad.to(dtype)
    case = problem.case
    if method == "plain":
        function = problem.plain
    elif method == "compiled":
        function = torch.compile(problem.plain, dynamic=False)
    else:

        def function(x: Tensor, kernel: Tensor) -> Tensor:
            return conv(x, kernel, causal=case.causal, groups=case.groups, method=method)

    return lambda: torch.autograd.grad(function(x, kernel), (x, kernel), grad)


def errors(problem: Problem, got: tuple[Tensor, ...], dtype: torch.dtype, exact: list[Tensor]) -> list[float]:
    """Return the relative errors of output and input gradient of the first signals, and of the kernel's gradient."""
    case, x, kernel = problem.case, problem.x[:FIRST].to(dtype), problem.kernel.to(dtype)
    y = conv(x, kernel, causal=case.causal, groups=case.groups, method="triton")
    ours = y, got[0][:FIRST], got[1]
    return [((a.float() - b).norm() / b.norm()).item() for a, b in zip(ours, exact, strict=True)]


def served(problem: Problem, dtype: torch.dtype) -> bool:
    """Return whether there is a layout for this row in this precision."""
    x, kernel, lengths = problem.x.to(dtype), problem.kernel.to(dtype), problem.case.lengths
    return obstacle(x, kernel, problem.case.causal, ("zero",) * len(lengths)) is None


def replayed(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    return graphed(call) if device.type == "cuda" else call


def measure(case: Case, target: float, device: torch.device, bandwidth: float) -> Results:
    """Measure one row, each way by itself, since together they would not fit into memory."""
    torch.manual_seed(0)
    problem = Problem(case, device)
    seconds, eager, peak, error = {}, {}, {}, {}
    ways = {"plain": ("plain", torch.float32)}
    ways |= {name: ("triton", dtype) for name, dtype in DTYPES.items() if served(problem, dtype)}
    for name, (method, dtype) in ways.items():
        call = step(problem, method, dtype)
        got = call()
        if name == "plain":
            exact = [problem.plain(problem.x[:FIRST], problem.kernel), got[0][:FIRST].clone(), got[1]]
        else:
            error[name] = errors(problem, got, dtype, exact)
        del got
        peak[name] = peak_bytes(call, device)
        eager |= median_seconds({name: call}, device, budget=0.02)
        seconds |= median_seconds({name: replayed(call, device)}, device, budget=0.04)
        del call
        torch.cuda.empty_cache()
    floor = {name: case.floor_bytes(training=True) * dtype.itemsize / 4 / bandwidth for name, dtype in DTYPES.items()}
    return {
        "shape": case.shape,
        "points": case.points,
        "target": target,
        "seconds": seconds,
        "eager_seconds": eager,
        "floor_seconds": floor,
        "peak_bytes": peak,
        "error": error,
    }


def measure_compiled(case: Case, device: torch.device) -> float:
    """Return the time of the formula under torch.compile, replayed like the others."""
    torch.manual_seed(0)
    torch.compiler.reset()  # a function is compiled for eight shapes at most
    call = step(Problem(case, device), "compiled", torch.float32)
    call()
    return median_seconds({"compiled": replayed(call, device)}, device, budget=0.04)["compiled"]


def run(device: torch.device, options: argparse.Namespace) -> Results:
    """Measure everything that fits the options, and save it after every row."""
    torch.set_float32_matmul_precision("high")
    selfcheck.CHECKS = False  # the kernels themselves are timed, and their errors shown
    begin = time.monotonic()
    report: Results = {"machine": machine(device, 0), "copy_bandwidth": copy_bandwidth(device), "rows": {}}
    rows = QUICK if options.quick else SIZES if options.sizes else ROWS

    for name, (case, target) in rows.items():
        if time.monotonic() - begin > options.seconds:
            print(f"{name}: no time left", flush=True)
            continue
        try:
            report["rows"][name] = measure(case, target, device, report["copy_bandwidth"])
            print(*cells(name, report["rows"][name]), sep="  ", flush=True)
        except (RuntimeError, ValueError) as error:  # it does not fit or cannot be captured; measure the others
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
        torch.cuda.empty_cache()
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    for name in options.compile:
        if name in report["rows"] and time.monotonic() - begin < options.seconds:
            report["rows"][name]["seconds"]["compiled"] = measure_compiled(rows[name][0], device)
            print(*cells(name, report["rows"][name]), sep="  ", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def warm(device: torch.device, share: str, rows: dict[str, Any]) -> None:
    """Compile the kernels of every n-th row, so that several processes fill Triton's cache together."""
    torch.set_float32_matmul_precision("high")
    first, count = (int(n) for n in share.split("/"))
    tasks = [(case, dtype) for case, _ in rows.values() for dtype in DTYPES.values()]
    for case, dtype in tasks[first::count]:
        warm_row(case, dtype, device)
        torch.cuda.empty_cache()


def warm_row(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    problem = Problem(case, device)
    if served(problem, dtype):
        got = step(problem, "triton", dtype)()
        errors(problem, got, dtype, [problem.x[:FIRST], problem.x[:FIRST], problem.kernel])
    torch.cuda.synchronize()


HEADER = (
    *("depthwise, forward + backward", "bf16, ms", "× formula", "to reach", "× floor", "error"),
    *("float32, ms", "× formula", "× floor", "error", "formula, ms", "compiled, ms", "memory bf16", "memory float32"),
)


def cells(name: str, row: Results) -> list[str]:
    seconds, floor, peak = row["seconds"], row["floor_seconds"], row["peak_bytes"]

    def way(dtype: str) -> list[str]:
        if dtype not in seconds:  # no layout in this precision: an FFT does it
            return [MISSING] * 4
        error = row["error"][dtype]  # of the output, in older results, or of the gradients too
        return [
            number(1e3 * seconds[dtype]),
            f"{seconds['plain'] / seconds[dtype]:.1f}",
            f"{seconds[dtype] / floor[dtype]:.1f}",
            f"{max(error) if isinstance(error, list) else error:.0e}",
        ]

    bf16, tf32 = way("bf16"), way("tf32")
    bf16.insert(2, f"{row['target']:g}")
    compiled = number(1e3 * seconds["compiled"]) if "compiled" in seconds else MISSING
    memory = [f"1/{peak['plain'] / max(1, peak[dtype]):.1f}" if dtype in peak else MISSING for dtype in DTYPES]
    shape = "×".join(str(n) for n in row["shape"][:2])
    return [f"{name}, {shape}", *bf16, *tf32, number(1e3 * seconds["plain"]), compiled, *memory]


def render(report: Results) -> str:
    """Return the tables of saved results as Markdown."""
    rows = [cells(name, row) for name, row in report["rows"].items()]
    return f"""{describe(report["machine"])}. A copy moves {report["copy_bandwidth"] / 1e12:.2f} TB/s.

{table(HEADER, rows)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, also without a GPU")
    parser.add_argument("--sizes", action="store_true", help="large signals instead of the rows of the table")
    parser.add_argument("--compile", nargs="*", default=[], metavar="ROW", help="rows to time under torch.compile too")
    parser.add_argument("--seconds", type=float, default=math.inf, help="seconds after which no row starts")
    parser.add_argument("--warm", metavar="I/N", help="only compile the kernels of every N-th row")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the tables into this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    if options.warm is not None:
        warm(device, options.warm, SIZES if options.sizes else ROWS)
        return
    report = json.loads(options.from_json.read_text()) if options.from_json else run(device, options)
    text = render(report)
    if options.markdown is not None:
        replace_section(options.markdown, "long-conv-sizes" if options.sizes else "long-conv-cuda", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

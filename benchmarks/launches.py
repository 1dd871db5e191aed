"""How many kernels does a training step launch, and how many Python functions does it call?

    python benchmarks/launches.py --out benchmarks/results/launches-cpu.json
    python benchmarks/launches.py --networks p4-CNN --functions 20      # and the most frequent functions

A step is forward, cross-entropy, backward, and fused AdamW. On a machine without a GPU the step takes the path of a
GPU with kernels that do nothing: each launch of a Triton kernel counts, and each operation of torch that is neither a
view nor an allocation. On a GPU the launches are those that torch's profiler sees. Python calls are those of all
functions in all files, with the backward pass, which runs in the same thread on a CPU.

``--as before`` stores the counts under another name, beside those that the file already has. To count the steps of
another commit, copy this script and the modules it imports from this folder into a checkout of it:

    git worktree add --detach ../before 6454f8a
    cp benchmarks/{launches,_steps,_measure,_tables}.py ../before/benchmarks
    export PYTHONPATH=../before/src
    python ../before/benchmarks/launches.py --as before --commit 6454f8a --out benchmarks/results/launches-cpu.json

``--markdown docs/benchmarks/training-steps.md`` writes the table into that page. ``--networks`` without names counts
nothing and shows the saved numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from _measure import machine
from _steps import CASES, Case, Noise, call_profiled, launches, make_step
from _tables import MISSING, describe, replace_section, save, table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 0
SIMULATED = not torch.cuda.is_available()
#: the layer of the last row: channels, and length of the signal
CHANNELS, LENGTH = 140, 1024
LAYER = f"one layer, L = {LENGTH:,}"
#: a batch so small that the torch operations of a simulated step take no time; counts do not depend on it
SIMULATED_BATCH = 2
#: files whose functions a GPU would not call, and functions; a network on a GPU reads no environment variable either
INTERPRETER = (f"triton{os.sep}runtime{os.sep}interpreter", f"{os.sep}launches.py", "<frozen os>")
LAUNCHERS = ("_normalize_ty", "KernelInterface.__getitem__", "KernelInterface.__getitem__.<locals>.<lambda>")
LAUNCHERS = (*LAUNCHERS, "ModuleSpec.parent", "Mapping.get")


#: beginnings of the names of operations that only allocate, look at shapes, or change no values
FREE = ("empty", "new_empty", "detach", "_unsafe_view", "resize", "set_", "lift_fresh", "squeeze_", "promote_types")
FREE = (*FREE, "_record_function")


class CountOperations(TorchDispatchMode):
    """Count operations that launch a kernel on a GPU: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_free(func):
            self.counts[func.overloadpacket._qualified_op_name] += 1  # noqa: SLF001
        return func(*args, **(kwargs or {}))


def _is_free(func: Any) -> bool:
    """Return whether an operation launches nothing: it returns a view, or memory with no values in it."""
    name = func.overloadpacket.__name__
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)  # noqa: SLF001
    return views or name.startswith(FREE)


@contextlib.contextmanager
def no_kernels(counts: Counter[str]) -> Iterator[None]:
    """Count launches of Triton kernels in place of running them, and trust the results."""
    from triton.runtime import interpreter  # noqa: PLC0415

    from kernelfield.layers.continuous import kernel_sampler  # noqa: PLC0415
    from kernelfield.layers.group import correlate  # noqa: PLC0415
    from kernelfield.ops.conv import fft, triton  # noqa: PLC0415

    def launch(executor: Any, *_: Any, **__: Any) -> None:
        counts[executor.fn.__name__] += 1

    before = interpreter.GridExecutor.__call__, triton.verified_conv, triton.verified_grads
    interpreter.GridExecutor.__call__ = launch
    triton.verified_conv, triton.verified_grads = (lambda y, *_: y), (lambda found, *_: found)
    transforms = fft._Transform._spectrum, fft._Transform._inverse  # noqa: SLF001
    fft._Transform._spectrum, fft._Transform._inverse = _transform, _transform_back  # noqa: SLF001
    kernel_sampler.EXTRA["cpu"] = kernel_sampler.EXTRA["cuda"]
    last, correlate.CHANNELS_LAST["cpu"] = correlate.CHANNELS_LAST["cpu"], correlate.CHANNELS_LAST["cuda"]
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__, triton.verified_conv, triton.verified_grads = before
        correlate.CHANNELS_LAST["cpu"] = last
        del kernel_sampler.EXTRA["cpu"]
        fft._Transform._spectrum, fft._Transform._inverse = transforms  # noqa: SLF001


def _transform(self: Any, signals: torch.Tensor, first: tuple[int, ...] | None = None) -> torch.Tensor:
    """Transform all axes at once, as on a GPU."""
    if first is not None and any(first):
        gaps = zip(first, self.sizes, signals.shape[-len(first) :], strict=True)
        pairs = [(begin, size - n - begin) for begin, size, n in gaps]
        signals = nn.functional.pad(signals, [n for pair in reversed(pairs) for n in pair])
    return torch.fft.rfftn(signals.to(self.dtype), s=self.sizes, dim=self.axes)


def _transform_back(
    self: Any, spectrum: torch.Tensor, keep: tuple[int, ...], first: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Undo :func:`_transform`, and keep some of the samples."""
    signals = torch.fft.irfftn(spectrum, s=self.sizes, dim=self.axes)
    begins = first or (0,) * len(keep)
    return signals[(..., *(slice(begin, begin + n) for begin, n in zip(begins, keep, strict=True)))]


def use_tensor_cores(net: nn.Module) -> None:
    """Let depthwise convolutions take the kernels that a GPU would choose."""
    for module in net.modules():
        if isinstance(module, kf.layers.ContinuousConv) and module.groups == module.in_channels == module.out_channels:
            module.method = "triton"


class OneLayer(nn.Module):
    """A separable convolution, and the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = kf.SeparableConv(CHANNELS, CHANNELS, size=LENGTH, causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean(dim=2)


CASES = {**CASES, LAYER: Case(LAYER, 64, OneLayer, Noise((CHANNELS, LENGTH)))}


def count_python_calls(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Return the calls of Python functions in this thread, by file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event != "call" or any(part in frame.f_code.co_filename for part in INTERPRETER):
            return
        if not (SIMULATED and frame.f_code.co_qualname in LAUNCHERS):
            calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    call_profiled(call, profile)
    return calls


def count(name: str, device: torch.device) -> tuple[dict[str, Any], Counter[str], Counter[tuple[str, str]]]:
    """Return the row of a network, its launches and its Python calls."""
    torch.manual_seed(SEED)
    case = CASES[name]
    net, batch = case.build().to(device), SIMULATED_BATCH if SIMULATED else case.batch
    x = {key: value.to(device) for key, value in case.inputs(batch).items()}
    y = torch.randint(2, (batch,), device=device)
    step = make_step(net)
    kernels: Counter[str] = Counter()
    with no_kernels(kernels) if SIMULATED else contextlib.nullcontext():
        if SIMULATED:
            use_tensor_cores(net)
        for _ in range(3):
            step(x, y)
        calls = count_python_calls(lambda: step(x, y))
        kernels.clear()
        # Caches keep no tables while a dispatch mode is active, but this one changes no values.
        with mock.patch.object(torch._C, "_len_torch_dispatch_stack", return_value=0), CountOperations() as operations:  # noqa: SLF001
            step(x, y)
    kernels += operations.counts
    total = sum(kernels.values()) if SIMULATED else launches(lambda: step(x, y), device)
    return {"launches": total, "python_calls": sum(calls.values())}, kernels, calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--as", dest="name", default="after", help="name of these counts in the file")
    parser.add_argument("--commit", default="", help="the commit that is counted, for the file")
    parser.add_argument(
        "--functions", type=int, default=0, help="print this many of the most frequent functions and kernels"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    device = torch.device("cpu" if SIMULATED else "cuda")
    if SIMULATED:
        os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported
    found: dict[str, Any] = {}
    if options.out is not None and options.out.exists():
        found = json.loads(options.out.read_text())
    rows = found.get("rows", {})
    for name in options.networks:
        row, kernels, calls = count(name, device)
        rows.setdefault(name, {})[options.name] = row
        for (file, function), n in calls.most_common(options.functions):
            print(f"{n:6d}  {function}  {file.rpartition('site-packages/')[2]}")
        for kernel, n in kernels.most_common(options.functions):
            print(f"{n:6d}  {kernel}")
    report = {
        "machine": machine(device, SEED),
        "simulated": SIMULATED,
        "commits": found.get("commits", {}),
        "rows": rows,
    }
    if not options.networks:
        report["machine"] = found["machine"]
    if options.commit:
        report["commits"][options.name] = options.commit
    save(report, options.out)
    text = f"{describe(report['machine'])}.\n\n{_make_table(rows)}"
    if options.markdown is not None:
        replace_section(options.markdown, f"launches-{device.type}", text)
    print(text)


def _make_table(rows: dict[str, Any]) -> str:
    """Return the counts, and their ratio, as a table."""
    lines = []
    for name, row in rows.items():
        cells = [name]
        for what in ("launches", "python_calls"):
            counts = [row.get(way, {}).get(what) for way in ("before", "after")]
            cells += [MISSING if n is None else f"{n:,}" for n in counts]
            cells.append(MISSING if None in counts else f"{counts[1] / counts[0]:.2f}")
        lines.append(cells)
    columns = [f"{what}{way}" for what in ("launches", "Python calls") for way in (", before", "", ", ratio")]
    return table(["training step", *columns], lines)


if __name__ == "__main__":
    main()

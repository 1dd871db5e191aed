"""How long does a training step of a CCNN take, compared with plain layers, the FFT, and the authors' code?

    python benchmarks/ccnn_step.py --out benchmarks/results/ccnn-step-h200.json
    python benchmarks/ccnn_step.py --from-json benchmarks/results/ccnn-step-h200.json \
        --markdown docs/benchmarks/training-steps.md
    python benchmarks/ccnn_step.py --out steps.json --only sMNIST --ways fused plain --profile profiles/
    python benchmarks/ccnn_step.py --warm 3/8                   # compile the kernels of an eighth of the rows
    python benchmarks/ccnn_step.py --quick --out steps.json     # tiny shapes, to see that it runs

A step is the forward and backward pass of a mean of squares, replayed as a CUDA graph. Kernels are as long as the
inputs. The ways:

- ``fused``: convolutions on tensor cores in bfloat16 autocast, fused kernels between them,
- ``fft``: torch.fft in float32, torch's own operations between (the network in plain PyTorch),
- ``plain``: the convolutions of ``fused``, torch's own operations between them,
- ``fft fused``: torch.fft in float32, fused kernels between.

Results are saved after each of them. ``--profile`` writes a table of the kernels of each row's fused step.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _authors import PUBLISHED
from _formula import forced
from _measure import graphed, machine, median_seconds, peak_bytes
from _tables import MISSING, describe, number, replace_section, table

from kernelfield import CCNN

if TYPE_CHECKING:
    from collections.abc import Callable

Results = dict[str, Any]
Row = tuple[int, int, int, int, tuple[int, ...], float]
#: blocks, channels, units of kernel networks, batch, signal, milliseconds of the authors' code
ROWS: dict[str, Row] = {
    name: (*sizes, step.shape[0], step.shape[1:], step.milliseconds)
    for name, step in PUBLISHED.items()
    for model, sizes in {"CCNN_4,140": (4, 140, 32), "CCNN_6,380": (6, 380, 64)}.items()
    if name.startswith(model)
}
#: with kernel networks of half the published units, as many as the smaller networks have
ROWS |= {f"{name}, 32 units": (*row[:2], 32, *row[3:]) for name, row in ROWS.items() if row[2] == 64}
QUICK: dict[str, Row] = {"CCNN_1,4 line": (1, 4, 8, 2, (1, 24), 1.0), "CCNN_2,3 plane": (2, 3, 8, 2, (1, 6, 6), 1.0)}
#: the method of convolutions, whether half precision, whether fused
WAYS = {
    "fused": ("triton", True, True),
    "fft": ("fft", False, False),
    "plain": ("triton", True, False),
    "fft fused": ("fft", False, True),
}


def make_step(row: Row, way: str, device: torch.device) -> Callable[[], None]:
    blocks, channels, hidden, batch, (in_channels, *lengths), _ = row
    _, half, _ = WAYS[way]
    torch.manual_seed(0)
    sizes = {"channels": channels, "blocks": blocks, "hidden": hidden}
    net = CCNN(in_channels, 10, dim=len(lengths), size=lengths[0], sigma=None, **sizes).to(device)
    x = torch.randn(batch, in_channels, *lengths, device=device)
    parameters = list(net.parameters())

    def step() -> None:
        # Autocast's cache would hold tensors of one graph for the next.
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = net(x).square().mean()
        torch.autograd.grad(loss, parameters, allow_unused=True)

    return step


def measure(row: Row, way: str, device: torch.device, profile: Path | None) -> tuple[float, int]:
    """Return the milliseconds of a step, and its peak memory above the level before it."""
    method, _, fused = WAYS[way]
    with forced(method, fused):
        call = make_step(row, way, device)
        call()
        peak = peak_bytes(call, device)
        replay = graphed(call) if device.type == "cuda" else call
        seconds = median_seconds({way: replay}, device, budget=0.05)[way]
        if profile is not None and way == "fused":
            write_profile(profile, call, device)
    return 1e3 * seconds, peak


def write_profile(path: Path, call: Callable[[], None], device: torch.device) -> None:
    """Write the kernels of a step, ordered by their total time."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as seen:
        for _ in range(3):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
    rows = [(e.device_time_total / 3, e.count / 3, e.key) for e in seen.key_averages()]
    lines = [f"{time:>10.1f} {count:>7.1f} {key[:150]}" for time, count, key in sorted(rows, reverse=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    total = sum(time for time, _, _ in rows)
    path.write_text(f"{total:>10.1f} {'us':>7} all\n" + "\n".join(lines[:70]) + "\n")


def run(options: argparse.Namespace, device: torch.device) -> Results:
    """Measure all rows, one way after the other, in the order of the options."""
    rows = {name: row for name, row in (QUICK if options.quick else ROWS).items() if options.only in name}
    empty = {name: {"milliseconds": {}, "peak_bytes": {}, "failed": {}, "authors_ms": rows[name][-1]} for name in rows}
    report: Results = {"machine": machine(device, 0), "rows": empty}
    for way in options.ways:
        for name, row in rows.items():
            found = report["rows"][name]
            profile = options.profile and options.profile / f"{name}.txt".replace(" ", "-")
            try:
                found["milliseconds"][way], found["peak_bytes"][way] = measure(row, way, device, profile)
            except RuntimeError as error:  # a step that does not fit or cannot be captured
                found["failed"][way] = str(error).splitlines()[0]
            if device.type == "cuda":
                torch.cuda.empty_cache()
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            print(way, *cells(name, found), *found["failed"].values(), sep="  ", flush=True)
    return report


def warm(options: argparse.Namespace, device: torch.device) -> None:
    """Compile the kernels of every n-th row, so that several processes fill Triton's cache together."""
    first, count = (int(n) for n in options.warm.split("/"))
    for row in list(ROWS.values())[first::count]:
        for way in options.ways:
            method, _, fused = WAYS[way]
            if method == "triton" or fused:
                with forced(method, fused):
                    make_step(row, way, device)()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


HEADER = ("training step", *WAYS, "× plain", "× fft", "authors", "× authors", "MiB", "fft MiB")


def cells(name: str, row: Results) -> list[str]:
    ms, peak = row["milliseconds"], row["peak_bytes"]
    ours = ms.get("fused")

    def ratio(other: float | None) -> str:
        return MISSING if other is None or ours is None else f"{other / ours:.1f}"

    times = [number(ms[way]) if way in ms else MISSING for way in WAYS]
    memory = [number(peak[way] / 2**20) if way in peak else MISSING for way in ("fused", "fft")]
    authors = row["authors_ms"]
    return [name, *times, ratio(ms.get("plain")), ratio(ms.get("fft")), f"{authors:g}", ratio(authors), *memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--profile", type=Path, help="folder for tables of kernels")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--warm", metavar="I/N", help="only compile the kernels of every N-th row")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_float32_matmul_precision("high")
    if options.warm is not None:
        warm(options, device)
        return
    report = json.loads(options.from_json.read_text()) if options.from_json else run(options, device)
    rows = [cells(name, row) for name, row in report["rows"].items()]
    text = f"{describe(report['machine'])}. Times in ms.\n\n{table(HEADER, rows)}"
    if options.markdown is not None:
        replace_section(options.markdown, "ccnn-step", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

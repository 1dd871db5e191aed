"""How fast is the convolution, how much memory does training take, and does "auto" choose the fastest method?

    python benchmarks/conv.py                       # on the GPU if there is one
    python benchmarks/conv.py --quick               # a few small rows, to see that it runs
    python benchmarks/conv.py --json benchmarks/results/conv-cpu.json
    python benchmarks/conv.py --from-json benchmarks/results/conv-cpu.json --markdown docs/benchmarks/convolution.md
    python benchmarks/conv.py --calibrate           # measure the cost model behind "auto"
    python benchmarks/conv.py --calibrate --kinds 1d-dense --shapes 24 --json times.json
    python benchmarks/conv.py --calibrate --from-json times.json    # fit the model to saved times
    python benchmarks/conv.py --chunks              # time against CHUNK_BYTES, to choose it

Every row compares, in turns, the default (``auto``), our FFT (``fft``), the plain formula with torch.fft (``plain``)
and torch's own convolution (``direct``). ``floor`` is the time to read the inputs and write the outputs, at the
bandwidth of a copy in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _calibrate import calibrate
from _calibrate import measure as measure_costs
from _convolutions import Case, Problem
from _measure import (
    check_peak_bytes,
    copy_bandwidth,
    machine,
    median_ratios,
    median_seconds,
    peak_bytes,
    settle_allocator,
)
from _tables import describe, mebibytes, milliseconds, ratio, replace_section, table

from kernelfield.ops.calibration.shapes import KINDS
from kernelfield.ops.conv import fft

if TYPE_CHECKING:
    from collections.abc import Callable

#: torch's own convolution is left out where the cost model expects it to take longer than this
LONGEST_SECONDS = 1.0
MODES = ("forward", "training")
Results = dict[str, Any]


def cases(device: str, quick: bool) -> list[Case]:
    """Return the rows: global depthwise convolutions, then dense ones and short kernels, which favour direct sums."""
    lengths = {1: (256, 1024, 4096, 16384, 65536), 2: (16, 32, 64, 128, 256), 3: (16, 32, 64)}
    if quick:
        lengths = {1: (256, 1024), 2: (16,), 3: (16,)}
    rows = [global_case(device, dim, n) for dim, choices in lengths.items() for n in choices]
    batch, wide, narrow = (64, 64, 32) if device == "cuda" else (8, 32, 16)
    rows.append(Case(batch, wide, (1024,), (1024,), causal=True, depthwise=False))
    rows.append(Case(batch, narrow, (32, 32), (63, 63), depthwise=False))
    for depthwise in (True, False):
        rows += [Case(batch, wide, (1024,), (k,), depthwise=depthwise) for k in ((7,) if quick else (3, 7, 31))]
        rows += [Case(batch, narrow, (32, 32), (k, k), depthwise=depthwise) for k in ((5,) if quick else (5, 9))]
    return rows


def global_case(device: str, dim: int, length: int) -> Case:
    """Return a depthwise convolution whose kernel spans its input, of a batch that suits the device."""
    if device == "cuda" and dim < 3:
        batch, channels = min(64, 2**19 // length**dim), 140
    else:
        batch, channels = 8, 32
    while device == "cpu" and batch * channels * length**dim > 2**22:
        batch, channels = (batch // 2, channels) if batch > 1 else (batch, channels // 2)
    points = length if dim == 1 else 2 * length - 1
    return Case(batch, channels, (length,) * dim, (points,) * dim, causal=dim == 1)


def run(device: torch.device, quick: bool, seed: int) -> Results:
    """Measure all rows."""
    check_peak_bytes(device)
    torch.manual_seed(seed)
    bandwidth = copy_bandwidth(device)
    rows = []
    for case in cases(device.type, quick):
        rows.append(row := measure(case, device, bandwidth, budget=0.1 if quick else 1.0))
        lost = ", ".join(f"{mode} {row[mode]['ratios']['auto/best']:.2f}" for mode in MODES)
        print(f"{case}: auto/best {lost}", file=sys.stderr, flush=True)
    return {"machine": machine(device, seed), "copy_bandwidth": bandwidth, "rows": rows}


def measure(case: Case, device: torch.device, bandwidth: float, budget: float) -> Results:
    """Measure one row, for about ``budget`` seconds each time."""
    problem = Problem(case, device)
    row: Results = {"case": asdict(case), "kind": case.kind}
    for mode in MODES:
        training = mode == "training"
        calls = {name: problem.call(name, training) for name in ("auto", "fft", "plain")}
        direct = problem.call("torch_direct", training)
        if case.estimate("direct", device, training) < LONGEST_SECONDS and runs(direct):
            calls["torch_direct"] = direct
        seconds, relative = median_ratios(calls, device, budget=budget)
        entry: Results = {
            "seconds": seconds,
            "relative_to_auto": relative,
            "floor_seconds": case.floor_bytes(training) / bandwidth,
            "chosen": problem.chosen(training),
        }
        if training:
            entry["peak_bytes"] = {name: peak_bytes(call, device) for name, call in calls.items() if name != "auto"}
        row[mode] = entry | {"ratios": ratios(entry)}
    return row


def runs(call: Callable[[], object]) -> bool:
    """Return whether a library supports this shape; cuDNN refuses some long kernels."""
    try:
        call()
    except RuntimeError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True


def ratios(entry: Results) -> dict[str, float]:
    """Return the ratios of a row; less is better."""
    relative = entry["relative_to_auto"]
    values = {
        "fft/plain": relative["fft"] / relative["plain"],
        "fft/floor": entry["seconds"]["fft"] / entry["floor_seconds"],
        "auto/best": 1 / min(relative["plain"], relative.get("torch_direct", float("inf"))),
    }
    if peak := entry.get("peak_bytes"):
        values["memory fft/plain"] = peak["fft"] / peak["plain"]
    return values


def render(results: Results) -> str:
    """Return the tables of saved results as Markdown."""
    rows = results["rows"]
    return f"""### Convolution, {results["machine"]["device"]}

{describe(results["machine"])}. A copy reads and writes {results["copy_bandwidth"] / 1e9:,.0f} GB/s.

Forward, times in ms:

{render_mode(rows, "forward")}

Forward and backward to input and kernel, times in ms, peak memory in MiB:

{render_mode(rows, "training")}

`fft` is our method, `plain` the formula with torch.fft at twice the length, `direct` torch's own convolution, and
`floor` the time to read the inputs and write the outputs once. A dash marks convolutions that would take longer than
{LONGEST_SECONDS:.0f} s by their number of multiplications, or that the library refuses. `auto/best` is the time of
`method="auto"` divided by that of the faster of `plain` and `direct`: the median of the ratios of all turns, which
other load on the machine disturbs less than the times."""


def render_mode(rows: list[Results], mode: str) -> str:
    """Return the table of one mode."""
    names = {"auto": "auto", "fft": "fft", "plain": "plain", "torch_direct": "direct"}
    header = ["convolution", "signal", "kernel", *names.values(), "floor", "auto takes"]
    memory = [f"{names[name]} MiB" for name in ("fft", "plain", "torch_direct")] if mode == "training" else []
    judged = list(rows[0][mode]["ratios"])
    body = []
    for row in rows:
        entry = row[mode]
        times = [milliseconds(entry["seconds"].get(name)) for name in names]
        line = [*describe_case(row), *times, milliseconds(entry["floor_seconds"]), entry["chosen"]]
        if memory:
            line += [mebibytes(entry["peak_bytes"].get(name)) for name in ("fft", "plain", "torch_direct")]
        body.append([*line, *(ratio(entry["ratios"][name]) for name in judged)])
    return table([*header, *memory, *judged], body)


def describe_case(row: Results) -> list[str]:
    case = row["case"]
    signal = "×".join(str(n) for n in (case["batch"], case["channels"], *case["lengths"]))
    kernel = "×".join(str(n) for n in case["points"])
    return [row["kind"].replace("-", " "), signal, f"{kernel} causal" if case["causal"] else kernel]


def chunks(device: torch.device, quick: bool) -> Results:
    """Measure our FFT against the bytes of a chunk."""
    exponents = range(22, 31, 2) if device.type == "cuda" else range(18, 27, 2)
    shapes = [(1, 1024)] if quick else [(1, 1024), (1, 16384), (2, 64), (3, 32)]
    rows = []
    for dim, length in shapes:
        problem = Problem(case := global_case(device.type, dim, length), device)
        for mode in MODES:
            call = problem.call("fft", training=mode == "training")
            calls = {str(2**e): with_chunks(call, device, 2**e) for e in exponents}
            rows.append(
                {
                    "case": asdict(case),
                    "kind": case.kind,
                    "mode": mode,
                    "seconds": median_seconds(calls, device),
                }
            )
    return {"machine": machine(device, 0), "rows": rows}


def with_chunks(call: Callable[[], object], device: torch.device, size: int) -> Callable[[], object]:
    """Return the call made with chunks of ``size`` bytes."""

    def chunked() -> None:
        usual = fft.CHUNK_BYTES[device.type]
        fft.CHUNK_BYTES[device.type] = size
        try:
            call()
        finally:
            fft.CHUNK_BYTES[device.type] = usual

    return chunked


def render_chunks(results: Results) -> str:
    """Return time against bytes of a chunk as a table."""
    sizes = list(results["rows"][0]["seconds"])
    header = ["convolution", "signal", "kernel", "mode", *(f"{int(size) / 2**20:g} MiB" for size in sizes)]
    body = [
        [*describe_case(row), row["mode"], *(milliseconds(row["seconds"][size]) for size in sizes)]
        for row in results["rows"]
    ]
    return f"Our FFT in ms, by the bytes of a chunk. {describe(results['machine'])}.\n\n{table(header, body)}"


def main() -> None:
    """Read the command line and do what it asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few small rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the measurements")
    parser.add_argument(
        "--from-json", type=Path, metavar="PATH", help="show saved measurements instead of making new ones"
    )
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="put the tables into this file")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--calibrate", action="store_true", help="measure and write the constants of the cost model")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=(), help="calibrate only these kinds")
    parser.add_argument("--shapes", type=int, metavar="N", help="calibrate with this many shapes of each kind")
    task.add_argument("--chunks", action="store_true", help="time against CHUNK_BYTES")
    args = parser.parse_args()

    device = torch.device(args.device)
    settle_allocator()
    if args.calibrate:
        if args.from_json:
            results = json.loads(args.from_json.read_text())
        else:
            results = measure_costs(device, args.seed, tuple(args.kinds), args.shapes, args.json)
        text = calibrate(results)
    elif args.chunks:
        results = chunks(device, args.quick)
        text = render_chunks(results)
    else:
        results = json.loads(args.from_json.read_text()) if args.from_json else run(device, args.quick, args.seed)
        text = render(results)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.markdown:
        replace_section(args.markdown, f"conv-{results['machine']['device']}", text)


if __name__ == "__main__":
    main()

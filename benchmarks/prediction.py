"""How long does a prediction take, one sample at a time and in large batches?

    python benchmarks/prediction.py --out benchmarks/results/prediction-cpu.json
    python benchmarks/prediction.py --only CCNN --ways eager,frozen --limit 60
    python benchmarks/prediction.py --from-json PATH --markdown PAGE

All ways compute the same outputs, in evaluation mode without gradients. ``eager`` calls the network. ``frozen``
samples its kernels once and keeps them and their spectra (``kf.capture_prediction(net, enabled=False)``). ``captured``
does so in a CUDA graph (``kf.capture_prediction(net)``; GPU only). ``compiled`` is the network under ``torch.compile``.

The ways of one row are timed in turns in one process. A row is printed and saved as soon as it is measured; rows that
``--out`` already has are not measured again. After ``--limit`` seconds the process ends with what it has.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import Budget, OutOfTimeError, machine, median_seconds, settle_allocator, time_limit
from _tables import describe, milliseconds, number, ratio, replace_section, save, table

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 0
WAYS = ("eager", "frozen", "captured", "compiled")
#: samples of a large batch
LARGE = {"cpu": 16, "cuda": 256}
#: tolerance of the comparison with eager outputs, relative to their largest value; that of a GPU allows for tf32
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-2}
Results = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A registered network and the shape of one sample.

    Args:
        model: name in the registry.
        shape: of one sample, or of the values at points.
        options: arguments of the network.
        points: dimensions of the coordinates; 0 for signals on a grid.
    """

    model: str
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    points: int = 0

    def inputs(self, batch: int, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of the network."""
        x = torch.randn(batch, *self.shape, device=device)
        if not self.points:
            return (x,), {}
        return (x,), {"coords": 2 * torch.rand(batch, self.shape[-1], self.points, device=device) - 1}


def _case(model: str, *shape: int, **options: Any) -> Case:
    return Case(model, shape, {"in_channels": shape[0], "out_channels": 10, **options})


CASES = {
    "CKCNN_2,30": _case("ckcnn_2_30", 1, 784, size=784),
    "CCNN_4,140": _case("ccnn_4_140", 1, 784, dim=1, size=784),
    "CCNN_4,140 2D": _case("ccnn_4_140", 3, 32, 32, dim=2, size=32),
    "FlexTCN-2": _case("flextcn_2", 1, 784, size=784),
    "FlexNet-16": _case("flexnet_16", 3, 32, 32, size=32),
    "DNArch_4,140": _case("dnarch_4_140", 1, 784, dim=1, size=784),
    "gridified, 1,000 points": Case("gridified_modelnet40", (6, 1000), points=3),
    "p4-CNN": _case("p4cnn", 1, 28, 28),
    "attentive p4-CNN": _case("p4cnn", 1, 28, 28, attention="full"),
    "ResNet-44 p4m": _case("resnet44_p4m", 3, 32, 32),
    "group self-attention R4": Case("gsanet_rotmnist_r4", (1, 28, 28)),
    "wavelet network W3": Case("w3", (1, 8000), {"out_channels": 10}),
    "partial G-CNN SE(2)": _case("partial_gcnn_se2", 1, 28, 28),
}


def calls_of(
    case: Case, batch: int, ways: list[str], device: torch.device
) -> tuple[dict[str, Callable[[], Any]], dict[str, float], dict[str, str]]:
    """Return a call for each way, the seconds of its first call, and why a way is left out."""
    torch.manual_seed(SEED)
    net = kf.create_model(case.model, **case.options).to(device).eval()
    args, kwargs = case.inputs(batch, device)
    functions: dict[str, Any] = {
        "eager": lambda: net,
        "frozen": lambda: kf.capture_prediction(net, max_batch=batch, enabled=False),
        "captured": lambda: kf.capture_prediction(net, max_batch=batch),
        "compiled": lambda: torch.compile(net),
    }
    calls: dict[str, Callable[[], Any]] = {}
    first, missing = {}, {}
    wanted: Any = None
    for way in ways:
        if way == "captured" and device.type != "cuda":
            continue
        function = functions[way]()

        def call(function: Any = function) -> Any:
            with torch.no_grad():
                return function(*args, **kwargs)

        begin = time.perf_counter()
        try:
            found = call()
            if device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # a way that fails leaves the others
            missing[way] = f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else repr(error)
            continue
        first[way] = time.perf_counter() - begin
        wanted = found if wanted is None else wanted
        error = float((found - wanted).abs().max() / wanted.abs().max())
        if not error <= TOLERANCE[device.type]:
            missing[way] = f"differs from {ways[0]} by {error:.1e}"
            continue
        if way == "captured" and function.refusal:
            missing[way] = function.refusal
        calls[way] = call
    return calls, first, missing


def measure(name: str, batch: int, ways: list[str], device: torch.device, each: float) -> Results:
    """Return one row."""
    calls, first, missing = calls_of(CASES[name], batch, ways, device)
    seconds = median_seconds(calls, device, budget=each)
    row: Results = {"network": name, "batch": batch, "seconds": seconds, "first_call_seconds": first}
    return row | ({"missing": missing} if missing else {})


def render(results: Results) -> str:
    """Return the tables of saved results as Markdown."""
    large = max(row["batch"] for row in results["rows"])
    parts = [
        f"{describe(results['machine'])}.",
        "Latency at batch 1, in ms:",
        _render(results["rows"], 1, milliseconds),
    ]
    if large > 1:
        rate = f"Samples per second at batch {large}:"
        parts += [rate, _render(results["rows"], large, lambda s: number(None if s is None else large / s))]
    return "\n\n".join(parts)


def _render(rows: list[Results], batch: int, shown: Callable[[float | None], str]) -> str:
    chosen = [row for row in rows if row["batch"] == batch]
    ways = [way for way in WAYS if any(way in row["seconds"] for row in chosen)]
    others = [way for way in ways if way != "eager"]
    body = []
    for row in chosen:
        seconds = row["seconds"]
        ratios = [_speedup(seconds, way) for way in others]
        body.append([row["network"], *(shown(seconds.get(way)) for way in ways), *map(ratio, ratios)])
    return table(["network", *ways, *(f"eager / {way}" for way in others)], body)


def _speedup(seconds: dict[str, float], way: str) -> float | None:
    return seconds["eager"] / seconds[way] if "eager" in seconds and way in seconds else None


def run(options: argparse.Namespace, spent: Budget) -> Results:
    """Measure all requested rows that are not saved yet."""
    device = torch.device(options.device)
    ways = options.ways.split(",")
    unknown = set(ways) - set(WAYS)
    if unknown:
        raise SystemExit(f"--ways must be some of {', '.join(WAYS)}, got {', '.join(sorted(unknown))}")
    results: Results = {"machine": machine(device, SEED), "rows": []}
    if options.out is not None and options.out.exists():
        results = json.loads(options.out.read_text())
    known = {(row["network"], row["batch"]) for row in results["rows"]}
    for name, batch in [(name, batch) for name in CASES for batch in (1, options.batch or LARGE[device.type])]:
        left = options.limit - spent.elapsed
        if options.only.lower() not in name.lower() or (name, batch) in known:
            continue
        if left <= 0:
            spent.log(f"{name}, batch {batch}: left out, the time is over")
            continue
        try:
            with time_limit(min(left, options.row)):
                row = measure(name, batch, ways, device, options.each)
        except OutOfTimeError:
            spent.log(f"{name}, batch {batch}: stopped after {min(left, options.row):.0f} s")
            continue
        results["rows"].append(row)
        shown = ", ".join(f"{way} {milliseconds(s)} ms" for way, s in row["seconds"].items())
        spent.log(f"{name}, batch {batch}: {shown} {row.get('missing', '')}")
        save(results, options.out)
        torch.compiler.reset()
        gc.collect()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batch", type=int, help="size of the large batch")
    parser.add_argument("--each", type=float, default=1.0, help="seconds to time each way")
    parser.add_argument("--row", type=float, default=120.0, help="seconds after which a row is left out")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no row starts")
    parser.add_argument("--out", type=Path, help="where rows are saved; those it has are not measured again")
    parser.add_argument(
        "--from-json", type=Path, metavar="PATH", help="show saved measurements instead of making new ones"
    )
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="put the tables into this file")
    options = parser.parse_args()
    spent = Budget(options.limit)
    settle_allocator()
    results = json.loads(options.from_json.read_text()) if options.from_json else run(options, spent)
    if results["rows"]:
        text = render(results)
        print(text)
        if options.markdown:
            replace_section(options.markdown, f"prediction-{results['machine']['device']}", text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # a compilation that was stopped leaves workers, for which an ordinary exit would wait

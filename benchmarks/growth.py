"""How do time and memory of each layer grow with what it is given, and how should they?

    python benchmarks/growth.py --json benchmarks/results/growth-h200.json         # continues the file
    OMP_NUM_THREADS=1 python benchmarks/growth.py --device cpu --limit 300
    python benchmarks/growth.py --warm 3/8               # only compile the kernels of an eighth of the entries
    python benchmarks/growth.py --quick                  # the two smallest sizes, to see that it runs
    python benchmarks/growth.py --from-json FILE --markdown docs/benchmarks/growth.md

Each entry is forward and backward of a mean of squares through one layer, with gradients of its input and of its
parameters. On a GPU it is replayed as a CUDA graph, without the launches that hide growth at small sizes, except where
the host must see the points. Memory is the peak of tensors above the level before.

An exponent is the slope of log time over log n at the last three sizes. Theory's is the slope of the number of
operations at the same sizes, so N log N gives about 1.1. Layers at points and attention compute in chunks: up to their
size memory grows with the pairs, and then with the signal alone, so theory has no exponent for it.

Sizes are measured from small to large, one of each series in turn; each is saved as soon as it is measured, and those
that the file already has are kept. A series ends before the first size that is expected to take more than ``--most``
seconds, or that does not fit into memory. No measurement starts after ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import Budget, exponent, graphed, machine, median_seconds, peak_bytes, settle_allocator
from _tables import MISSING, describe, mebibytes, milliseconds, replace_section, save, table
from irregular import layer_of

from kernelfield import groups, layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

SEED = 0
#: number of the largest sizes to which a slope is fitted
FITTED = 3


def linear(n: float) -> float:
    return n


def transforms(n: float) -> float:
    """Return the operations of a Fourier transform of n samples."""
    return n * math.log2(n)


def power(p: float) -> Callable[[float], float]:
    return lambda n: n**p


@dataclass(frozen=True)
class Series:
    """A layer at several sizes.

    Args:
        name: of the layer.
        unit: what grows.
        build: makes the layer of a size.
        inputs: makes its arguments, for a size and a device.
        sizes: by device.
        count: number of units at a size, such as the samples of a volume of this side.
        time: operations, up to a factor, of a number of units.
        memory: values in memory, up to a factor; None where they are computed in chunks of a fixed size.
        on_host: whether the host must see the values of the input, so that no CUDA graph can be captured.
    """

    name: str
    unit: str
    build: Callable[[int], nn.Module]
    inputs: Callable[[int, torch.device], dict[str, Tensor]]
    sizes: dict[str, tuple[int, ...]]
    count: Callable[[int], int] = int
    time: Callable[[float], float] = linear
    memory: Callable[[float], float] | None = linear
    on_host: bool = False


def _signal(*shape: int) -> Callable[[int, torch.device], dict[str, Tensor]]:
    """Return inputs of a fixed shape."""
    return lambda _, device: {"x": torch.randn(shape, device=device)}


def _on_grid(*shape: int, dim: int) -> Callable[[int, torch.device], dict[str, Tensor]]:
    """Return signals of a shape whose last axes are as long as the size says."""
    return lambda side, device: {"x": torch.randn(*shape, *(side,) * dim, device=device)}


def _on_group(batch: int, channels: int, side: int) -> Callable[[int, torch.device], dict[str, Tensor]]:
    """Return signals on the plane and on as many rotations as the size says."""
    return lambda n, device: {"x": torch.randn(batch, channels, n, side, side, device=device)}


def _at_points(channels: int, dim: int) -> Callable[[int, torch.device], dict[str, Tensor]]:
    """Return one sample of points whose density does not depend on their number."""

    def inputs(points: int, device: torch.device) -> dict[str, Tensor]:
        coords = torch.rand(1, points, dim, device=device) * points ** (1 / dim)
        return {"x": torch.randn(1, channels, points, device=device), "coords": coords}

    return inputs


def _cloud(points: int, device: torch.device) -> dict[str, Tensor]:
    return {"x": torch.randn(1, 16, points, device=device), "coords": 2 * torch.rand(1, points, 3, device=device) - 1}


def _point_layer(kind: str, dim: int, points: int) -> nn.Module:
    return layer_of(kind, dim, points, 16, 32)


def _gridify(points: int) -> nn.Module:
    return layers.Gridify(16, 16, dim=3, grid=round(points ** (1 / 3)), neighbors=9)


def _continuous(dim: int, cpu: tuple[int, ...], cuda: tuple[int, ...]) -> Series:
    """Return a depthwise layer with a kernel as long as the signal."""
    return Series(
        f"SeparableConv, {dim}D",
        "samples",
        lambda n: layers.SeparableConv(16, 16, size=n, dim=dim, sigma=None, causal=dim == 1),
        _on_grid(4, 16, dim=dim),
        {"cpu": cpu, "cuda": cuda},
        count=lambda n: n**dim,
        time=transforms,
    )


def _of_group(
    name: str,
    layer: Callable[..., nn.Module],
    time: Callable[[float], float],
    memory: Callable[[float], float] = linear,
    **options: Any,
) -> Series:
    """Return a layer on the plane and on as many rotations as the size says."""
    return Series(
        name,
        "elements",
        lambda n: layer(8, 8, group=groups.Cyclic(n), **options),
        _signal(8, 8, 28, 28) if layer is layers.LiftingConv else _on_group(8, 8, 28),
        {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128)},
        time=time,
        memory=memory,
    )


def all_series() -> list[Series]:
    """Return the series of all layers."""
    on_p4 = partial(layers.GroupSelfAttention, 9, 9, group=groups.Cyclic(4), heads=3)
    return [
        _continuous(1, tuple(1 << i for i in (10, 12, 14, 16)), tuple(1 << i for i in (16, 18, 20))),
        _continuous(2, (32, 64, 128, 256), (256, 512, 1024)),
        _continuous(3, (8, 16, 32), (32, 64, 128)),
        Series(
            "CKConv, all channels, 1D",
            "samples",
            lambda n: layers.CKConv(16, 16, size=n, causal=True),
            _on_grid(4, 16, dim=1),
            {"cpu": (1024, 4096, 16384), "cuda": (16384, 65536, 262144)},
            time=transforms,
        ),
        Series(
            "FlexConv, all channels, 1D",
            "samples",
            lambda n: layers.FlexConv(16, 16, size=n, causal=True),
            _on_grid(4, 16, dim=1),
            {"cpu": (4096, 16384, 65536), "cuda": (16384, 65536, 262144)},
            time=transforms,
        ),
        Series(
            "CKConv at points, 1D",
            "points",
            partial(_point_layer, "global", 1),
            _at_points(16, 1),
            {"cpu": (4096, 8192, 16384, 32768), "cuda": (65536, 262144, 1048576)},
            time=transforms,
            memory=None,
            on_host=True,
        ),
        Series(
            "FlexConv at points, 1D, 32 in reach",
            "points",
            partial(_point_layer, "masked", 1),
            _at_points(16, 1),
            {"cpu": (4096, 8192, 16384, 32768), "cuda": (65536, 262144, 1048576)},
            memory=None,
            on_host=True,
        ),
        Series(
            "FlexConv at points, 3D, 32 in reach",
            "points",
            partial(_point_layer, "masked", 3),
            _at_points(16, 3),
            {"cpu": (1024, 2048, 4096), "cuda": (32768, 65536, 131072)},
            memory=None,
            on_host=True,
        ),
        Series(
            "Gridify, as many nodes as points",
            "points",
            _gridify,
            _cloud,
            {"cpu": (4096, 8192, 16384), "cuda": (32768, 65536, 131072)},
            on_host=True,
        ),
        _of_group("LiftingConv", layers.LiftingConv, linear),
        # Signals, and kernels for each pair of elements.
        _of_group("GroupConv", layers.GroupConv, power(2), lambda n: 8 * 8 * 28**2 * n + 8 * 8 * 3**2 * n**2),
        # Mixing of channels and elements, and convolutions in space.
        _of_group("SeparableGroupConv", layers.SeparableGroupConv, lambda n: 64 * n**2 + 8 * 49 * n, kernel_size=7),
        Series(
            "AttentiveGroupConv",
            "elements",
            lambda n: layers.AttentiveGroupConv(4, 4, group=groups.Cyclic(n), hidden=1),
            _on_group(1, 4, 28),
            {"cpu": (8, 16, 32), "cuda": (16, 32, 64)},
            time=power(2),
            memory=None,
        ),
        Series(
            "GroupSelfAttention, 3×3",
            "elements",
            lambda n: layers.GroupSelfAttention(9, 9, group=groups.Cyclic(n), heads=3, neighborhood=3),
            _on_group(1, 9, 16),
            {"cpu": (8, 16, 32), "cuda": (16, 32, 64)},
            time=power(3),
            memory=None,
        ),
        Series(
            "GroupSelfAttention, p4",
            "neighbours",
            lambda k: on_p4(neighborhood=k),
            _signal(1, 9, 4, 28, 28),
            {"cpu": (5, 7, 11, 15), "cuda": (11, 15, 23)},
            count=lambda k: k**2,
            memory=None,
        ),
        Series(
            "GroupSelfAttention, p4, global",
            "positions",
            lambda n: on_p4(neighborhood=None, size=n),
            _on_grid(1, 9, 4, dim=2),
            {"cpu": (8, 12, 16, 24), "cuda": (24, 32, 48)},
            count=lambda n: n**2,
            time=power(2),
            memory=None,
        ),
    ]


def entries(options: argparse.Namespace, device: torch.device) -> list[tuple[Series, int]]:
    """Return the chosen sizes of all series, one of each in turn."""
    chosen = [series for series in all_series() if options.only.lower() in series.name.lower()]
    few = 2 if options.quick else None
    rows = zip_longest(*([(series, size) for size in series.sizes[device.type][:few]] for series in chosen))
    return [entry for row in rows for entry in row if entry is not None]


def training_step(layer: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    x = inputs["x"].requires_grad_()
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]

    def step() -> None:
        y: Any = layer(**inputs)
        values = y if isinstance(y, torch.Tensor) else y.values
        torch.autograd.grad(values.square().mean(), wanted, allow_unused=True)

    return step


def first_step(series: Series, size: int, device: torch.device) -> Callable[[], None]:
    """Take a step, which compiles its kernels, and return it."""
    torch.manual_seed(SEED)
    step = training_step(series.build(size).to(device), series.inputs(size, device))
    step()
    return step


def measure(series: Series, size: int, device: torch.device, budget: float) -> dict[str, Any]:
    """Return seconds and bytes of one entry."""
    step = first_step(series, size, device)
    row: dict[str, Any] = {"series": series.name, "size": size, "count": series.count(size)}
    row["bytes"] = peak_bytes(step, device)
    captured = device.type == "cuda" and not series.on_host
    call = graphed(step) if captured else step
    return row | {"seconds": median_seconds({"step": call}, device, budget=budget)["step"], "captured": captured}


def ends(series: Series, size: int, rows: list[dict[str, Any]], most: float) -> bool:
    """Return whether a size is not to be measured: a smaller one failed, or this one would take too long."""
    before = [row for row in rows if row["series"] == series.name and row["size"] < size]
    if any("error" in row for row in before):
        return True
    known = [row["seconds"] * series.time(series.count(size)) / series.time(row["count"]) for row in before]
    return bool(known) and known[-1] > most


def run(options: argparse.Namespace, report: dict[str, Any], device: torch.device, spent: Budget) -> None:
    """Add the missing entries to the report."""
    rows: list[dict[str, Any]] = report["rows"]
    done = {(row["series"], row["size"]) for row in rows}
    for series, size in entries(options, device):
        if spent.spent:
            spent.log("stopped: the time is over")
            return
        if (series.name, size) in done or ends(series, size, rows, options.most):
            continue
        try:
            row = measure(series, size, device, options.each)
        except (RuntimeError, ValueError) as error:  # a size that does not fit or cannot be captured ends its series
            row = {"series": series.name, "size": size, "error": str(error).splitlines()[0][:200]}
        rows.append(row)
        spent.log(f"{row}")
        save(report, options.json)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def warm(options: argparse.Namespace, device: torch.device, spent: Budget) -> None:
    """Compile the kernels of every n-th entry, so that several processes fill Triton's cache together."""
    first, count = (int(n) for n in options.warm.split("/"))
    for series, size in entries(options, device)[first::count]:
        if spent.spent:
            return
        with contextlib.suppress(RuntimeError, ValueError):  # the measurement will show it
            first_step(series, size, device)
        spent.log(f"{series.name}, {size}: done")
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


HEADER = (
    *("layer", "n", "smallest", "largest", "ms", "MiB"),
    *("time grows", "in theory", "memory grows", "in theory"),
)


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return one line for each series: time and memory at the largest size, and all exponents."""
    lines = []
    for series in all_series():
        of = sorted((r for r in rows if r["series"] == series.name and "error" not in r), key=lambda r: r["count"])
        if not of:
            continue
        n = [row["count"] for row in of]
        found = [
            [row["seconds"] for row in of],
            [series.time(count) for count in n],
            [row["bytes"] for row in of],
            None if series.memory is None else [series.memory(count) for count in n],
        ]
        slopes = [None if values is None or len(n) < 2 else exponent(n[-FITTED:], values[-FITTED:]) for values in found]
        shown = [MISSING if slope is None else f"{slope:.2f}" for slope in slopes]
        last = of[-1]
        lines.append(
            [
                series.name,
                series.unit,
                f"{n[0]:,}",
                f"{n[-1]:,}",
                milliseconds(last["seconds"]),
                mebibytes(last["bytes"]),
                *shown,
            ]
        )
    return table(HEADER, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes of each layer")
    parser.add_argument("--only", default="", help="part of a layer's name")
    parser.add_argument("--each", type=float, default=0.2, help="seconds to time each entry")
    parser.add_argument("--most", type=float, default=4.0, help="seconds that a single step may be expected to take")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no measurement starts")
    parser.add_argument("--warm", metavar="I/N", help="only compile the kernels of every N-th entry")
    parser.add_argument("--json", type=Path, help="where to write the measurements; those already there are kept")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        spent, device = Budget(options.limit), torch.device(options.device)
        if options.warm is not None:
            warm(options, device, spent)
            return
        settle_allocator()
        report = {"machine": machine(device, SEED), "rows": []}
        if options.json is not None and options.json.exists():
            old = json.loads(options.json.read_text())
            if old["machine"]["device_name"] != report["machine"]["device_name"]:
                parser.error(f"--json must be a file of this device, got one of {old['machine']['device_name']}")
            report["rows"] = old["rows"]
        run(options, report, device, spent)
    text = f"{describe(report['machine'])}.\n\n{make_table(report['rows'])}"
    if options.markdown is not None:
        replace_section(options.markdown, f"growth-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

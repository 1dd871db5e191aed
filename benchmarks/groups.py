"""Time and memory of a training step on a group, beside e2cnn and a plain CNN of equal width.

    python benchmarks/groups.py                           # on the GPU if there is one
    python benchmarks/groups.py --compile                 # also under torch.compile
    python benchmarks/groups.py --quick                   # small networks, to see that it runs
    python benchmarks/groups.py --json benchmarks/results/groups-cpu.json
    python benchmarks/groups.py --from-json benchmarks/results/groups-cpu.json --markdown docs/benchmarks/groups.md

A training step is forward, cross-entropy, backward and Adam. Every row times, in turns,

- ours,
- e2cnn: the same layers in e2cnn's modules, where it is installed (it needs numpy 1 and an environment of its own); a
  continuous group with n samples against its rotations by 1/n of a turn,
- plain: the same layers in torch's own modules, with as many channels as the group network has in all.

Small networks are bound by launches, so on a GPU each step is also captured and replayed as a CUDA graph (``graphed``).
Each row is printed and saved as soon as it is measured, and none begins once the process has run for ``--budget``
seconds. The error stream shows when a row's first steps, which compile its kernels, are done.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _authors import PUBLISHED
from _measure import Budget, graphed, machine, median_seconds, peak_bytes, settle_allocator
from _plain import e2cnn_all_cnn, e2cnn_cnn, e2cnn_residual, enn, plain_all_cnn, plain_cnn, plain_residual
from _tables import MISSING, describe, number, replace_section, save, table
from torch.nn import functional as F

from kernelfield.groups import SO2, Cyclic, Dihedral, Group
from kernelfield.models.gcnn import GCNN, GroupAllCNN
from kernelfield.models.partial_gcnn import PartialGCNN

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

SEED = 0
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """One row: a network and the input it is timed on.

    Args:
        name: name of the row.
        build: makes ours.
        shape: of the input.
        plain: makes the plain CNN; None to leave it out.
        theirs: makes e2cnn's; None to leave it out.
        e2cnn_ms: milliseconds of e2cnn for this step on an H200, batch 128, if measured earlier.
        authors_ms: milliseconds of the authors' code there.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    plain: Callable[[], nn.Module] | None = None
    theirs: Callable[[], nn.Module] | None = None
    e2cnn_ms: float | None = None
    authors_ms: float | None = None


def small(name: str, group: Group, channels: int, batch: int, **measured: float) -> Case:
    """The rotated-MNIST network, 28²."""
    mirrored = isinstance(group, Dihedral)
    n = (group.order or 1) // (2 if mirrored else 1)
    return Case(
        f"{name}-CNN, 28², batch {batch}",
        lambda: GCNN(group=group, channels=channels),
        (batch, 1, 28, 28),
        lambda: plain_cnn(channels * (group.order or 1)),
        lambda: e2cnn_cnn(n, mirrored, channels),
        **measured,
    )


def large(name: str, group: Group, channels: int, batch: int, **measured: float) -> Case:
    """All-CNN-C, 32²."""
    mirrored = isinstance(group, Dihedral)
    n = (group.order or 1) // (2 if mirrored else 1)
    return Case(
        f"{name} All-CNN, 32², batch {batch}",
        lambda: GroupAllCNN(group=group, channels=channels),
        (batch, 3, 32, 32),
        lambda: plain_all_cnn(channels * (group.order or 1)),
        lambda: e2cnn_all_cnn(n, mirrored, channels),
        **measured,
    )


def sampled(width: int, size: int, batch: int, *, partial: bool = False, share: float = 1.0) -> Case:
    """The two-block network of chapter 11 on 16 samples of SE(2)."""
    channels = (width, width, 2 * width, 2 * width)
    inputs = 1 if size == 28 else 3
    kind = "" if not partial else ", partial" if share == 1 else f", partial, {share:g} of the circle"

    def build() -> nn.Module:
        net = PartialGCNN(inputs, CLASSES, group=SO2(), samples=16, partial=partial, channels=channels)
        with torch.no_grad():
            for distribution in net.distributions():
                distribution.width.fill_(share)  # type: ignore[union-attr, operator]
        return net

    return Case(
        f"SE(2), 16 samples, {width} channels{kind}, {size}², batch {batch}",
        build,
        (batch, inputs, size, size),
        None if partial else lambda: plain_residual(inputs, 16 * width),
        None if partial else lambda: e2cnn_residual(inputs, 16, width),
    )


def cases(device: torch.device, quick: bool) -> list[Case]:
    if quick:
        return [small("p4", Cyclic(4), 2, 4), large("p4m", Dihedral(4), 2, 2), sampled(2, 28, 2, partial=True)]
    if device.type != "cuda":
        return [
            small("p4", Cyclic(4), 10, 16),
            small("p4m", Dihedral(4), 7, 16),
            small("C8", Cyclic(8), 7, 16),
            large("p4", Cyclic(4), 12, 8),
            large("p4m", Dihedral(4), 8, 8),
            large("C8", Cyclic(8), 8, 8),
            *(sampled(4, size, 8) for size in (28, 32)),
            sampled(4, 28, 8, partial=True),
            sampled(4, 28, 8, partial=True, share=0.5),
        ]
    return [
        small("p4", Cyclic(4), 10, 128, e2cnn_ms=9.3, authors_ms=PUBLISHED["p4-CNN"].milliseconds),
        small("p4m", Dihedral(4), 7, 128, e2cnn_ms=10.6),
        small("C8", Cyclic(8), 7, 128, e2cnn_ms=10.9),
        large("p4", Cyclic(4), 48, 128, authors_ms=PUBLISHED["p4 All-CNN"].milliseconds),
        large("p4m", Dihedral(4), 32, 128, authors_ms=PUBLISHED["p4m All-CNN"].milliseconds),
        large("C8", Cyclic(8), 32, 128),
        *(sampled(32, size, 64) for size in (28, 32)),
        sampled(32, 28, 64, partial=True),
        sampled(32, 28, 64, partial=True, share=0.5),
    ]


def training_step(net: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Return a function that takes one step, without waiting for the device."""
    target = torch.randint(CLASSES, (len(x),), device=x.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=x.is_cuda)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), target).backward()
        optimizer.step()

    return step


def make(build: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    torch.manual_seed(SEED)
    return build().to(device).train()


def captured(name: str, call: Callable[[], object]) -> dict[str, Callable[[], object]]:
    """Return the replay of a call as a CUDA graph, by its name; nothing if it cannot be captured."""
    try:
        return {f"{name}, graphed": graphed(call)}
    except RuntimeError as error:  # not everything a library launches can be
        print(f"{name}: no CUDA graph: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return {}


def measure(case: Case, device: torch.device, compiled: bool, each: float, budget: Budget) -> dict[str, Any]:
    torch.manual_seed(SEED)
    x = torch.randn(case.shape, device=device)
    nets = {"ours": case.build, "e2cnn": case.theirs if enn is not None else None, "plain": case.plain}
    made = {name: make(build, device) for name, build in nets.items() if build is not None}
    calls: dict[str, Callable[[], object]] = {name: training_step(net, x) for name, net in made.items()}
    if compiled:
        calls["ours, compiled"] = training_step(torch.compile(make(case.build, device)), x)  # type: ignore[arg-type]
    for name, call in calls.items():
        call()  # compiles kernels and loads libraries, which takes longer than the next steps
        budget.log(f"{case.name}: {name}, first step done")
    if device.type == "cuda":
        for name in [name for name in calls if name != "e2cnn"]:
            calls |= captured(name, calls[name])
    seconds = median_seconds(calls, device, budget=each)
    return {
        "name": case.name,
        "parameters": sum(p.numel() for p in made["ours"].parameters()),
        "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
        "peak_mib": {name: peak_bytes(calls[name], device) / 2**20 for name in made},
        "e2cnn_ms": case.e2cnn_ms,
        "authors_ms": case.authors_ms,
    }


HEADER = (
    *("training step", "ours, ms", "compiled", "graphed", "both", "e2cnn", "plain CNN", "plain, graphed"),
    *("peak, MiB", "e2cnn, MiB", "plain, MiB", "e2cnn's time / ours", "authors' / ours"),
)


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table. Ratios are to our fastest version of the same step."""
    ms, mib = row["milliseconds"], row["peak_mib"]
    names = ("ours", "ours, compiled", "ours, graphed", "ours, compiled, graphed")
    best = min(ms[name] for name in names if name in ms)
    # e2cnn runs launch by launch. It is compared with our step launched likewise, and with our fastest one.
    theirs = ms.get("e2cnn") or row["e2cnn_ms"]
    ratios = [
        MISSING
        if theirs is None
        else f"{theirs / ms['ours']:.2f}×" + (f", {theirs / best:.1f}×" if best < ms["ours"] else ""),
        MISSING if row["authors_ms"] is None else f"{row['authors_ms']:g} ms, {row['authors_ms'] / best:.1f}×",
    ]
    earlier = "" if "e2cnn" in ms or theirs is None else "*"
    return [
        row["name"],
        *(number(ms.get(name)) for name in names),
        number(theirs) + earlier,
        *(number(ms.get(name)) for name in ("plain", "plain, graphed")),
        *(number(mib.get(name)) for name in ("ours", "e2cnn", "plain")),
        *ratios,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compile", action="store_true", help="also time each step under torch.compile")
    parser.add_argument("--only", default="", help="rows whose name contains this; other saved rows are kept")
    parser.add_argument("--each", type=float, default=2.0, help="seconds to spend on each measurement")
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="seconds of the whole run; no measurement starts later"
    )
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        device = torch.device(options.device)
        settle_allocator()
        warnings.filterwarnings("ignore")  # e2cnn's, of torch's newer versions
        report = {"machine": machine(device, SEED), "e2cnn": enn is not None, "rows": []}
        if options.only and options.json is not None and options.json.exists():
            report["rows"] = json.loads(options.json.read_text())["rows"]
        budget = Budget(options.budget)
        budget.log("imported; measuring")
        for case in cases(device, options.quick):
            if options.only not in case.name:
                continue
            if budget.spent:
                budget.log(f"{case.name}: left out, the budget is spent")
                continue
            row = measure(case, device, options.compile, options.each, budget)
            kept = [r for r in report["rows"] if r["name"] != case.name]
            report["rows"] = [*kept, row]
            print(*cells(row), sep="   ", flush=True)
            save(report, options.json)
    text = f"{describe(report['machine'])}.\n\n{table(HEADER, [cells(row) for row in report['rows']])}"
    if any(row["e2cnn_ms"] for row in report["rows"]) and not report["e2cnn"]:
        text += "\n\n\\* measured on the same kind of GPU at another time, in an environment of its own."
    if "note" in report:
        text += f"\n\n{report['note']}"
    if options.markdown is not None:
        replace_section(options.markdown, f"groups-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

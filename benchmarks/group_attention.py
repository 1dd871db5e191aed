"""Time and memory of a training step of networks with attention on groups (chapters 7, 8 and 9).

    python benchmarks/group_attention.py                  # on the GPU if there is one
    python benchmarks/group_attention.py --quick          # tiny networks, to see that it runs
    python benchmarks/group_attention.py --json benchmarks/results/group_attention-h200.json
    python benchmarks/group_attention.py --only self      # or: attentive
    python benchmarks/group_attention.py --methods auto --budget 60    # the first rows, in a minute
    python benchmarks/group_attention.py --from-json FILE --markdown docs/benchmarks/groups.md

Self-attention: the rotated-MNIST network of chapter 9 on 28², by each method, and the plain reference with all scores
at once where it fits. Attentive: the networks of chapter 8, and plain networks for comparison. The most important rows
come first. Each row is printed and saved as soon as it is measured. No measurement begins once the process has run for
``--budget`` seconds. Where Triton's cache is empty, the first step of a row compiles its kernels one after the other:
eleven kernels, about a minute of CPU time, for the first row alone. The error stream shows how long that takes.
``--kernels FILE`` keeps a record of the kernels and compiles those of an earlier run in parallel.

A step is the forward and backward pass of a mean of squares, without an optimiser; on a GPU also captured and replayed
as a CUDA graph. Peak memory is that of tensors other than weights and input. ``--compile`` adds a column under
``torch.compile``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _authors import PUBLISHED
from _measure import (
    Budget,
    OutOfTimeError,
    graphed,
    machine,
    median_seconds,
    peak_bytes,
    settle_allocator,
    time_limit,
)
from _tables import MISSING, describe, number, replace_section, save, table

from kernelfield.groups import Cyclic, Dihedral
from kernelfield.models import GCNN, GroupAllCNN, create_model
from kernelfield.ops.precompile import KernelRecord, precompile

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

SEED = 0
METHODS = ("auto", "triton", "chunked", "reference")
#: milliseconds of a step that its launches no longer add to
LONG = 150


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        kind: "self" or "attentive".
        name: name of the row.
        shape: of the input.
        build: makes the network, with keyword arguments for self-attention.
        methods: the methods that are timed; the table's ratios use the first.
        authors: milliseconds and GiB of the authors' code on an H200; None where it runs out of its 140 GiB.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    build: Callable[..., nn.Module]
    methods: tuple[str, ...] = ("auto",)
    authors: tuple[float, float] | None = None
    notes: dict[str, Any] = field(default_factory=dict)


#: rotations, neighbourhood and batch of the networks that the authors' code was timed with
COMPARED = ((4, 5, 8), (4, 5, 64), (4, 9, 8), (8, 5, 64), (12, 5, 8))


def authors_of(name: str) -> tuple[float, float] | None:
    """Return the milliseconds and GiB of the authors' code, if they are known."""
    step = PUBLISHED.get(name)
    return None if step is None or step.gib is None else (step.milliseconds, step.gib)


def self_attention(n: int, neighborhood: int | None, batch: int, quick: bool = False) -> Case:
    def build(method: str = "auto") -> nn.Module:
        small = {"channels": 4, "widths": ((6,), (6,)), "crops": (1, 0), "heads": 2} if quick else {}
        options = {"neighborhood": neighborhood, "size": 28, "method": method, **small}
        return create_model("gsanet_rotmnist", group=Cyclic(n), **options)

    around = "global" if neighborhood is None else f"{neighborhood}×{neighborhood}"
    # How many bytes the reference holds at once, at least: three tensors of all scores of the first block.
    keys = 784 if neighborhood is None else neighborhood**2
    scores = 4 * 3 * batch * 9 * 576 * n**3 * keys
    methods = ("auto", "chunked", *(("reference",) if scores < 90 * 2**30 or quick else ()))
    name = f"R{n}, {around}, batch {batch}"
    return Case("self", name, (batch, 1, 28, 28), build, methods, authors_of(name))


def attentive(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...], authors: Any = None) -> Case:
    return Case("attentive", name, shape, lambda method="auto": build(), authors=authors)  # noqa: ARG005


def p4cnn(attention: str | None) -> nn.Module:
    return GCNN(group=Cyclic(4), attention=attention)


def allcnn(mirrored: bool, attention: str | None) -> nn.Module:
    group, channels = (Dihedral(4), 32) if mirrored else (Cyclic(4), 48)
    return GroupAllCNN(group=group, channels=channels, attention=attention)


def cases(device: torch.device, quick: bool, everything: bool) -> list[Case]:
    if quick:
        return [
            self_attention(4, 3, 1, quick=True),
            attentive("p4-CNN full, batch 2", lambda: p4cnn("full"), (2, 1, 28, 28)),
        ]
    if device.type != "cuda":
        return [
            self_attention(4, 5, 1),
            self_attention(8, 5, 1),
            self_attention(12, 5, 1),
            self_attention(4, 9, 1),
            self_attention(4, None, 1),
            *(
                attentive(f"p4-CNN {kind or 'plain'}, batch 16", lambda kind=kind: p4cnn(kind), (16, 1, 28, 28))
                for kind in (None, "co", "input", "channel", "spatial", "full")
            ),
        ]
    digits, photographs = (128, 1, 28, 28), (128, 3, 32, 32)
    convolutions = [
        attentive(
            f"p4-CNN {kind or 'plain'}, batch 128", lambda kind=kind: p4cnn(kind), digits, authors_of(f"p4-CNN {kind}")
        )
        for kind in ("full", "channel", "spatial", "input", None, "co")
    ]
    for mirrored, kind in ((False, "input"), (True, "input"), (False, "full"), (False, None), (True, None)):
        name = f"{'p4m' if mirrored else 'p4'} All-CNN"
        authors = authors_of(f"{name} {kind}")
        name = f"{name} {kind or 'plain'}, batch 128"
        convolutions.append(attentive(name, lambda m=mirrored, k=kind: allcnn(m, k), photographs, authors))
    compared = [self_attention(*which) for which in COMPARED]
    large = [self_attention(12, 9, 8), self_attention(4, None, 8)]
    others = [(8, 5, 8), (8, None, 8), (12, None, 8), (8, 9, 8), (12, 5, 64), (4, 9, 64), (8, 9, 64), (12, 9, 64)]
    rows = compared + large + convolutions + [self_attention(*which) for which in others]
    if everything:  # seconds a step
        rows += [self_attention(n, None, 64) for n in (4, 8, 12)]
    return rows


def training_step(net: nn.Module, x: Tensor) -> Callable[[], None]:
    parameters = list(net.parameters())

    def step() -> None:
        torch.autograd.grad(net(x).square().mean(), parameters, allow_unused=True)

    return step


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(
    case: Case,
    device: torch.device,
    methods: list[str],
    compiled: bool,
    each: float,
    budget: Budget,
    row: dict[str, Any],
) -> None:
    """Fill ``row``, one measurement after the other."""
    x = torch.randn(case.shape, device=device)
    row |= {"kind": case.kind, "name": case.name, "ms": {}, "mib": {}, "errors": {}, "authors": case.authors}
    began = time.perf_counter()
    for method in case.methods:
        if method not in methods:
            continue
        torch.manual_seed(SEED)
        for way in ("", *((" graphed",) if device.type == "cuda" else ()), *((" compiled",) if compiled else ())):
            if way == " graphed" and (method == "reference" or row["ms"].get(method, 0) > LONG):
                continue
            if budget.spent and row["ms"]:
                budget.log(f"{case.name}: {method}{way} left out, the budget is spent")
                continue
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            name = method + way
            try:
                net = case.build(method=method).to(device).train()
                run = torch.compile(net) if way == " compiled" else net
                step = training_step(run, x)
                compiling = time.perf_counter()
                step()
                synchronize(device)
                budget.log(f"{case.name}: {name}, first step {time.perf_counter() - compiling:.1f} s")
                if not way:
                    row["mib"][name] = peak_bytes(step, device) / 2**20
                call = graphed(step) if way == " graphed" else step
                row["ms"][name] = 1e3 * median_seconds({name: call}, device, budget=each)[name]
                budget.log(f"{case.name}: {name} {row['ms'][name]:.2f} ms")
            except (RuntimeError, torch.OutOfMemoryError, NotImplementedError, ModuleNotFoundError) as error:
                row["errors"][name] = str(error).splitlines()[0][:200]
                synchronize(device)
            finally:
                row["seconds"] = time.perf_counter() - began
            net = run = step = call = None


SELF_HEADER = (
    *("self-attention", "step, ms", "graphed", "chunked", "reference"),
    *("peak, MiB", "reference", "authors' code", "faster", "less memory"),
)
ATTENTIVE_HEADER = ("attentive", "step, ms", "graphed", "peak, MiB", "authors' code", "faster", "less memory")


def best(row: dict[str, Any], method: str) -> float | None:
    """Return the shortest time of a method."""
    found = [value for name, value in row["ms"].items() if name.split(" ")[0] == method]
    return min(found) if found else None


def cells(row: dict[str, Any]) -> list[str]:
    ms, mib, authors = row["ms"], row["mib"], row["authors"]
    ours, peak = best(row, "auto"), mib.get("auto")
    told = MISSING if authors is None else f"{authors[0]:g} ms, {authors[1]:g} GiB"
    faster = MISSING if authors is None or ours is None else f"{authors[0] / ours:.1f}×"
    less = MISSING if authors is None or peak is None else f"{authors[1] * 1024 / peak:.1f}×"
    first = [row["name"], number(ms.get("auto")), number(ms.get("auto graphed"))]
    if row["kind"] == "attentive":
        return [*first, number(peak), told, faster, less]
    ways = [number(best(row, method)) for method in ("chunked", "reference")]
    return [*first, *ways, number(peak), number(mib.get("reference")), told, faster, less]


def shown(rows: list[dict[str, Any]]) -> str:
    parts = []
    for kind, header in (("self", SELF_HEADER), ("attentive", ATTENTIVE_HEADER)):
        some = [cells(row) for row in rows if row["kind"] == kind]
        parts += [table(header, some)] if some else []
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to see that it runs")
    parser.add_argument("--all", action="store_true", help="also global neighbourhoods at batch 64")
    parser.add_argument("--only", choices=("self", "attentive"), help="rows of one kind")
    parser.add_argument("--match", default="", help="rows whose name contains this")
    parser.add_argument("--compile", action="store_true", help="also time each step under torch.compile")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), help="ways to compute attention"
    )
    parser.add_argument("--each", type=float, default=0.3, help="seconds to spend on each measurement")
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="seconds of the whole run; no measurement starts later"
    )
    parser.add_argument("--row", type=float, default=math.inf, help="seconds after which a row is abandoned")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--kernels", type=Path, help="compile the kernels of this record in parallel, and extend it")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        device = torch.device(options.device)
        settle_allocator()
        report = {"machine": machine(device, SEED), "rows": []}
        budget = Budget(options.budget)
        budget.log("imported; measuring")
        record = KernelRecord()
        if options.kernels is not None:
            budget.log(f"{precompile([options.kernels]).wait()} kernels of {options.kernels} compiled")
        for case in cases(device, options.quick, options.all):
            if options.only not in (None, case.kind) or options.match not in case.name:
                continue
            if budget.spent:
                budget.log(f"{case.name}: left out, the budget is spent")
                continue
            row: dict[str, Any] = {}
            try:
                with time_limit(options.row):
                    measure(case, device, options.methods, options.compile, options.each, budget, row)
            except OutOfTimeError:
                budget.log(f"{case.name}: stopped after {options.row:g} s")
            if not row.get("ms"):
                continue
            report["rows"].append(row)
            print(*cells(row), *row["errors"].items(), f"{row['seconds']:.0f} s", sep="   ", flush=True)
            save(report, options.json)
            if options.kernels is not None:
                record.write(options.kernels)
    text = f"{describe(report['machine'])}.\n\n{shown(report['rows'])}"
    if options.markdown is not None:
        replace_section(options.markdown, f"group-attention-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

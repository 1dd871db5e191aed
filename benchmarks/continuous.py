"""The cost of continuous kernels: training steps beside discrete and local kernels, and the share of generating them.

    python benchmarks/continuous.py                       # on the GPU if there is one
    python benchmarks/continuous.py --quick               # tiny shapes, to see that it runs
    python benchmarks/continuous.py --json benchmarks/results/continuous-cpu.json
    python benchmarks/continuous.py --from-json benchmarks/results/continuous-cpu.json \
        --markdown docs/benchmarks/training-steps.md

Every row times a training step (forward and backward of a mean of squares, no optimiser) of the same network with

- continuous kernels as long as the input,
- (a) discrete kernels of the same length: one weight per point (``Table``),
- (b) local discrete kernels, 3 points per axis,
- (c) only the generation of its kernels, forward and backward; the table shows its share of the step.

Small networks are bound by launches, so on a GPU each step is also captured and replayed as a CUDA graph (``graphed``),
which leaves only the arithmetic. ``--compile`` adds rows under ``torch.compile``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _authors import PUBLISHED
from _measure import graphed, machine, median_seconds, peak_bytes, settle_allocator
from _tables import MISSING, describe, number, replace_section, table

from kernelfield import CCNN, SeparableConv, create_model
from kernelfield.fields import Table
from kernelfield.layers import ContinuousConv
from kernelfield.layers.continuous.kernel_sampler import sample_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

SEED = 0


@dataclass(frozen=True)
class Case:
    """One row: a network and the input it is timed on.

    Args:
        name: name of the row.
        build: makes the network with continuous kernels.
        shape: of the input.
        table: makes it with discrete kernels of the same length; None to leave that column out.
        local: makes it with kernels of 3 points per axis.
        authors_ms: milliseconds of the authors' code for this step on an H200.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    table: Callable[[], nn.Module] | None = None
    local: Callable[[], nn.Module] | None = None
    authors_ms: float | None = None


def separable(channels: int, length: int, dim: int, batch: int) -> Case:
    def build(**changes: Any) -> nn.Module:
        arguments = {"dim": dim, "size": length, "sigma": None, "causal": dim == 1, **changes}
        return SeparableConv(channels, channels, **arguments)

    return Case(
        f"layer, {dim}D, {length}, batch {batch}",
        build,
        (batch, channels, *(length,) * dim),
        table=lambda: build(field=Table),
        local=lambda: build(field=Table, size=2 if dim > 1 else 3),
    )


def ccnn(length: int, dim: int, batch: int, in_channels: int, authors_ms: float | None = None) -> Case:
    def build(**changes: Any) -> nn.Module:
        return CCNN(in_channels, 10, dim=dim, **{"size": length, "sigma": None, **changes})

    return Case(
        f"CCNN_4,140, {dim}D, {length}, batch {batch}",
        build,
        (batch, in_channels, *(length,) * dim),
        table=lambda: build(field=Table),
        local=lambda: build(field=Table, size=2 if dim > 1 else 3),
        authors_ms=authors_ms,
    )


def published(name: str) -> Case:
    """Return a network whose step of the authors' code was timed."""
    step = PUBLISHED[name]
    batch, channels, *lengths = step.shape
    if step.model == "ccnn_4_140":
        return ccnn(lengths[0], len(lengths), batch, channels, step.milliseconds)

    def build() -> nn.Module:
        return create_model(step.model, in_channels=channels, out_channels=10, **step.options)

    sizes = "×".join(map(str, lengths))
    return Case(f"{step.model}, {sizes}, batch {batch}", build, step.shape, authors_ms=step.milliseconds)


def cases(device: torch.device, quick: bool) -> list[Case]:
    if quick:
        return [separable(8, 64, 1, 2), ccnn(16, 2, 2, 1)]
    both = [separable(140, 1024, 1, 64), ccnn(1024, 1, 64, 1)]
    if device.type != "cuda":
        return [*both, separable(140, 32, 2, 16), ccnn(32, 2, 16, 3), separable(140, 4096, 1, 16)]
    return [
        *both,
        separable(140, 4096, 1, 64),
        separable(140, 16384, 1, 32),
        separable(140, 32, 2, 64),
        *(published(f"CCNN_4,140 {data}") for data in ("sMNIST", "sCIFAR", "raw speech", "CIFAR-10 2D")),
        *(published(name) for name in ("FlexTCN-2 sMNIST", "CKTCN-2 sMNIST", "FlexNet-16 CIFAR-10")),
    ]


def training_step(net: nn.Module, x: Tensor) -> Callable[[], None]:
    parameters = [p for p in net.parameters() if p.requires_grad]

    def step() -> None:
        torch.autograd.grad(net(x).square().mean(), parameters, allow_unused=True)

    return step


def generation(net: nn.Module, x: Tensor) -> Callable[[], None]:
    layers = [m for m in net.modules() if isinstance(m, ContinuousConv)]
    parameters = [p for layer in layers for name, p in layer.named_parameters() if name != "bias"]

    def generate() -> None:
        together = sample_kernels(layers, x)
        kernels = [layer.kernel() if k is None else k for layer, k in zip(layers, together, strict=True)]
        torch.autograd.grad(kernels, parameters, [torch.ones_like(k) for k in kernels], allow_unused=True)

    return generate


def measure(case: Case, device: torch.device, compiled: bool) -> dict[str, Any]:
    torch.manual_seed(SEED)
    x = torch.randn(case.shape, device=device)
    net = case.build().to(device)
    run = torch.compile(net) if compiled else net
    calls = {"continuous": training_step(run, x), "generation": generation(net, x)}
    if not compiled:
        if case.table is not None:
            calls["discrete"] = training_step(case.table().to(device), x)
        if case.local is not None:
            calls["local"] = training_step(case.local().to(device), x)
    if device.type == "cuda" and not compiled:
        try:
            calls.update({f"{name}, graphed": graphed(calls[name]) for name in ("continuous", "generation")})
        except RuntimeError as error:  # not everything a library launches can be captured
            print(f"{case.name}: no CUDA graph: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
    seconds = median_seconds(calls, device, budget=2.0)
    row = {
        "name": case.name + (", compiled" if compiled else ""),
        "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
        "peak_mib": peak_bytes(calls["continuous"], device) / 2**20,
        "authors_ms": case.authors_ms,
    }
    if not compiled:
        row["generation_share"] = seconds["generation"] / seconds["continuous"]
    if "continuous, graphed" in seconds:
        row["graphed_share"] = seconds["generation, graphed"] / seconds["continuous, graphed"]
    return row


HEADER = (
    *("training step", "continuous, ms", "discrete", "local", "kernels' share"),
    *("graphed, ms", "kernels' share, graphed", "peak, MiB", "authors' code"),
)


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table; discrete and local kernels as multiples of the continuous ones."""
    ms = row["milliseconds"]
    ours = ms["continuous"]
    ratios = [f"{ms[name] / ours:.2f}×" if name in ms else MISSING for name in ("discrete", "local")]
    shares = [f"{row[name]:.0%}" if name in row else MISSING for name in ("generation_share", "graphed_share")]
    replay = ms.get("continuous, graphed")
    authors = row["authors_ms"]
    against = MISSING if authors is None else f"{authors:g} ms, {authors / (replay or ours):.1f}×"
    return [row["name"], number(ours), *ratios, shares[0], number(replay), shares[1], number(row["peak_mib"]), against]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compile", action="store_true", help="also time each step under torch.compile")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        device = torch.device(options.device)
        settle_allocator()
        rows = []
        for case in cases(device, options.quick):
            for compiled in (False, True) if options.compile else (False,):
                rows.append(measure(case, device, compiled))
                print(*cells(rows[-1]), sep="   ", flush=True)
        report = {"machine": machine(device, SEED), "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    text = f"{describe(report['machine'])}.\n\n{table(HEADER, [cells(row) for row in report['rows']])}"
    if options.markdown is not None:
        replace_section(options.markdown, f"continuous-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

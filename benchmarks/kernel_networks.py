"""Errors and times of kernel networks that are evaluated in one launch, compared with float64.

    python benchmarks/kernel_networks.py --out benchmarks/results/kernel-networks-h200.json
    python benchmarks/kernel_networks.py --from-json benchmarks/results/kernel-networks-h200.json \
        --markdown docs/benchmarks/training-steps.md
    python benchmarks/kernel_networks.py --quick --out networks.json     # tiny grids, to see that it runs

Networks like those of the five layers of a CCNN are sampled together, forward and backward, by the fused kernels and by
torch's own operations in float32. Errors are relative, of the samples and of all parameters' gradients together, each
compared with the same formulas in float64. The memory of the fused kernels is filled with NaN first. Exits with an
error if the error of the fused kernels is more than twice that of torch, and above the resolution of float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import graphed, machine, median_seconds
from _tables import describe, number, replace_section, save, table

from kernelfield.fields import SIREN, Field, FourierFilter, GaborFilter, MAGNet
from kernelfield.grids import KernelGrid
from kernelfield.ops.backend import use_triton
from kernelfield.ops.fieldnet import sample_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Results = dict[str, Any]
NETWORKS: dict[str, Callable[..., Field]] = {
    "MAGNet, 32 units": partial(MAGNet, hidden=32),
    "MAGNet, 64 units": partial(MAGNet, hidden=64),
    "MAGNet, 20 units, one map": partial(MAGNet, hidden=20, layers=1),
    "Gabor, 32 units": partial(GaborFilter, hidden=32),
    "Gabor, 64 units": partial(GaborFilter, hidden=64),
    "Fourier, 32 units": partial(FourierFilter, hidden=32),
    "Fourier, 64 units": partial(FourierFilter, hidden=64),
    "SIREN, 32 units": partial(SIREN, hidden=32),
    "SIREN, 64 units": partial(SIREN, hidden=64),
    "SIREN, 40 units, three maps": partial(SIREN, hidden=40, layers=5),
}
GRIDS: dict[str, tuple[tuple[int, ...], bool]] = {
    "784": ((784,), False),
    "16,000, causal": ((16_000,), True),
    "32 × 32": ((32, 32), False),
    "100 × 90": ((100, 90), False),
    "16 × 16 × 16": ((16, 16, 16), False),
}
QUICK: dict[str, tuple[tuple[int, ...], bool]] = {"20": ((20,), False), "3 × 4": ((3, 4), False)}
LAYERS, CHANNELS = 5, 140
#: errors that are always accepted: float32 cannot resolve sums over thousands of points better
FLOOR = 5e-6


def parameters(fields: Sequence[Field]) -> list[torch.Tensor]:
    return [p for f in fields for p in f.parameters()]


def by_formula(fields: Sequence[Field], grid: KernelGrid) -> torch.Tensor:
    first = next(fields[0].parameters())
    coords = grid.coords(dtype=first.dtype, device=first.device).flatten(0, -2)
    return type(fields[0]).together(fields, coords).mT


def fused(fields: Sequence[Field], grid: KernelGrid) -> torch.Tensor:
    if not use_triton(next(fields[0].parameters())):
        raise RuntimeError("these networks have no fused kernels here; is KERNELFIELD_FAST=0 set?")
    return sample_fields(fields, grid)


def results(
    call: Callable[..., torch.Tensor], fields: Sequence[Field], grid: KernelGrid, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples, and the gradients of all parameters in a row."""
    values = call(fields, grid)
    grads = torch.autograd.grad(values, parameters(fields), weights.to(values.dtype))
    return values.detach(), torch.cat([g.flatten() for g in grads])


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def measure(make: Callable[..., Field], size: tuple[int, ...], causal: bool, device: torch.device) -> Results:
    grid = KernelGrid.of(size, (1.0,) * len(size), causal=causal)
    fields = [make(len(size), CHANNELS).to(device) for _ in range(LAYERS)]
    weights = torch.randn(LAYERS, CHANNELS, grid.points, device=device)
    exact = results(by_formula, [copy.deepcopy(f).double() for f in fields], grid, weights)
    plain = results(by_formula, fields, grid, weights)
    # The next memory of the caching allocator is filled with NaN.
    poison = [torch.full((1 << 24,), float("nan"), device=device) for _ in range(4)]
    del poison
    got = results(fused, fields, grid, weights)
    ways = {"fused": fused, "torch": by_formula}
    calls: dict[str, Callable[[], object]] = {
        name: partial(results, way, fields, grid, weights) for name, way in ways.items()
    }
    if device.type == "cuda":
        calls = {name: graphed(call) for name, call in calls.items()}
    seconds = median_seconds(calls, device, budget=0.02)
    return {
        "points": grid.points,
        "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
        "errors": {
            name: {"samples": error(found[0], exact[0]), "gradients": error(found[1], exact[1])}
            for name, found in (("fused", got), ("torch", plain))
        },
    }


def too_far(row: Results) -> bool:
    """Whether results of the fused kernels are NaN, or have much larger errors than torch's operations in float32."""
    ours, theirs = row["errors"]["fused"], row["errors"]["torch"]
    return any(not ours[what] <= max(FLOOR, 2 * theirs[what]) for what in ours)


HEADER = ("kernel network", "grid", "fused", "torch", "× torch", "error", "torch's", "of gradients", "torch's")


def cells(row: Results) -> list[str]:
    ms = row["milliseconds"]
    errors = [row["errors"][way][what] for what in ("samples", "gradients") for way in ("fused", "torch")]
    times = [number(ms["fused"]), number(ms["torch"]), f"{ms['torch'] / ms['fused']:.1f}"]
    return [row["network"], row["grid"], *times, *(f"{e:.0e}" for e in errors)]


def run(options: argparse.Namespace, device: torch.device) -> Results:
    report: Results = {"machine": machine(device, 0), "layers": LAYERS, "channels": CHANNELS, "rows": []}
    grids = QUICK if options.quick else GRIDS
    for network, make in NETWORKS.items():
        for name, (size, causal) in grids.items():
            if options.only not in f"{network} {name}":
                continue
            torch.manual_seed(0)
            row = {"network": network, "grid": name, **measure(make, size, causal, device)}
            report["rows"].append(row)
            save(report, options.out)
            print(*cells(row), "TOO FAR OFF" if too_far(row) else "", sep="  ", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    parser.add_argument("--only", default="", help="part of a row's network and grid")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_float32_matmul_precision("highest")
    report = json.loads(options.from_json.read_text()) if options.from_json else run(options, device)
    text = (
        f"{describe(report['machine'])}. Times in ms of {report['layers']} networks of {report['channels']} channels, "
        f"forward and backward.\n\n{table(HEADER, [cells(row) for row in report['rows']])}"
    )
    if options.markdown is not None:
        replace_section(options.markdown, "kernel-networks", text)
    print("\n" + text)
    if bad := [f"{row['network']} on {row['grid']}" for row in report["rows"] if too_far(row)]:
        sys.exit(f"too far off: {', '.join(bad)}")


if __name__ == "__main__":
    main()

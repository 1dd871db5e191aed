"""How far two untrained layers are from commuting with rotations that do not map the grid to itself.

    python benchmarks/turns.py --save benchmarks/results/turns-cpu.json --markdown docs/tutorials/symmetry.md

A lifting and a group convolution see a smooth image and the same image rotated by 45° before it is sampled. The error
is the norm of the difference from the rotated output, relative to that output, without an eighth of the image at each
border. Kernels have 5² points, or as many as a quarter of the image.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import describe, replace_section, save, table

from kernelfield import GroupConv, LiftingConv
from kernelfield.fields import MLP, SIREN, BSpline, MAGNet
from kernelfield.groups import Cyclic

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SIZES, SEEDS, ANGLE = (16, 32, 64), 3, math.pi / 4
#: centre, width and height of each bump of the image, in halves of its side
BUMPS = ((0.25, 0.1, 0.12, 1.0), (-0.2, 0.3, 0.15, -0.7), (-0.1, -0.3, 0.1, 0.8))
FIELDS: dict[str, Callable[..., Any]] = {
    "SIREN(omega_0=3)": functools.partial(SIREN, omega_0=3.0),
    "SIREN()": SIREN,
    "SIREN(omega_0=30)": functools.partial(SIREN, omega_0=30.0),
    "MLP()": MLP,
    "BSpline()": BSpline,
    "MAGNet()": MAGNet,
    "MAGNet(bandwidth=4)": functools.partial(MAGNet, bandwidth=4.0),
}


def image(size: int, angle: float) -> Tensor:
    """Return a smooth image (1, 1, size, size) that is zero outside a disc, rotated before it is sampled."""
    axis = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2) / (size / 2)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    y, x = math.cos(angle) * rows + math.sin(angle) * columns, math.cos(angle) * columns - math.sin(angle) * rows
    bumps = [w * torch.exp(-((y - a) ** 2 + (x - b) ** 2) / (2 * s**2)) for a, b, s, w in BUMPS]
    return torch.stack(bumps).sum(0)[None, None]


@torch.no_grad()
def turn_error(field: Callable[..., Any], size: int, points: int, seed: int) -> float:
    """Return the relative error of the two layers for one image size and kernel size."""
    torch.manual_seed(seed)
    group = Cyclic(8)
    lift = LiftingConv(1, 4, group=group, field=field, kernel_size=points).double()
    conv = GroupConv(4, 3, group=group, field=field, kernel_size=points).double()
    plain, turned = (conv(lift(image(size, angle))) for angle in (0.0, ANGLE))
    wanted = group.act(group.exp(torch.tensor([ANGLE], dtype=torch.float64)), plain.values, plain.elements)
    inside = slice(size // 8, -(size // 8))
    wanted, found = wanted[..., inside, inside], turned.values[..., inside, inside]
    return float((found - wanted).norm() / wanted.norm())


def measured(path: Path | None) -> dict[str, Any]:
    report: dict[str, Any] = {"machine": machine(torch.device("cpu"), 0), "seeds": SEEDS, "errors": {}}
    for name, field in FIELDS.items():
        report["errors"][name] = {
            kind: [
                statistics.mean(turn_error(field, size, points(size), seed) for seed in range(SEEDS)) for size in SIZES
            ]
            for kind, points in (("5²", lambda _: 5), ("quarter", lambda size: size // 8 * 2 + 1))
        }
        save(report, path)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="where to write the errors")
    parser.add_argument("--from-json", type=Path, help="show saved errors instead of measuring")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    report = json.loads(options.from_json.read_text()) if options.from_json else measured(options.save)
    head = ["kernel", *(f"5², {n}²" for n in SIZES), *(f"a quarter, {n}²" for n in SIZES)]
    rows = [
        [f"`{name}`", *(f"{100 * error:.1f}" for kind in ("5²", "quarter") for error in errors[kind])]
        for name, errors in report["errors"].items()
    ]
    text = f"{describe(report['machine'])}. Percent, mean of {report['seeds']} seeds.\n\n{table(head, rows)}"
    if options.markdown is not None:
        replace_section(options.markdown, "turns", text)
    print(text)


if __name__ == "__main__":
    main()

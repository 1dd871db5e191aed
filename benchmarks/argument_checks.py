"""Time that checks of arguments add to a call, for calls that are frequent in training and inference.

    python benchmarks/argument_checks.py --save benchmarks/results/argument-checks-cpu.json

Each call is timed with its checks and without them, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import describe, save, table

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Return functions with their arguments."""
    x, mask = torch.randn(2, 4, 16), torch.ones(2, 16) > 0
    coords, points = torch.rand(8, 2), torch.rand(2, 16, 1)
    siren, conv, net = kf.fields.SIREN(2, 4), kf.CKConv(4, 4, size=16), kf.CCNN(4, 3, size=16, channels=4, blocks=1)
    lift = kf.LiftingConv(4, 4, group=kf.groups.Cyclic(4))
    image = torch.randn(2, 4, 8, 8)
    found: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
        "SIREN.forward(coords)": _method(siren, coords),
        "CKConv.forward(x)": _method(conv, x),
        "CKConv.forward(x, step, mask)": _method(conv, x, step=1.0, mask=mask),
        "CKConv.forward(x, coords, mask)": _method(conv, x, coords=points, mask=mask),
        "CCNN.forward(x)": _method(net, x),
        "LiftingConv.forward(x)": _method(lift, image),
        "ops.conv(x, kernel)": (kf.ops.conv, (x, torch.randn(4, 4, 5)), {}),
        "ops.resample(x, size)": (kf.ops.resample, (x, 8), {}),
        "SIREN(dim, channels)": (kf.fields.SIREN.__init__, (siren, 2, 4), {}),
    }
    return found


def _method(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    return type(module).forward, (module, *args), kwargs


def added(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], repeats: int) -> float:
    """Return the seconds that the checks of ``function`` itself take: its body is replaced by an empty one."""
    from kernelfield._arguments import checked  # noqa: PLC0415

    empty = _emptied(function.__wrapped__)  # type: ignore[attr-defined]
    watched = checked(**function.__kinds__)(empty)  # type: ignore[attr-defined]
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(repeats):
        for name, call in (("with", watched), ("without", empty)):
            begin = time.process_time()
            for _ in range(1000):
                call(*args, **kwargs)
            times[name].append((time.process_time() - begin) / 1000)
    return statistics.median(times["with"]) - statistics.median(times["without"])


def _emptied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same parameters that does nothing."""
    import inspect  # noqa: PLC0415

    shown = []
    star = False
    space: dict[str, Any] = {}
    for p in inspect.signature(function, follow_wrapped=False).parameters.values():
        star |= p.kind is p.VAR_POSITIONAL
        if p.kind is p.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        space[f"_{p.name}"] = p.default
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        shown.append(f"{prefix}{p.name}" + ("" if p.default is p.empty else f"=_{p.name}"))
    exec(f"def empty({', '.join(shown)}): pass", space)
    space["empty"].__annotations__ = {name[1:]: "Any" for name in space if name[0] == "_"}  # kinds are given by name
    return space["empty"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(torch.device("cpu"), 0), "microseconds": {}}
    for name, (function, args, kwargs) in calls().items():
        report["microseconds"][name] = round(added(function, args, kwargs, given.repeats) * 1e6, 2)
    print(describe(report["machine"]))
    print(table(["call", "µs added"], [[name, f"{t:.2f}"] for name, t in report["microseconds"].items()]))
    save(report, given.save)


if __name__ == "__main__":
    main()

"""Groups and distributions over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kernelfield import groups, layers

from .call import Call, backward


def _group(group: Any) -> Any:
    elements = group.elements() if group.finite else group.sample(3)
    return [
        group.product(elements, elements),
        group.log(group.inverse(elements)),
        group.matrix(elements),
        group.chart(elements),
    ]


def _use(distribution: Any) -> Any:
    return [*backward(distribution, torch.zeros(())), distribution.limits()]


def _partial() -> nn.Module:
    return nn.Sequential(layers.PartialGroupConv(1, 1, group=groups.SO2(), samples=2), nn.Linear(2, 2))


CALLS = [
    Call("groups.Cyclic", groups.Cyclic, lambda: {"n": 4}, _group),
    Call("groups.Dihedral", groups.Dihedral, lambda: {"n": 4}, _group),
    Call("groups.Mirror", groups.Mirror, lambda: {"dim": 2}, _group),
    Call("groups.Trivial", groups.Trivial, lambda: {"dim": 2}, _group),
    Call("groups.SO2", groups.SO2, lambda: {"chart": "algebra"}, _group),
    Call("groups.O2", groups.O2, lambda: {"chart": "algebra"}, _group),
    Call("groups.Scale", groups.Scale, lambda: {"n": 3}, _group),
    Call("groups.Scale (continuous)", groups.Scale, lambda: {"n": 3, "continuous": True, "dim": 2}, _group),
    Call("groups.scale_translation", groups.scale_translation, lambda: {"n": 3}),
    Call("groups.Affine", groups.Affine, lambda: {"group": groups.Cyclic(4)}),
    Call("groups.SO2.sample", groups.SO2().sample, lambda: {"n": 4, "dtype": torch.float32, "device": "cpu"}),
    Call("groups.Cyclic.sample", groups.Cyclic(4).sample, lambda: {"n": 4, "dtype": torch.float32}),
    Call("groups.Group.weight", groups.SO2().weight, lambda: {"n": 4}),
    Call("groups.Uniform", groups.Uniform, lambda: {"group": groups.SO2(), "samples": 4}, _use),
    Call("groups.Uniform (finite)", groups.Uniform, lambda: {"group": groups.Cyclic(4)}, _use),
    Call("groups.Interval", groups.Interval, lambda: {"group": groups.SO2(), "samples": 4}, _use),
    Call("groups.Bernoulli", groups.Bernoulli, lambda: {"group": groups.Mirror()}, _use),
    Call(
        "groups.Independent",
        groups.Independent,
        lambda: {
            "group": groups.O2(),
            "parts": [groups.learned(part, 4 if part.order is None else None) for part in groups.O2().factors],
        },
        _use,
    ),
    Call("groups.Distribution", groups.Distribution, lambda: {"group": groups.SO2()}),
    Call("groups.learned", groups.learned, lambda: {"group": groups.O2(), "samples": 4}, _use),
    Call(
        "groups.monotonicity",
        groups.monotonicity,
        lambda: {"distributions": [groups.learned(groups.SO2(), 4), groups.learned(groups.SO2(), 4)]},
    ),
    Call(
        "groups.parameter_groups",
        groups.parameter_groups,
        lambda: {"model": _partial(), "lr": 0.01, "ratio": 0.1},
        torch.optim.Adam,
    ),
    Call(
        "groups.transform",
        groups.transform,
        lambda: {"signal": torch.rand(1, 2, 4, 4), "matrix": torch.eye(2) * 0.9, "shift": torch.zeros(2)},
    ),
    Call(
        "groups.warp",
        groups.warp,
        lambda: {"signal": torch.rand(1, 2, 4, 4), "matrices": torch.eye(2)[None], "shift": torch.zeros(2)},
    ),
]

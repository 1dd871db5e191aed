"""Fields and masks."""

from __future__ import annotations

from typing import Any

import torch

from kernelfield import fields, masks

from .call import Call, backward, forward_of


def _use(field: Any) -> Any:
    return backward(field, torch.rand(5, field.dim) - 0.5)


def _field(name: str, **arguments: Any) -> list[Call]:
    build = getattr(fields, name)
    given = {"dim": 2, "channels": 3, **arguments}
    return [
        Call(f"fields.{name}", build, lambda: given, _use),
        forward_of(f"fields.{name}", lambda: build(**given), lambda: {"coords": torch.rand(5, 2)}),
    ]


def _mask(name: str, **arguments: Any) -> list[Call]:
    build = getattr(masks, name)
    given = {"dim": 2, **arguments}
    return [
        Call(f"masks.{name}", build, lambda: given, lambda mask: [*_use(mask), *mask.support(), mask.size(9)]),
        forward_of(f"masks.{name}", lambda: build(**given), lambda: {"coords": torch.rand(5, 2)}),
        Call(f"masks.{name}.size", build(**given).size, lambda: {"n": 9}),
    ]


CALLS = [
    *_field("MLP", hidden=4, norm=True, hidden_omega_0=1.0, weight_norm=True),
    *_field("SIREN", hidden=4, hidden_omega_0=10.0),
    *_field("BSpline", size=4),
    *_field("FourierFilter", hidden=4, omega_0=1.0),
    *_field("GaborFilter", hidden=4),
    *_field("MAGNet", hidden=4),
    *_field("MAGNet", hidden=4, start="flexconv", omega_0=1.0),
    *_field("Morlet", spread=0.5),
    *_field("NJet", order=2, spacing=0.5),
    *_field("RandomFourier", hidden=4, features=3),
    *_field("SharedField", network=fields.RandomFourier(2, 4, hidden=4)),
    *_field("Table", size=4),
    Call("fields.Field", fields.Field, lambda: {"dim": 1, "channels": 2}),
    Call(
        "fields.FilterNetwork",
        fields.FilterNetwork,
        lambda: {"dim": 1, "channels": 2, "hidden": 4, "gamma": torch.ones(4, 4, 1)},
    ),
    Call("fields.bind_field", fields.bind_field, lambda: {"field": fields.SIREN}),
    Call(
        "fields.bind_start",
        fields.bind_start,
        lambda: {"field": fields.MAGNet, "start": "ccnn"},
        unchecked=frozenset(["start"]),
    ),
    Call("fields.build_field", fields.build_field, lambda: {"field": fields.SIREN, "dim": 2, "channels": 3}, _use),
    Call("fields.cardinal_bspline", fields.cardinal_bspline, lambda: {"x": torch.rand(5), "order": 2}),
    Call(
        "fields.fit_field",
        fields.fit_field,
        lambda: {
            "field": fields.SIREN(2, 3, hidden=4),
            "coords": torch.rand(5, 2),
            "values": torch.rand(5, 3),
            "steps": 2,
        },
    ),
    *_mask("GaussianMask", sigma=0.3, mean=0.1, learn_mean=True),
    *_mask("SigmoidMask"),
    *_mask("SteerableMask", sigma=(0.2, 0.3), angle=0.4),
    Call("masks.Mask", masks.Mask, lambda: {"dim": 1}),
]

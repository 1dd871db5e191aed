"""Cases of training steps: the networks of the guide, layers, networks of the authors, and every registered one."""

from __future__ import annotations

from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from _authors import COMPARABLE, PUBLISHED
from _steps import CASES, Case, Noise
from torch import nn

import kernelfield as kf
from kernelfield import fields, groups, layers
from kernelfield.experiments import find_recipe, list_recipes, with_settings
from kernelfield.experiments.bench import points_of
from kernelfield.experiments.datasets import synthetic_data
from kernelfield.experiments.run import make_network
from kernelfield.models.registry import configuration

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from kernelfield.experiments import Recipe

__all__ = ["KINDS", "cases", "recipe_of"]

#: sets of cases: the networks of the guide to speed, layers, those that the authors' code was timed with and that no
#: other set has, and every registered network
KINDS = ("guide", "layers", "published", "networks")


def _layer(name: str, build: Callable[[], nn.Module], *shape: int, batch: int = 64) -> Case:
    return Case(name, batch, build, Noise(shape))


def _layers() -> list[Case]:
    """Return the layers, with as many channels as their networks have."""
    p4, line = groups.Cyclic(4), {"size": 1024, "causal": True}
    on_p4 = {"group": p4, "kernel_size": 3}
    return [
        _layer("CKConv, 32 → 32, 1,024", partial(layers.CKConv, 32, 32, **line), 32, 1024),
        _layer("FlexConv, 32 → 32, 1,024", partial(layers.FlexConv, 32, 32, **line), 32, 1024),
        _layer("SeparableConv, 140, 1,024", partial(layers.SeparableConv, 140, 140, **line), 140, 1024),
        _layer("SeparableConv, 140, 32²", partial(layers.SeparableConv, 140, 140, size=32, dim=2), 140, 32, 32),
        _layer("LiftingConv, p4, 28²", partial(layers.LiftingConv, 1, 10, **on_p4), 1, 28, 28),
        _layer("GroupConv, p4, 28²", partial(layers.GroupConv, 10, 10, **on_p4), 10, 4, 28, 28),
        _layer("SeparableGroupConv, p4, 28²", partial(layers.SeparableGroupConv, 10, 10, **on_p4), 10, 4, 28, 28),
        _layer("AttentiveGroupConv, p4, 28²", partial(layers.AttentiveGroupConv, 10, 10, **on_p4), 10, 4, 28, 28),
        _layer(
            "PartialGroupConv, SE(2), 28²",
            partial(_Lifted, groups.SO2(), layers.PartialGroupConv, samples=8, field=fields.SIREN, kernel_size=7),
            *(1, 28, 28),
        ),
        _layer(
            "GroupConv, scale, 8,000",
            partial(_Lifted, groups.Scale(9), layers.GroupConv, field=fields.BSpline, kernel_size=25),
            *(1, 8000),
            batch=16,
        ),
        _layer(
            "GroupSelfAttention, p4, 28²",
            partial(layers.GroupSelfAttention, 9, 9, group=p4, heads=9, neighborhood=5),
            *(9, 4, 28, 28),
            batch=8,
        ),
        _layer("GroupBatchNorm, p4, 28²", partial(layers.GroupBatchNorm, 10), 10, 4, 28, 28),
        Case(
            "Gridify, 64 points, 9³",
            32,
            partial(layers.Gridify, 64, 64, dim=3, grid=9, neighbors=9),
            lambda batch: {"x": torch.randn(batch, 64, 64), "coords": 2 * torch.rand(batch, 64, 3) - 1},
        ),
    ]


class _Lifted(nn.Module):
    """A lifting convolution, and the layer that is measured on the group."""

    def __init__(self, group: groups.Group, layer: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.lift = layers.LiftingConv(1, 16, group=group, **options)
        self.layer = layer(16, 16, group=group, **options)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.lift(x))


@cache
def _first_recipes() -> dict[str, str]:
    """Return the name of the first recipe of each network that has one."""
    first: dict[str, str] = {}
    for name in list_recipes():
        first.setdefault(find_recipe(name).model["name"], name)
    return first


def recipe_of(model: str) -> Recipe:
    """Return a recipe of a network, or else that of the network with the longest common prefix, with this one in it."""
    first = _first_recipes()
    if model in first:
        return find_recipe(first[model])
    family = configuration(model).build
    akin = [name for name in first if configuration(name).build is family]
    nearest = max(akin, key=lambda name: _common_letters(name, model))
    return with_settings(find_recipe(first[nearest]), [f"model.name={model}"])


def _common_letters(first: str, second: str) -> int:
    """Return the length of the common prefix of two names."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _published() -> list[Case]:
    """Return the networks that the authors' code was timed with, but for those of other sets."""
    others = {*COMPARABLE.values(), *CASES}
    found = []
    for name, step in PUBLISHED.items():
        batch, channels, *space = step.shape
        build = partial(kf.create_model, step.model, in_channels=channels, out_channels=10, **step.options)
        if name not in others:
            found.append(Case(name, batch, build, Noise((channels, *space))))
    return found


def _registered(model: str) -> Case:
    """Return the network of a recipe on noise of the shape of its data."""
    recipe = recipe_of(model)

    def inputs(batch: int) -> dict[str, Tensor]:
        split = synthetic_data(recipe.shape, samples=batch, points=points_of(recipe)).train
        return {"x": split.inputs} | ({} if split.coords is None else {"coords": split.coords})

    return Case(model, recipe.training.batch, partial(make_network, recipe), inputs, recipe.name)


def cases(kinds: tuple[str, ...] = KINDS, only: str = "") -> list[Case]:
    """Return the cases of some kinds whose name contains ``only``, the networks of the guide first."""
    found: list[Case] = []
    if "guide" in kinds:
        found += CASES.values()
    if "layers" in kinds:
        found += _layers()
    if "published" in kinds:
        found += _published()
    if "networks" in kinds:
        found += [_registered(name) for name in _by_family() if only in name]
    return [case for case in found if only in case.name]


def _by_family() -> list[str]:
    """Return the registered networks: the first of each family, then the second of each, and so on."""
    members: dict[Any, list[str]] = {}
    for name in kf.list_models():
        if ":" not in name:  # a name with a colon is a network of the user's own, which no recipe has
            members.setdefault(configuration(name).build, []).append(name)
    return [name for row in zip_longest(*members.values()) for name in row if name is not None]

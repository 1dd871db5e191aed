"""Data by name, and made data that stand in for them."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
from typing import TYPE_CHECKING, Any

import torch

from .. import data as data_package
from .._checks import check_choice
from ..data.base import Data, Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from .recipe import Recipe, Shape

__all__ = ["data_loaders", "load_data", "made_data", "recipe_data"]


def data_loaders() -> dict[str, Callable[..., Data]]:
    """Return every public function of :mod:`kernelfield.data` that returns a :class:`Data`, by name.

    A new kind of data is a new file there; nothing need be listed.

    >>> "digits" in data_loaders()
    True
    """
    found: dict[str, Callable[..., Data]] = {}
    for module in pkgutil.iter_modules(data_package.__path__):
        if module.name.startswith("_"):
            continue
        loaded = importlib.import_module(f"{data_package.__name__}.{module.name}")
        for name in getattr(loaded, "__all__", ()):
            function = getattr(loaded, name)
            if inspect.isfunction(function) and _is_loader(inspect.signature(function)):
                found[name] = function
    return dict(sorted(found.items()))


def _is_loader(signature: inspect.Signature) -> bool:
    """Return whether a function makes data from nothing, or from a folder."""
    needed = {name for name, p in signature.parameters.items() if p.default is p.empty}
    return signature.return_annotation in ("Data", Data) and needed <= {"root"}


def load_data(name: str, **options: Any) -> Data:
    """Return the named data.

    Args:
        name: one of :func:`data_loaders`.
        options: arguments of the loader.

    >>> load_data("digit")
    Traceback (most recent call last):
    ValueError: data must be one of ..., got 'digit'; the closest is 'digits'
    """
    loaders = data_loaders()
    if name not in loaders:
        hint = _closest(name, list(loaders))
        raise ValueError(f"data must be one of {', '.join(loaders)}, got {name!r}{hint}")
    parameters = inspect.signature(loaders[name]).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in parameters and not anything:
            hint = _closest(option, list(parameters))
            raise ValueError(f"data.{option} is no option of {name}, which takes {', '.join(parameters)}{hint}")
    if "root" in parameters and parameters["root"].default is inspect.Parameter.empty:
        options.setdefault("root", None)
    return loaders[name](**options)


def recipe_data(
    recipe: Recipe, *, folder: str | None = None, download: bool = False, made: bool = False, check: bool = True
) -> Data:
    """Return the data of a recipe, checked against the shape it gives.

    Args:
        recipe: the recipe.
        folder: where the files are, for loaders that read some; the recipe's own ``data.root`` counts more.
        download: let such a loader fetch what is missing.
        made: made data of the same shape instead.
        check: compare with the recipe's shape.
    """
    if made:
        return made_data(recipe.shape, samples=2 * min(recipe.training.batch, 4))
    options = {key: value for key, value in recipe.data.items() if key != "name"}
    name = recipe.data["name"]
    loader = data_loaders().get(name)
    taken = inspect.signature(loader).parameters if loader is not None else {}
    # A root that may be left out is another way to get the data, for the recipe to choose.
    if folder is not None and "root" in taken and taken["root"].default is inspect.Parameter.empty:
        options.setdefault("root", folder)
    if download and "download" in taken:
        options.setdefault("download", True)
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    data = load_data(name, **options)
    return _check_shape(data, recipe) if check else data


def _check_shape(data: Data, recipe: Recipe) -> Data:
    shape = recipe.shape
    wanted = (shape.in_channels, shape.out_channels, tuple(shape.size), shape.task)
    got = (data.in_channels, data.out_channels, tuple(data.size), data.task)
    if wanted != got:
        names = ("in_channels", "out_channels", "size", "task")
        lines = [f"{n} {w} in the recipe, {g} in the data" for n, w, g in zip(names, wanted, got, strict=True) if w != g]
        raise ValueError(f"shape must be that of data {data.name!r}: {'; '.join(lines)}")
    return data


def made_data(shape: Shape, samples: int = 8, seed: int = 0) -> Data:
    """Return noise of a shape, with targets to match: what a recipe is tried on where its data are not at hand.

    >>> from kernelfield.training.recipe import Shape
    >>> data = made_data(Shape(in_channels=1, out_channels=10, size=[28, 28]))
    >>> data.train.inputs.shape, data.train.target.shape
    (torch.Size([8, 1, 28, 28]), torch.Size([8]))
    """
    check_choice("task", shape.task, tuple(_TARGETS))
    generator = torch.Generator().manual_seed(seed)
    size = tuple(shape.size)
    splits = [_made_split(shape, samples, size, generator) for _ in range(3)]
    return Data(
        name="made",
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        dim=len(size),
        size=size,
        task=shape.task,
        vocabulary=shape.vocabulary,
    )


def _made_split(shape: Shape, n: int, size: tuple[int, ...], generator: torch.Generator) -> Split:
    space = (min(64, math.prod(size)),) if shape.irregular else size
    if shape.vocabulary is not None:
        inputs = torch.randint(shape.vocabulary, (n, *space), generator=generator)
    else:
        inputs = torch.randn(n, shape.in_channels, *space, generator=generator)
    target = _TARGETS[shape.task](n, shape.out_channels, space, generator)
    coords = mask = None
    if shape.irregular:
        coords = torch.rand(n, *space, len(size), generator=generator) * torch.tensor(size, dtype=torch.float32)
        coords = coords.sort(dim=1).values if len(size) == 1 else coords
        mask = torch.rand(n, *space, generator=generator) > 0.2
    return Split(inputs, target, coords=coords, mask=mask)


def _classes(n: int, out: int, space: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(out, (n, *space), generator=generator)


_TARGETS: dict[str, Callable[..., torch.Tensor]] = {
    "classification": lambda n, out, _, g: _classes(n, out, (), g),
    "multilabel": lambda n, out, _, g: _classes(n, 2, (out,), g).float(),
    "regression": lambda n, out, _, g: torch.randn(n, out, generator=g),
    "dense-regression": lambda n, out, space, g: torch.randn(n, out, *space, generator=g),
    "segmentation": _classes,
    "language": _classes,
}


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; the closest is {close[0]!r}" if close else ""

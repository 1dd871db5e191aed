"""The data of a recipe, real or synthetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._checks import check_choice
from .._kinds import POSITIVE, TEXT, Int, Number, PerAxis
from ..data.base import Data, Split
from ..data.registry import describe, list_data, load
from ..data.transforms.augment_series import augment_series
from ..data.transforms.batch import Chain, Subsample, augments
from ..data.transforms.drop_samples import drop_samples
from ..data.transforms.to_sequence import map_splits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..data.shape import DataShape
    from .recipe import Recipe

__all__ = [
    "describe_input",
    "image_layout",
    "load_source",
    "reads_files",
    "recipe_data",
    "sampling_rate",
    "synthetic_data",
    "take_share",
]

#: sampling rates in Hz of sounds whose loaders have no such option
_RATES = {"fsdd": 8_000, "speech_commands": 16_000}


@checked(folder=TEXT | None)
def recipe_data(
    recipe: Recipe, *, folder: str | None = None, download: bool = False, synthetic: bool = False, check: bool = True
) -> Data:
    """Return the data of a recipe, checked against its shape.

    Section ``data`` may hold the keys of :data:`~kernelfield.experiments.recipe.GENERAL` besides the options of the
    loader.

    Args:
        recipe: the recipe.
        folder: folder of the files, for loaders that read files; replaces ``data.root`` of the recipe.
        download: whether the loader may download missing files.
        synthetic: whether to return synthetic data of the same shape instead.
        check: whether to compare the data with the shape of the recipe.
    """
    if synthetic:
        return synthetic_data(recipe.shape, samples=2 * min(recipe.training.batch, 4))
    data = load_source(recipe.data, f"data of recipe {recipe.name!r}", folder=folder, download=download)
    return _check_shape(data, recipe) if check else data


@checked(where=TEXT, folder=TEXT | None)
def load_source(source: dict[str, Any], where: str, *, folder: str | None = None, download: bool = False) -> Data:
    """Return the data of section ``data`` of a recipe.

    Args:
        source: name of the loader, its options, and the other keys of section ``data``.
        where: description of the data in errors.
        folder: see :func:`recipe_data`.
        download: see :func:`recipe_data`.
    """
    options: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in source.items() if key != "name"
    }
    dropped, step, every, share = (options.pop(key, None) for key in ("drop", "step", "subsample", "share"))
    known = describe(source["name"])
    # Loaders of images, and of sounds as mel bands, have their own augmentation.
    loader_augments = "augment" in known.options and not isinstance(options.get("augment"), dict)
    augment = options.get("augment", False) if loader_augments else options.pop("augment", False)
    if folder is not None and reads_files(source):
        options["root"] = folder
    if download and known.download:
        options.setdefault("download", True)
    try:
        data = load(source["name"], **options)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
    if share is not None:
        data = take_share(data, share, where)
    if augment and not augments(data.train.prepare):
        data = augment_series(data, augment)
    if every is not None:
        data = _subsample(data, every, where)
    if step is not None:
        if not PerAxis(POSITIVE).accepts(step, {}):
            raise ValueError(f"{where}: step must be a finite number above 0, or one per axis, got {step!r}")
        data = map_splits(data, lambda split: replace(split, step=step))
    return data if dropped is None else drop_samples(data, dropped, observed=True)


def reads_files(source: dict[str, Any]) -> bool:
    """Return whether the data of a recipe's section ``data`` are read from a folder or file.

    If the root is optional, the recipe decides whether the loader reads files.

    >>> reads_files({"name": "mnist"}), reads_files({"name": "digits"})
    (True, False)
    """
    return "root" in source or describe(source["name"]).root == "a folder or file"


def sampling_rate(recipe: Recipe) -> float | None:
    """Return the sampling rate of a recipe's sounds in Hz; None for other data.

    >>> from dataclasses import replace
    >>> from .recipe import find_recipe
    >>> digits = find_recipe("digits")
    >>> sampling_rate(digits), sampling_rate(replace(digits, data={"name": "wav_folder"}))
    (None, 16000.0)
    """
    options = _loader_options(recipe)
    rate = options.get("rate") or _RATES.get(recipe.data["name"])
    every = options.get("every") or 1
    return None if rate is None or options.get("mfcc") else float(rate) / every


def image_layout(recipe: Recipe) -> dict[str, Any] | None:
    """Return the size of images that a recipe reads as sequences of pixels, and the seed of the pixel order.

    The result is None for other data.

    >>> from .recipe import find_recipe
    >>> image_layout(find_recipe("digits"))
    {'image': [16, 16], 'permute': None}
    """
    options = _loader_options(recipe)
    permute = options.get("permute")
    if not (options.get("sequence") or permute is not None or str(options.get("form", "")).endswith("sequence")):
        return None
    side = math.isqrt(recipe.shape.size[0])
    if len(recipe.shape.size) != 1 or side * side != recipe.shape.size[0]:
        return None
    return {"image": [side, side], "permute": permute}


def _loader_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of a recipe's loader, also those that the recipe leaves at their defaults."""
    # A data set of one's own may be unknown in this process, or given as an object.
    known = recipe.data["name"] in list_data()
    return {**(describe(recipe.data["name"]).options if known else {}), **recipe.data}


def describe_input(recipe: Recipe, stored: dict[str, Any] | None) -> dict[str, Any]:
    """Return the entries of a network's description that :func:`kernelfield.data.preprocessing` reads.

    Args:
        recipe: recipe of the training.
        stored: metadata of the training data; None if their preparation cannot be stored.
    """
    # If images are stored, they become sequences in their preparation.
    flat = stored is not None and len(stored["stored"]["inputs"]["shape"]) == 2
    return {
        "task": recipe.shape.task,
        "classes": [] if stored is None else list(stored["classes"]),
        "preprocessing": stored,
        "layout": image_layout(recipe) if flat else None,
        "rate": sampling_rate(recipe),
    }


def take_share(data: Data, share: float, where: str = "data") -> Data:
    """Keep a share of the training samples, the same share of each class; larger shares include smaller ones.

    Args:
        data: the data set.
        share: share to keep, above 0 and at most 1.
        where: description of the data in errors.
    """
    if not Number(0, 1, without_low=True).accepts(share, {}):
        raise ValueError(f"{where}: share must be above 0 and at most 1, got {share!r}")
    target, count = data.train.target.cpu(), len(data.train)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    if data.task == "classification" and target.dim() == 1:
        labels = target[order]
        kept = [order[labels == label] for label in labels.unique()]
        chosen = torch.cat([each[: max(1, round(share * len(each)))] for each in kept])
    else:
        chosen = order[: max(1, round(share * count))]
    return replace(data, train=data.train.take(chosen.sort().values))


def _subsample(data: Data, every: int, where: str) -> Data:
    if not Int(1).accepts(every, {}):
        raise ValueError(f"{where}: subsample must be an int of at least 1, got {every!r}")
    if (
        data.dim != 1
        or data.train.coords is not None
        or data.task not in ("classification", "multilabel", "regression")
    ):
        raise ValueError(f"{where}: subsample must be given only for sequences with one target each")

    def change(split: Split) -> Split:
        steps = (Subsample(every),) if split.prepare is None else (split.prepare, Subsample(every))
        return replace(split, prepare=Chain(steps))

    return map_splits(data, change, size=(-(-data.size[0] // every),))


def _check_shape(data: Data, recipe: Recipe) -> Data:
    shape = recipe.shape
    wanted = (shape.in_channels, shape.out_channels, tuple(shape.size), shape.task, shape.queries > 0)
    got = (data.in_channels, data.out_channels, tuple(data.size), data.task, data.train.at is not None)
    if wanted != got:
        names = ("in_channels", "out_channels", "size", "task", "queries")
        lines = [
            f"{n} {w} in the recipe, {g} in the data" for n, w, g in zip(names, wanted, got, strict=True) if w != g
        ]
        raise ValueError(f"shape must match data {data.name!r}: {'; '.join(lines)}")
    return data


@checked(points=Int(1) | None)
def synthetic_data(shape: DataShape, samples: int = 8, seed: int = 0, *, points: int | None = None) -> Data:
    """Return noise of a given shape with random targets, to try a recipe without its data.

    Args:
        shape: shape of the data.
        samples: number of samples per split.
        seed: seed of the noise.
        points: number of points per irregular sample; by default at most 64.

    >>> from kernelfield.data.shape import DataShape
    >>> data = synthetic_data(DataShape(in_channels=1, out_channels=10, size=[28, 28]))
    >>> data.train.inputs.shape, data.train.target.shape
    (torch.Size([8, 1, 28, 28]), torch.Size([8]))
    """
    check_choice("task", shape.task, tuple(_TARGETS))
    generator = torch.Generator().manual_seed(seed)
    size = tuple(shape.size)
    count = points or min(64, math.prod(size))
    splits = [_synthetic_split(shape, samples, size, count, generator) for _ in range(3)]
    return Data(
        name="synthetic",
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        dim=len(size),
        size=size,
        task=shape.task,
        vocabulary=shape.vocabulary,
        # Labels of points are the parts of a single kind of object.
        parts=(tuple(range(shape.out_channels)),) if shape.task == "segmentation" and shape.irregular else (),
    )


def _synthetic_split(shape: DataShape, n: int, size: tuple[int, ...], points: int, generator: torch.Generator) -> Split:
    space = (points,) if shape.irregular else size
    if shape.vocabulary is not None:
        inputs = torch.randint(shape.vocabulary, (n, *space), generator=generator)
    else:
        inputs = torch.randn(n, shape.in_channels, *space, generator=generator)
    asked = (min(64, shape.queries),)
    target = _TARGETS[shape.task](n, shape.out_channels, asked if shape.queries else space, generator)
    coords = mask = at = None
    if shape.irregular:
        coords = _coordinates(n, space[0], size, generator)
        mask = torch.rand(n, *space, generator=generator) > 0.2
    if shape.queries:
        at = _coordinates(n, asked[0], size, generator)
    return Split(inputs, target, coords=coords, mask=mask, at=at)


def _coordinates(n: int, points: int, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return random coordinates (n, points, dim) in a box; times are sorted."""
    places = torch.rand(n, points, len(size), generator=generator) * torch.tensor(size, dtype=torch.float32)
    return places.sort(dim=1).values if len(size) == 1 else places


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

"""Shapes of data sets, computed from their options before any file is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .._arguments import checked_fields
from .._kinds import Choice, Int, ListOf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "TASKS",
    "DataShape",
    "chair_monitor",
    "cifar",
    "fixed",
    "images",
    "magnatagatune",
    "oscillators",
    "physionet2012",
    "points",
    "recordings",
    "series",
    "speech",
    "tokens",
]

TASKS = ("classification", "multilabel", "regression", "dense-regression", "segmentation", "language")


@checked_fields(size=ListOf(Int()), task=Choice(*TASKS), queries=Int(0))
@dataclass(frozen=True)
class DataShape:
    """Channels, size and task of a data set.

    Args:
        in_channels: channels of the inputs.
        out_channels: number of predictions.
        size: length of the inputs along each axis, in training steps.
        task: kind of target, one of ``TASKS``.
        irregular: whether samples lie at irregular times or points, with coordinates and a mask.
        vocabulary: number of tokens, if the inputs are (batch, length) token ids.
        queries: number of coordinates at which the network predicts; 0 if targets belong to the samples themselves.

    >>> DataShape(in_channels=3, out_channels=10, size=[32, 32]).task
    'classification'
    """

    in_channels: int
    out_channels: int
    size: list[int]
    task: str = "classification"
    irregular: bool = False
    vocabulary: int | None = None
    queries: int = 0

    choices: ClassVar[dict[str, tuple[str, ...]]] = {"task": TASKS}


if TYPE_CHECKING:
    ShapeOf = Callable[[dict[str, Any]], DataShape]


def fixed(in_channels: int, out_channels: int, *size: int, **more: Any) -> ShapeOf:
    """Return the shape function of a data set whose options do not change its shape.

    >>> fixed(3, 10, 96, 96)({}).size
    [96, 96]
    """
    return lambda _: DataShape(in_channels, out_channels, list(size), **more)


def images(in_channels: int, out_channels: int, task: str = "classification") -> ShapeOf:
    """Return the shape function of square images, read pixel by pixel under ``sequence`` or ``permute``.

    >>> images(1, 10)({"resolution": 16, "sequence": True}).size
    [256]
    """

    def shape(options: dict[str, Any]) -> DataShape:
        n = options["resolution"]
        flat = options.get("sequence", False) or options.get("permute") is not None
        channels = in_channels if options.get("coordinates", True) else 1
        return DataShape(channels, out_channels, [n * n] if flat else [n, n], task)

    return shape


def cifar(classes: int) -> ShapeOf:
    """Return the shape function of CIFAR, in each of its forms.

    >>> cifar(10)({"form": "noise-padded", "resolution": 32}).size
    [1000]
    """

    def shape(options: dict[str, Any]) -> DataShape:
        form, n = options["form"], options["resolution"]
        if form == "noise-padded":
            return DataShape(3 * n, classes, [1000])
        channels = 1 if form.startswith("gray") else 3
        return DataShape(channels, classes, [n * n] if form.endswith("sequence") else [n, n])

    return shape


def series(in_channels: int, out_channels: int, option: str, *, more: int = 0, **rest: Any) -> ShapeOf:
    """Return the shape function of series whose length is an option of the data set plus ``more`` steps.

    >>> series(1, 10, "T", more=20)({"T": 100}).size
    [120]
    """
    return lambda options: DataShape(in_channels, out_channels, [int(options[option]) + more], **rest)


def tokens(out_channels: int, option: str, vocabulary: int) -> ShapeOf:
    """Return the shape function of classified texts: token ids or, with ``form="values"``, one channel of numbers.

    >>> tokens(2, "length", 256)({"length": 4096, "form": "values"}).vocabulary is None
    True
    """

    def shape(options: dict[str, Any]) -> DataShape:
        known = vocabulary if options["form"] == "tokens" else None
        return DataShape(1, out_channels, [int(options[option])], vocabulary=known)

    return shape


def token_pairs(out_channels: int, option: str, vocabulary: int) -> ShapeOf:
    """Return the shape function of two sequences of tokens, one after the other.

    >>> token_pairs(2, "length", 256)({"length": 4000}).size
    [8000]
    """
    return lambda options: DataShape(1, out_channels, [2 * int(options[option])], vocabulary=vocabulary)


def points(out_channels: int, dim: int = 3, task: str = "classification", in_channels: int = 3) -> ShapeOf:
    """Return the shape function of point clouds in [-1, 1]^dim, with three more channels under ``normals``.

    >>> points(40)({"normals": True}).in_channels
    6
    """

    def shape(options: dict[str, Any]) -> DataShape:
        channels = in_channels + (3 if options.get("normals", False) else 0)
        return DataShape(channels, out_channels, [2] * options.get("dim", dim), task, irregular=True)

    return shape


def speech(options: dict[str, Any]) -> DataShape:
    """Return the shape of spoken words: one second at 16 kHz, or 161 frames of 20 cepstral coefficients.

    >>> speech({"mfcc": False, "words": ["yes", "no"]}).size
    [16000]
    """
    channels, size = (20, 161) if options["mfcc"] else (1, 16000)
    return DataShape(channels, len(options["words"]), [size])


def recordings(options: dict[str, Any]) -> DataShape:
    """Return the shape of recordings of two classes with ``channels`` channels of ``length`` samples.

    >>> recordings({"channels": 6, "length": 300_000}).in_channels
    6
    """
    return DataShape(options["channels"], 2, [options["length"]])


def physionet2012(options: dict[str, Any]) -> DataShape:
    """Return the shape of 48 hours in intensive care, at irregular times in steps of ``minutes``.

    >>> physionet2012({"minutes": 30.0}).size
    [97]
    """
    return DataShape(81, 1, [int(48 * 60 / options["minutes"]) + 1], "multilabel", irregular=True)


def oscillators(options: dict[str, Any]) -> DataShape:
    """Return the shape of oscillators over ``length`` steps, with predictions at ``asked`` times.

    >>> oscillators({"length": 100, "asked": 30}).queries
    30
    """
    return DataShape(2, 1, [options["length"]], "dense-regression", irregular=True, queries=options["asked"])


def magnatagatune(options: dict[str, Any]) -> DataShape:
    """Return the shape of pieces of music with ``tags`` tags.

    >>> magnatagatune({"tags": 50, "length": 59049}).out_channels
    50
    """
    return DataShape(1, options["tags"], [options["length"]], "multilabel")


def chair_monitor(options: dict[str, Any]) -> DataShape:
    """Return the shape of chairs and monitors, as points or as 32³ voxels.

    >>> chair_monitor({"form": "voxels"}).size
    [32, 32, 32]
    """
    if options["form"] == "points":
        return DataShape(3, 2, [2, 2, 2], irregular=True)
    return DataShape(1, 2, [32, 32, 32])

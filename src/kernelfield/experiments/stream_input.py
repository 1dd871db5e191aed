"""Predictions of a run's network while its input arrives, from a file or from standard input."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import ANY, POSITIVE, TEXT, Choice
from ..data.base import Batch
from ..data.io.arrays import read_array
from ..data.preprocessing import in_stored_range
from ..streaming import Stream
from ..streaming.causality import check_causal
from .predict import TrainedRun
from .settings import SELECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..data.base import Data
    from .recipe import Recipe

__all__ = ["heard_accuracy", "stream_input"]


@checked(step=POSITIVE, select=Choice(*SELECT) | None, folder=TEXT | None, lines=ANY)
def stream_input(
    run: str | Path,
    source: str | Path,
    *,
    every: int = 1,
    step: float = 1.0,
    raw: bool = False,
    select: str | None = None,
    folder: str | None = None,
    lines: Iterable[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a prediction after every ``every`` samples of the input, as they arrive.

    Args:
        run: folder of the run.
        source: a sound, a .csv table with a row per step and a column per channel, a .npy array (channels, length), or
            "-" for lines of such a table on standard input.
        every: number of samples between predictions; one more follows the last sample.
        step: sampling step of the input in training steps.
        raw: whether to use samples without the preparation of the run.
        select: weights to use: "best" by validation, "last", or "average"; by default those that the recipe selects.
        folder: folder of the training data, for a run that does not store its preprocessing.
        lines: lines to read instead of standard input.

    Yields:
        The number of samples so far, and a class with its probability, or values.
    """
    opened = TrainedRun(run, select=select, data=folder)
    recipe = opened.recipe
    if recipe.shape.vocabulary is not None or len(recipe.shape.size) != 1 or recipe.shape.irregular:
        raise ValueError(f"run must be on signals with a regular time grid to stream, got {recipe.name}")
    online = Stream(opened.network, step=step)
    prepare = None if raw else _pointwise_preparation(opened.data, recipe)
    names = opened.class_names(recipe.shape.out_channels)
    scale = opened.data.test.batch(slice(0, 0)).scale if recipe.data.get("standardize") else None
    for block in _blocks(source, recipe, None if raw else opened.data, every, lines):
        if block.shape[1] != recipe.shape.in_channels:
            raise ValueError(f"{source} must hold {recipe.shape.in_channels} channels, got {block.shape[1]}")
        if not bool(block.isfinite().all()):
            first = online.samples[0] + int((~block.isfinite()).any(dim=1).flatten().nonzero()[0]) + 1
            raise ValueError(f"{source} must hold finite numbers, got NaN or infinity in sample {first}")
        outputs = online.push(block if prepare is None else prepare(block))
        yield {"samples": online.samples[0], **_describe(outputs[..., -1], recipe, names, scale)}


def _describe(outputs: Tensor, recipe: Recipe, names: tuple[str, ...], scale: Any) -> dict[str, Any]:
    """Return a prediction (1, out) in words, or in the unit of the targets."""
    if recipe.shape.task in ("regression", "dense-regression"):
        return {"values": (outputs if scale is None else scale.undo(outputs))[0].tolist()}
    outputs = outputs[0]
    if recipe.shape.task in ("classification", "segmentation", "language"):
        share, index = outputs.softmax(dim=0).max(dim=0)
        return {"class": names[int(index)], "probability": round(float(share), 6)}
    return {"probabilities": outputs.sigmoid().tolist()}


def _blocks(
    source: str | Path, recipe: Recipe, data: Data | None, every: int, lines: Iterable[str] | None
) -> Iterator[Tensor]:
    """Yield (1, channels, n) blocks of at most ``every`` samples, on the scale of ``data`` if these are given."""
    from ..data.sets.audio import sound_folder as sound  # noqa: PLC0415

    path = Path(source)
    if str(source) == "-":
        yield from _as_stored(_lines(sys.stdin if lines is None else lines, every), data)
    elif not path.exists():
        raise FileNotFoundError(f"file must be an existing file, got {path}")
    elif path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8") as file:
            yield from _as_stored(_lines(file, every), data)
    elif path.suffix.lower() == ".npy":
        array = torch.from_numpy(read_array(path))
        array = array.view(1, *array.shape) if array.dim() == 2 else array.view(1, 1, -1) if array.dim() == 1 else array
        array = array.float() if data is None else in_stored_range(array, data, f"file {path.name}")
        yield from array.split(every, dim=-1)
    elif path.suffix.lower() in sound.ENDINGS:
        samples = sound.read_sound(path, recipe.data.get("rate"))
        samples = samples if data is None else in_stored_range(samples.clamp(-1, 1), data, f"file {path.name}")
        yield from samples.view(1, 1, -1).split(every, dim=-1)
    else:
        raise ValueError(f"file must be a sound, a .csv, a .npy or - for standard input, got {path.name}")


def _as_stored(blocks: Iterable[Tensor], data: Data | None) -> Iterator[Tensor]:
    """Yield blocks of a table; raise a ValueError for fractions if the data set stores integers.

    Some lines do not tell the scale of the rest, as a whole file does, so floats in [-1, 1] are not scaled.
    """
    stored = torch.float32 if data is None else data.test.inputs.dtype
    for block in blocks:
        if not stored.is_floating_point and bool((block.isfinite() & (block != block.round())).any()):
            kind = str(stored).removeprefix("torch.")
            raise ValueError(f"file must hold {kind} numbers, like the data of the run, got {block.flatten()[0]:g}")
        yield block


def _lines(lines: Iterable[str], every: int) -> Iterator[Tensor]:
    """Yield the rows of a table as they arrive; skip a first line that holds column names."""
    rows: list[list[float]] = []
    for number, line in enumerate(lines, start=1):
        cells = line.replace(",", " ").replace(";", " ").split()
        try:
            row = [float(cell) for cell in cells]
        except ValueError:
            if number == 1:
                continue
            raise ValueError(f"file must hold numbers, got {line.strip()!r} in line {number}") from None
        if not row:
            continue
        if rows and len(row) != len(rows[0]):
            raise ValueError(f"file must have the same number of values in each line, got {len(row)} in line {number}")
        rows.append(row)
        if len(rows) == every:
            yield torch.tensor(rows).mT.unsqueeze(0)
            rows = []
    if rows:
        yield torch.tensor(rows).mT.unsqueeze(0)


def _pointwise_preparation(data: Data, recipe: Recipe) -> Any:
    """Return the preparation of the test samples; raise a ValueError unless it treats each time step separately."""
    chosen = data.test.prepare
    if chosen is None:
        return None

    def prepare(block: Tensor) -> Tensor:
        return chosen(Batch(block.clone()), False).inputs

    example = torch.randn(1, recipe.shape.in_channels, *recipe.shape.size)
    half = example.shape[-1] // 2
    try:
        whole, parts = prepare(example), [prepare(example[..., :half]), prepare(example[..., half:])]
    except (ValueError, RuntimeError):  # it does not accept parts of a sample
        whole, parts = example[..., :0], [example]
    if whole.shape != example.shape or not torch.allclose(whole, torch.cat(parts, dim=-1), atol=1e-5):
        raise ValueError(
            "raw must be True for this run, whose preparation needs complete samples; stream prepared samples"
        )
    return prepare


@torch.no_grad()
def heard_accuracy(
    network: torch.nn.Module, data: Data, *, points: int = 20, most: int = 500
) -> dict[str, list[float]] | None:
    """Return the accuracy on test samples against the share of each sample that the network has received.

    Args:
        network: the network, on the CPU.
        data: data of the network.
        points: number of shares at which to measure.
        most: largest number of test samples to use.

    Returns:
        ``heard``, the received shares, and ``accuracy`` after each; None for networks that cannot stream, and for
        samples that are not signals in time without gaps.
    """
    split = data.test
    if data.dim != 1 or split.inputs.dim() != 3 or split.coords is not None or split.mask is not None:
        return None
    try:
        check_causal(network)
    except ValueError:
        return None
    batch = split.batch(slice(0, most)).to("cpu")
    if batch.target is None or batch.target.dim() != 1 or batch.target.is_floating_point():
        return None
    step = float(batch.step if isinstance(batch.step, (int, float)) else batch.step[0])
    online, length = Stream(network, len(batch), step=step), batch.inputs.shape[-1]
    cuts = [round(length * i / points) for i in range(points + 1)]
    found: dict[str, list[float]] = {"heard": [], "accuracy": []}
    for a, b in itertools.pairwise(cuts):
        if b > a:
            outputs = online.push(batch.inputs[..., a:b])[..., -1]
            found["heard"].append(b / length)
            found["accuracy"].append(float((outputs.argmax(dim=1) == batch.target).float().mean()))
    return found

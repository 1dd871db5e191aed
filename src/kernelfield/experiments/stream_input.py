"""Predictions of a run's network while its input arrives, from a file or from standard input."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import ANY, POSITIVE, TEXT, Choice
from ..data.base import Batch, one_step
from ..data.io.arrays import read_array
from ..data.io.cells import number
from ..data.preprocessing import compare_values, in_stored_range
from ..data.sets.series.step_table import are_words, channel_order, compare_unnamed
from ..streaming import Stream
from .datasets import sampling_rate
from .predict import TrainedRun
from .settings import SELECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..data.base import Data
    from .recipe import Recipe

__all__ = ["stream_input"]

#: number of samples at the beginning of a stream whose unit is compared with that of training
COMPARED = 200


@checked(step=POSITIVE | None, select=Choice(*SELECT) | None, folder=TEXT | None, lines=ANY)
def stream_input(
    run: str | Path,
    source: str | Path,
    *,
    every: int = 1,
    step: float | None = None,
    raw: bool = False,
    select: str | None = None,
    folder: str | None = None,
    lines: Iterable[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a prediction after every ``every`` samples of the input, as they arrive.

    Args:
        run: folder of the run.
        source: a sound, a .csv table with a row per step and a column per channel, a .npy array (channels, length), or
            "-" for lines of such a table on standard input. A first line of names gives the order of the channels.
        every: number of samples between predictions; one more follows the last sample.
        step: sampling step of the input in training steps; by default that of the run's data.
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
    online = Stream(opened.network, step=one_step(opened.step) if step is None else step)
    prepare = None if raw else _pointwise_preparation(opened.data, recipe)
    scale = opened.raw_scale() if raw else None
    data = None if raw else opened.data
    blocks = _blocks(source, recipe, data, every, lines)
    for block in _not_empty(blocks if data is None else _compared(blocks, data, source), source):
        if block.shape[1] != recipe.shape.in_channels:
            count = recipe.shape.in_channels
            raise ValueError(f"{source} must hold {count} values per time step (its channels), got {block.shape[1]}")
        if not bool(block.isfinite().all()):
            first = online.samples[0] + int((~block.isfinite()).any(dim=1).flatten().nonzero()[0]) + 1
            raise ValueError(f"{source} must hold finite numbers, got NaN or infinity in sample {first}")
        ready = Batch(block, scale=scale) if prepare is None else prepare(block)
        outputs = online.push(ready.inputs)
        yield {"samples": online.samples[0], **opened.describe_step(outputs[:, :, -1], ready.scale)}


def _blocks(
    source: str | Path, recipe: Recipe, data: Data | None, every: int, lines: Iterable[str] | None
) -> Iterator[Tensor]:
    """Yield (1, channels, n) blocks of at most ``every`` samples, on the scale of ``data`` if these are given."""
    from ..data.sets.audio import sound_folder as sound  # noqa: PLC0415

    path, channels = Path(source), () if data is None else data.channels
    if str(source) == "-":
        rows = _lines(sys.stdin if lines is None else lines, every, channels, "standard input")
        yield from _as_stored(rows, data)
    elif not path.exists():
        raise FileNotFoundError(f"file must be an existing file, got {path}")
    elif path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig") as file:
            yield from _as_stored(_lines(file, every, channels, path), data)
    elif path.suffix.lower() == ".npy":
        array = torch.from_numpy(read_array(path))
        array = array.view(1, *array.shape) if array.dim() == 2 else array.view(1, 1, -1) if array.dim() == 1 else array
        array = array.float() if data is None else in_stored_range(array, data, f"file {path.name}")
        yield from array.split(every, dim=-1)
    elif path.suffix.lower() in sound.ENDINGS:
        rate = sampling_rate(recipe)
        if rate is None:
            raise ValueError(f"file must not be a sound unless the run is on sounds, got {path.name}")
        samples = sound.read_sound(path, round(rate))
        samples = samples if data is None else in_stored_range(samples.clamp(-1, 1), data, f"file {path.name}")
        yield from samples.view(1, 1, -1).split(every, dim=-1)
    else:
        raise ValueError(f"file must be a sound, a .csv, a .npy or - for standard input, got {path.name}")


def _not_empty(blocks: Iterable[Tensor], source: str | Path) -> Iterator[Tensor]:
    """Yield blocks; raise a ValueError if there are none, since no predictions look like a broken pipe."""
    block = None
    for block in blocks:
        yield block
    if block is None:
        where = "standard input" if str(source) == "-" else str(source)
        raise ValueError(f"{where} must hold at least one sample, found none")


def _compared(blocks: Iterable[Tensor], data: Data, source: str | Path) -> Iterator[Tensor]:
    """Yield blocks; warn once if the first samples have another unit than in training, as :func:`compare_values` does.

    Single samples do not tell: of values around zero, many are small.
    """
    where = "standard input" if str(source) == "-" else f"file {Path(source).name}"
    held: list[Tensor] | None = []
    for block in blocks:
        if held is not None:
            held.append(block)
            if sum(part.shape[-1] for part in held) >= COMPARED:
                compare_values(Batch(torch.cat(held, dim=-1)), data, where)
                held = None
        yield block
    if held:
        compare_values(Batch(torch.cat(held, dim=-1)), data, where)


def _as_stored(blocks: Iterable[Tensor], data: Data | None) -> Iterator[Tensor]:
    """Yield blocks of a table; raise a ValueError for fractions if the data set stores integers.

    The first lines do not show the scale of all values, as a whole file does, so floats in [-1, 1] are not scaled.
    """
    stored = torch.float32 if data is None else data.test.inputs.dtype
    for block in blocks:
        if not stored.is_floating_point and bool((block.isfinite() & (block != block.round())).any()):
            kind = str(stored).removeprefix("torch.")
            raise ValueError(f"file must hold {kind} numbers, like the data of the run, got {block.flatten()[0]:g}")
        yield block


def _lines(lines: Iterable[str], every: int, channels: Sequence[str], where: str | Path) -> Iterator[Tensor]:
    """Yield the rows of a table as they arrive; a first line of column names gives the order of the channels."""
    order: list[int] | None = None
    rows: list[list[float]] = []
    for i, line in enumerate(lines, start=1):
        if not line.strip("\ufeff \t\r\n"):
            continue
        cells = _cells(line.strip("\ufeff \t\r\n"))
        if i == 1 and are_words(cells):
            order = channel_order(cells, channels, where)
            continue
        if i == 1:
            compare_unnamed(channels, where)
        row = [number(cell, Path(where), i, "a value", column=j) for j, cell in enumerate(cells, 1)]
        if rows and len(row) != len(rows[0]):
            raise ValueError(f"file must have the same number of values in each line, got {len(row)} in line {i}")
        rows.append(row)
        if len(rows) == every:
            yield _block(rows, order)
            rows = []
    if rows:
        yield _block(rows, order)


def _cells(line: str) -> list[str]:
    """Return the cells of a line, perhaps in quotes; semicolons, commas, tabs or blanks separate them."""
    mark = next((mark for mark in ";,\t" if mark in line), " ")
    (cells,) = csv.reader([line], delimiter=mark, skipinitialspace=True)
    return [cell.strip() for cell in cells if mark != " " or cell]


def _block(rows: list[list[float]], order: list[int] | None) -> Tensor:
    block = torch.tensor(rows).mT.unsqueeze(0)
    return block if order is None or len(order) != block.shape[1] else block[:, order]


def _pointwise_preparation(data: Data, recipe: Recipe) -> Any:
    """Return the preparation of the test samples; raise a ValueError unless it treats each time step separately."""
    chosen = data.test.prepare
    if chosen is None:
        return None

    def prepare(block: Tensor) -> Batch:
        return chosen(Batch(block.clone()), False)

    example = torch.randn(1, recipe.shape.in_channels, *recipe.shape.size)
    half = example.shape[-1] // 2
    try:
        whole, *parts = (prepare(x).inputs for x in (example, example[..., :half], example[..., half:]))
    except (ValueError, RuntimeError):  # it does not accept parts of a sample
        whole, parts = example[..., :0], [example]
    if whole.shape != example.shape or not torch.allclose(whole, torch.cat(parts, dim=-1), atol=1e-5):
        raise ValueError(
            "raw must be True (--raw, with prepared samples) for this run, whose preparation needs complete samples; "
            "a run on sounds with data.features=raw streams without it"
        )
    return prepare

"""A trained network with its preprocessing, and its predictions for files and arrays."""

from __future__ import annotations

import glob
import warnings
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, takes_argument
from .._kinds import ANY, POSITIVE, TEXT, Choice, ListOf
from .._object_kinds import Instance
from ..data.base import Batch
from ..data.io.arrays import as_numbers
from ..data.io.files import find_visible, read_lines
from ..data.preprocessing import compare_size
from ..data.sets.series.long_table import QueryTimes, read_queries
from ..data.transforms.series_checks import compare_coords
from ..layers.pointwise import BATCH_STATISTICS, uses_batch_statistics
from ..models.registry import options_of
from .evaluation import NonFiniteOutputs
from .finished_run import run_metadata
from .processes import split_over
from .run import Run, make_task
from .sample_files import ENDINGS, TABLES, check_samples, prepare_samples, read_file, with_queries
from .settings import SELECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from ..data.base import Data, TargetScale
    from .recipe import Recipe

    Source = str | Path | Tensor | np.ndarray | Sequence[str | Path]

__all__ = ["TrainedRun", "find_files"]

#: longest path of a file in characters
LONGEST_PATH = 4096
#: samples per batch, unless the recipe sets it
BATCH = 64


class TrainedRun:
    """A trained network, its preprocessing and its predictions. :func:`kernelfield.load_run` returns one.

    Only the folder of the run is read.

    Args:
        folder: folder of the run.
        select: weights to use: "best" by validation, "last", or "average" of the last epochs; by default those that the
            recipe selects.
        data: folder or file of the training data, for a run that does not store its preprocessing.
        mesh: processes that share every sample; see :func:`~.processes.context_mesh`.

    Attributes:
        network: the network, in evaluation mode, on the CPU.
        recipe: the recipe of the run.
        classes: names of the classes; empty if there are none.
    """

    @checked(select=Choice(*SELECT) | None, data=TEXT | None, mesh=Instance("torch.distributed.DeviceMesh") | None)
    def __init__(
        self,
        folder: str | Path,
        *,
        select: str | None = None,
        data: str | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        self.run = Run(Path(folder))
        self.recipe: Recipe = self.run.recipe()
        self.network = split_over(self.run.network(self.recipe, select, announce=True), mesh)
        self._folder = data

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.run.folder)!r}): {self.recipe.model['name']}, {self.recipe.shape.task}"

    @cached_property
    def data(self) -> Data:
        """The data set of the run without its samples: shapes, classes and preparation."""
        return run_metadata(self.run, self.recipe, self._folder)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if there are none."""
        return self.data.classes

    def class_names(self, count: int) -> tuple[str, ...]:
        """Return the names of ``count`` classes; numbers from 0 if the run does not store names."""
        known = self.classes if "data" in self.__dict__ or self.run.path("data.json").exists() else ()
        return known if len(known) == count else tuple(map(str, range(count)))

    @cached_property
    def step(self) -> float | tuple[float, ...]:
        """Sampling step of the run's data in training steps: not 1 for a run with the option ``data.step``."""
        if self.run.path("data.json").exists():
            return self.data.test.step
        chosen = self.recipe.data.get("step", 1.0)
        return tuple(chosen) if isinstance(chosen, list) else chosen

    @checked(inputs=ANY, step=POSITIVE | ListOf(POSITIVE) | None)
    def prepare(
        self, inputs: Any, *, coords: Any = None, mask: Any = None, step: float | tuple[float, ...] | None = None
    ) -> Batch:
        """Return samples in the form that the network takes: normalised, with missing values masked.

        Args:
            inputs: (n, channels, ...) raw samples; NaN is a missing value.
            coords: (n, points, dim) coordinates in training steps, for runs on irregular times or points.
            mask: (n, ...) whether a position was observed.
            step: sampling step in training steps; by default that of the run's data.
        """
        given = {"inputs": inputs, "coords": coords, "mask": mask}
        held: dict[str, Any] = {
            name: None if v is None else torch.as_tensor(as_numbers(v, name)) for name, v in given.items()
        }
        chosen = self.step if step is None else step
        batch = check_samples(Batch(**held, step=chosen), self.recipe, self.data, "inputs")
        compare_coords(batch, self.data, "inputs")
        return prepare_samples(batch, self.data)

    @checked(source=ANY, step=POSITIVE | None, at=ANY)
    def predict(
        self,
        source: Source,
        *,
        step: float | None = None,
        at: Any = None,
        raw: bool = False,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Return a prediction for each sample.

        Args:
            source: an array (n, channels, ...); or a file, a folder, a pattern such as ``"new/*.wav"``, or a list of
                these; see :func:`find_files`.
            step: sampling step of the inputs in training steps; by default that of the run's data.
            at: positions at which to predict, for networks with an output at each position. For series with times:
                times in the unit of the file, as numbers or dates, as text "0.5,1,2", or as a file with the columns
                ``time`` and, optionally, ``id``. Otherwise (queries, dim) or (n, queries, dim) coordinates in training
                steps, or an .npy file of them.
            raw: whether to use inputs without the preparation of the run.
            on_batch: called after each batch with the number of files so far and of all files.

        Returns:
            A dictionary for each sample with ``class``, its ``probability`` and the ``probabilities`` of all classes by
            name; or with the ``values`` of a regression; or with the ``classes`` at each position, as in the training
            data. ``file`` and ``sample``, the number in the file, identify the sample; so does ``series``, its id, in
            tables with ids. With ``at``, there is one dictionary for each sample and query, with its ``time`` or
            ``place``.
        """
        data, chosen = None if raw else self.data, self.step if step is None else step
        queries = self._queries(at)
        asked: dict[str, list[tuple[str, np.ndarray | None]]] = {}
        if not _are_files(source):
            inputs = torch.as_tensor(as_numbers(source, "source"))
            batch = check_samples(Batch(inputs, step=chosen), self.recipe, data, "inputs")
            if queries is not None:
                batch = with_queries(batch, queries, len(self.recipe.shape.size), asked.setdefault("", []))
            rows = self._rows([("", batch)], data, stated=step is not None)
            return [part for _, sample, row in rows for part in _each_query(row, asked.get(""), sample)]
        files = find_files(source)

        def read(path: Path) -> Batch:
            listed = asked.setdefault(str(path), [])
            found = read_file(path, self.recipe, data, queries, listed, step)
            return found if step is not None or found.step != 1 else replace(found, step=chosen)

        found = []
        done: dict[str, int] = {}
        for file, sample, row in self._rows(((str(path), read(path)) for path in files), data, stated=step is not None):
            if file not in done and on_batch is not None:
                on_batch(len(done), len(files))
            done[file] = sample
            found += [{"file": file, "sample": sample, **part} for part in _each_query(row, asked.get(file), sample)]
        if queries is not None:
            queries.announce_unknown()
        return found

    def _queries(self, at: Any) -> QueryTimes | None:
        """Return the query times; raise a ValueError if the network needs them, or takes none."""
        if at is None:
            if self.recipe.shape.queries:
                raise ValueError(
                    "at must be the times at which to predict, since the run predicts at query times; got None"
                )
            return None
        kind = self.recipe.model["name"]
        readout = {**options_of(kind), **self.recipe.model}.get("readout")  # some names fix it
        if not takes_argument(self.network.forward, "at") or readout != "dense":
            raise ValueError(f"at must be None for {kind}, which has one prediction per sample, got {at!r}")
        return read_queries(at)

    def _rows(
        self, read: Iterable[tuple[str, Batch]], data: Data | None, *, stated: bool
    ) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield the file, the number in the file and the prediction of each sample, batch by batch.

        Args:
            read: raw samples of each file.
            data: data of the run; None for prepared samples.
            stated: whether the user gave the sampling step; otherwise the first samples of another size are announced.
        """
        if uses_batch_statistics(self.network):
            warnings.warn(BATCH_STATISTICS, stacklevel=4)
        task = make_task(self.recipe, self.network).eval()
        size = self.recipe.training.eval_batch or min(BATCH, self.recipe.training.batch)
        scale = self.raw_scale() if data is None else None
        for batch, places in _batches(read, size):
            if data is not None and not stated:
                file = places[0][0]
                table = Path(file).suffix.lower() in TABLES
                # Real times tell the rate.
                stated = not (table and data.unit is not None) and compare_size(batch, data, file, padded=table)
            with torch.no_grad():
                ready = prepare_samples(batch, data)
                self._compare_padding(ready)
                outputs = task(ready)
            if not bool(torch.isfinite(outputs).all()):
                file, sample = places[int((~torch.isfinite(outputs.flatten(1))).any(dim=1).int().argmax())]
                where = f"sample {sample}" + (f" of {file}" if file else "")
                raise NonFiniteOutputs(f"the outputs of the network are not finite for {where}")
            rows = self._describe(outputs, ready.scale or scale)
            yield from ((file, i, row) for (file, i), row in zip(places, rows, strict=True))

    def _compare_padding(self, batch: Batch) -> None:
        """Warn if positions that a mask hides count in a norm over all positions."""
        over_all = any(isinstance(m, torch.nn.GroupNorm) for m in self.network.modules())
        if over_all and batch.mask is not None and not bool(batch.mask.all()):
            warnings.warn(
                "the network normalises over all positions (norm='layer'), masked ones too, so a prediction depends on "
                "how far its series is padded",
                stacklevel=5,
            )

    def raw_scale(self) -> TargetScale | None:
        """Return the scale of the targets: predictions for prepared samples are in the original unit too."""
        return self.data.test.batch(slice(0, 0)).scale if self.recipe.data.get("standardize") else None

    def describe_step(self, outputs: Tensor, scale: TargetScale | None) -> dict[str, Any]:
        """Return the prediction of outputs (1, out) at one position as in :meth:`predict`, without all probabilities.

        Args:
            outputs: the outputs of the network.
            scale: scale of the targets; None if they are not normalised.
        """
        task = self.recipe.shape.task
        one = "classification" if task in ("segmentation", "language") else task
        row = self._describe(outputs, scale, one)[0]
        return {name: value for name, value in row.items() if "class" not in row or name != "probabilities"}

    def _describe(self, outputs: Tensor, scale: TargetScale | None, task: str = "") -> list[dict[str, Any]]:
        task = task or self.recipe.shape.task
        names = self.class_names(outputs.shape[1])

        def shares(row: list[float]) -> dict[str, float]:
            return {name: round(p, 6) for name, p in zip(names, row, strict=True)}

        if task == "classification":
            rows = [shares(row) for row in outputs.double().softmax(dim=1).tolist()]
            likeliest = [names[i] for i in outputs.argmax(dim=1).tolist()]
            return [
                {"class": t, "probability": row[t], "probabilities": row}
                for t, row in zip(likeliest, rows, strict=True)
            ]
        if task == "multilabel":
            return [{"probabilities": shares(row)} for row in outputs.double().sigmoid().tolist()]
        if task == "segmentation":
            # Numbers only if all names are numbers: beside "background", the name "0" is a word too.
            numbered = all(name.removeprefix("-").isdecimal() for name in names)
            labels = np.array([int(name) if numbered else name for name in names], object)
            return [{"classes": row} for row in labels[outputs.argmax(dim=1).numpy()].tolist()]
        if task == "language":
            return [{"classes": row} for row in outputs.argmax(dim=1).tolist()]
        return [{"values": row} for row in (outputs if scale is None else scale.undo(outputs)).tolist()]


def _each_query(
    row: dict[str, Any], asked: list[tuple[str, np.ndarray | None]] | None, sample: int
) -> list[dict[str, Any]]:
    """Return a prediction with the id of its series; at several queries, one row per query, without padded ones."""
    if not asked:
        return [row]
    key, places = asked[sample]
    named = {"series": key} if key else {}
    if places is None:
        return [{**named, **row}]
    kind = "time" if places.ndim == 1 else "place"
    # Values have an axis of outputs before that of queries, classes do not.
    cells = {
        name: values if name == "classes" else [[value[i] for value in values] for i in range(len(places))]
        for name, values in row.items()
    }
    return [
        {**named, kind: place, **{name: values[i] for name, values in cells.items()}}
        for i, place in enumerate(places.tolist())
    ]


def _are_files(source: Any) -> TypeGuard[str | Path | Sequence[str | Path]]:
    """Return whether a source names files; otherwise it holds samples."""
    return isinstance(source, (str, Path)) or (isinstance(source, (list, tuple)) and all(map(_are_files, source)))


def find_files(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files that a file, a folder, a pattern, a list of files, or several of these stand for.

    A folder stands for all readable files in it, sorted; a pattern such as ``"new/**/*.png"`` for the files that match;
    a .txt file for the files that it lists, one per line, relative to its own folder.
    """
    if not isinstance(source, (str, Path)):
        return [path for part in source for path in find_files(part)]
    path = Path(source).expanduser()
    if path.is_dir():
        found = find_visible(path, ENDINGS)
    elif not path.exists() and glob.has_magic(str(path)):
        found = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]  # noqa: PTH207
    elif path.suffix.lower() == ".txt" and path.is_file():
        lines = [line.strip() for line in read_lines(path)]
        longest = max(map(len, lines), default=0)
        if longest > LONGEST_PATH:
            raise ValueError(f"file must list files, one per line, got {path} with a line of {longest} characters")
        found = [path.parent / line for line in lines if line and not line.startswith("#")]
    else:
        return [path]
    if not found:
        raise FileNotFoundError(
            f"file must name at least one readable file, got none in {source}; readable are {', '.join(ENDINGS)}"
        )
    return found


def _batches(read: Iterable[tuple[str, Batch]], size: int) -> Iterator[tuple[Batch, list[tuple[str, int]]]]:
    """Yield batches of at most ``size`` samples, with the file and number of each sample; small files share a batch."""
    held: list[Batch] = []
    places: list[tuple[str, int]] = []
    for file, batch in read:
        for start in range(0, len(batch), size):
            part = _slice(batch, start, start + size)
            if held and (len(places) + len(part) > size or _layout(part) != _layout(held[0])):
                yield _join(held), places
                held, places = [], []
            held.append(part)
            places += [(file, start + i) for i in range(len(part))]
    if held:
        yield _join(held), places


def _slice(batch: Batch, start: int, end: int) -> Batch:
    held = {f.name: getattr(batch, f.name) for f in fields(batch)}
    cut: dict[str, Any] = {name: t[start:end] for name, t in held.items() if isinstance(t, Tensor)}
    return replace(batch, **cut)


def _layout(batch: Batch) -> list[Any]:
    tensors = [getattr(batch, f.name) for f in fields(batch)]
    return [(t.shape[1:], t.dtype) if isinstance(t, Tensor) else t for t in tensors]


def _join(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    held = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Batch)}
    joined: dict[str, Any] = {name: torch.cat(v) if isinstance(v[0], Tensor) else v[0] for name, v in held.items()}
    return Batch(**joined)

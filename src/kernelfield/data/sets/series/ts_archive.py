"""Time series from the files of the UEA and UCR archives, such as CharacterTrajectories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._arguments import checked, with_arguments_of
from ...._checks import check_choice
from ...._kinds import BOOL, POSITIVE, SEED, TEXT, Choice
from ...._object_kinds import SHARES
from ...io.cells import NONFINITE, is_date, number, time_of
from ...io.files import find, folder, read_lines
from ...io.pairs import split_files
from ...transforms.series import Series, build
from .archive_files import read_arff, read_tsv

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ...base import Data

__all__ = ["character_trajectories", "read_archive", "read_ts", "ts"]

SPLITS = ("archive", "random")
#: endings of the names of the archive's files
ENDINGS = (".ts", ".tsv", ".arff")


@checked(
    problem=TEXT | None,
    split=Choice(*SPLITS),
    nonfinite=Choice(*NONFINITE),
    shares=SHARES,
    unit=POSITIVE | None,
    observed=BOOL,
    standardize=BOOL,
    normalize=Choice("channel", "step"),
    seed=SEED,
)
@with_arguments_of(build, without=("name", "parts", "task", "classes", "channels", "validation_share"))
def ts(
    root: str | os.PathLike[str] | None,
    problem: str | None = None,
    *,
    split: str = "archive",
    nonfinite: str = "refuse",
    **options: Any,
) -> Data:
    """Return any classification or regression problem of the UEA and UCR archives.

    Source: ``PROBLEM_TRAIN.ts`` and ``PROBLEM_TEST.ts`` of https://www.timeseriesclassification.com in ``root`` or
    ``root/PROBLEM``, the same with ``.tsv`` or ``.arff``, or one such file. The archive publishes no checksums, so
    nothing is downloaded. Licence: that of the problem, as stated by the archive. Split: that of the archive, with 15
    percent of the training series held out for validation; or all series joined and divided at random. Normalisation:
    zero mean and unit variance of each channel over the training series. Series of unequal length are padded and
    masked. Missing values ("?") are masked if all channels are missing, and become the mean of the channel otherwise.
    Time stamps become coords.

    Args:
        root: folder of the two files, or path of one file; ``X_TRAIN`` is read together with ``X_TEST`` of the same
            folder.
        problem: name of the problem; optional if the folder holds only one.
        split: "archive" or "random".
        nonfinite: "refuse" raises an error for a value that is infinite or too large for float32 and names its line and
            column; "missing" counts it as missing.
        options: the keyword arguments below.
        shares: shares of training, validation and test data, for "random" and for one file.
        unit: time of one training step, for series with time stamps.
        observed: whether to add an indicator for each channel, a channel that is 1 where the other was observed.
        standardize: whether to normalise targets to zero mean and unit variance over the training series; metrics and
            predictions keep the original unit.
        normalize: "channel" normalises each channel, "step" normalises each time step over samples and channels.
        seed: seed of the split.

    Returns:
        Inputs (n, channels, longest), mask (n, longest) if anything is missing; classes (n,) or values (n, 1).
    """
    if root is not None and Path(root).is_file():
        paths = split_files(Path(root))
        name = paths[0].stem if len(paths) == 1 else re.sub(r"[_-]?train$", "", paths[0].stem, flags=re.IGNORECASE)
    else:
        where = folder(root, "a .ts problem", *([problem] if problem else []))
        name = problem or _only_problem(where)
        paths = [find(where, [f"{name}_{part}{e}" for e in ENDINGS], "series") for part in ("TRAIN", "TEST")]
    read = [read_archive(path, nonfinite) for path in paths]
    task = read[0][1]
    if read[-1][1] != task:
        raise ValueError(f"{paths[-1]} must hold labels for {task}, like {paths[0]}, found {read[-1][1]}")
    classes = tuple(dict.fromkeys(c for r in read for c in r[2] or ())) or None
    parts: Sequence[Sequence[Series]] = [r[0] for r in read]
    if split == "random":
        parts = [[s for part in parts for s in part]]
    return build(name, parts, task=task, classes=classes, **options)


@checked(split=Choice(*SPLITS), normalize=Choice("channel", "step"))
def character_trajectories(
    root: str | os.PathLike[str] | None,
    *,
    split: str = "random",
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    normalize: str = "channel",
    seed: int = 0,
) -> Data:
    """Return CharacterTrajectories: pen movements of 20 letters, 2,858 series of 3 channels and up to 182 steps.

    Source: the UEA archive (Bagnall et al., 2018), originally from UCI, in the layout of :func:`ts`; nothing is
    downloaded. Licence: CC BY 4.0 (UCI). Split: the archive's two files joined and split at random into 70, 15 and 15
    percent, stratified by letter, as in Kidger et al. (2020) and the thesis; or that of the archive. Normalisation:
    zero mean and unit variance of each channel, or of each time step, over the training series.
    """
    return ts(root, "CharacterTrajectories", split=split, shares=shares, normalize=normalize, seed=seed)


def _only_problem(where: Path) -> str:
    names = sorted({p.stem.removesuffix("_TRAIN") for e in ENDINGS for p in where.glob(f"*_TRAIN{e}")})
    if len(names) != 1:
        found = ", ".join(names[:8]) or "none"
        raise ValueError(f"problem must be the NAME of NAME_TRAIN.ts and NAME_TEST.ts in {where}, found {found}")
    return names[0]


def read_archive(path: Path, nonfinite: str = "refuse") -> tuple[list[Series], str, tuple[str, ...] | None]:
    """Return the series of a ``.ts``, ``.tsv`` or ``.arff`` file, the task, and the names of the classes if known.

    Args:
        path: the file.
        nonfinite: see :func:`read_ts`.
    """
    ending = check_choice("ending", path.suffix.lower(), ENDINGS)
    if ending == ".ts":
        series, _, task, classes = read_ts(path, nonfinite)
        return series, task, classes
    return (read_tsv if ending == ".tsv" else read_arff)(path, nonfinite)


def read_ts(path: Path, nonfinite: str = "refuse") -> tuple[list[Series], dict[str, str], str, tuple[str, ...] | None]:
    """Return the series of a `.ts` file, its header, the task, and the names of the classes if there are any.

    A file has a header of tags (``@classLabel true a b``), ``@data``, then one series per line: channels separated by
    colons, values by commas, the label last. With ``@timeStamps true`` values are (time, value) pairs, and times are
    numbers or dates.

    Args:
        path: the file.
        nonfinite: "refuse" raises an error for a value that is infinite or too large for float32; "missing" counts it
            as missing.
    """
    header: dict[str, str] = {}
    lines = read_lines(path)
    start = None
    for i, line in enumerate(lines):
        text = line.strip()
        if not text or text[0] in "#%":
            continue
        if text.lower() == "@data":
            start = i + 1
            break
        if not text.startswith("@"):
            raise ValueError(f"{path}, line {i + 1}: expected a tag or @data, found {text[:40]!r}")
        tag, _, value = text[1:].partition(" ")
        header[tag.lower()] = value.strip()
    if start is None:
        raise ValueError(f"{path} must hold @data and series after it, found neither in {len(lines)} lines")
    task, classes = _task(header, path)
    timed = header.get("timestamps", "false").lower() == "true"
    series = [
        _series(line.strip(), path, start + j + 1, timed, nonfinite)
        for j, line in enumerate(lines[start:])
        if line.strip() and line[0] not in "#%"
    ]
    _check(series, header, classes, path)
    return series, header, task, classes


def _task(header: dict[str, str], path: Path) -> tuple[str, tuple[str, ...] | None]:
    label = header.get("classlabel", "").split()
    if label and label[0].lower() == "true":
        return "classification", tuple(label[1:])
    if header.get("targetlabel", "").lower().startswith("true"):
        return "regression", None
    raise ValueError(f"{path} must have labels (@classLabel true … or @targetLabel true), found none in its header")


def _series(text: str, path: Path, line: int, timed: bool, nonfinite: str) -> Series:
    if timed:
        *channels, label = _outside_brackets(text)
        read = [_pairs(c, path, line, nonfinite) for c in channels]
        times = np.unique(np.concatenate([t for t, _ in read])) if read else np.empty(0)
        values = np.full((len(read), len(times)), np.nan)
        for row, (t, v) in zip(values, read, strict=True):
            if len(np.unique(t)) != len(t):
                raise ValueError(f"{path}, line {line}: expected one value of a channel at each time, found two")
            row[np.searchsorted(times, t)] = v
        dated = {is_date(time) for c in channels for time in re.findall(r"\(([^(),]*),", c)}
        if len(dated) > 1:
            raise ValueError(f"{path}, line {line}: expected times that are all dates or all numbers, found both")
        found = Series(values, label.strip(), times, f"{path}, line {line}", dates=dated == {True})
    else:
        *channels, label = text.split(":")
        rows = [
            [_value(v, path, line, i, j, nonfinite) for j, v in enumerate(c.split(","), 1)]
            for i, c in enumerate(channels, 1)
        ]
        lengths = {len(row) for row in rows}
        if len(lengths) > 1:
            raise ValueError(f"{path}, line {line}: expected channels of equal length, found {sorted(lengths)}")
        found = Series(np.array(rows), label.strip(), where=f"{path}, line {line}")
    if not channels or not found.values.size:
        raise ValueError(f"{path}, line {line}: expected values, a colon and a label, found {text[:40]!r}")
    return found


def _outside_brackets(text: str) -> list[str]:
    """Split a text at its colons, except those inside brackets.

    >>> _outside_brackets("(12:00,1):a")
    ['(12:00,1)', 'a']
    """
    parts, start, inside = [], 0, False
    for mark in re.finditer("[:()]", text):  # one pass; a lookahead pattern takes quadratic time
        if mark[0] == ":" and not inside:
            parts.append(text[start : mark.start()])
            start = mark.end()
        inside = mark[0] == "(" or (inside and mark[0] != ")")
    return [*parts, text[start:]]


def _value(text: str, path: Path, line: int, channel: int, step: int, nonfinite: str) -> float:
    return number(text, path, line, f"channel {channel}", column=step, nonfinite=nonfinite)


def _pairs(text: str, path: Path, line: int, nonfinite: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = re.findall(r"\(([^(),]*),([^(),]*)\)", text)
    if not pairs:
        raise ValueError(f"{path}, line {line}: expected (time, value) pairs, found {text[:40]!r}")
    both = np.array([[time_of(t, path, line), number(v, path, line, "a value", nonfinite=nonfinite)] for t, v in pairs])
    return both[:, 0], both[:, 1]


def _check(series: list[Series], header: dict[str, str], classes: tuple[str, ...] | None, path: Path) -> None:
    if not series:
        raise ValueError(f"{path} must hold series after @data, found none")
    channels = {s.values.shape[0] for s in series}
    if len(channels) > 1:
        raise ValueError(f"{path} must hold series with the same number of channels, found {sorted(channels)}")
    declared = header.get("dimensions", header.get("dimension", "1" if header.get("univariate") == "true" else ""))
    if declared.isdecimal() and channels != {int(declared)}:
        raise ValueError(
            f"{path} must hold series of {declared} channels, as its header declares, found {channels.pop()}"
        )
    if classes is not None:
        unknown = {s.label for s in series} - set(classes)
        if unknown:
            raise ValueError(
                f"{path} must hold only labels that its header lists, {', '.join(classes)}, "
                f"found {', '.join(sorted(unknown))}"
            )
    else:
        for s in series:
            if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", s.label):
                raise ValueError(f"{s.where}: expected a number for a label, found {s.label[:40]!r}")

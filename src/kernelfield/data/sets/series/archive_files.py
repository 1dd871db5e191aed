"""Files of the UEA and UCR archives in their other formats: ``.tsv`` and ``.arff``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ...io.cells import number
from ...io.files import read_lines, read_table
from ...transforms.series import Series, task_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["read_arff", "read_tsv"]


def read_tsv(path: Path, nonfinite: str = "refuse") -> tuple[list[Series], str, tuple[str, ...] | None]:
    """Return the series of a ``.tsv`` file, the task, and None for the names of the classes.

    Each line holds a label, then a series. The task is regression if all labels are numbers and some are not integers,
    and classification otherwise.

    Args:
        path: the file.
        nonfinite: "refuse" or "missing"; see :func:`~kernelfield.data.io.cells.number`.
    """
    series = []
    for i, row in enumerate(read_table(path, "\t"), start=1):
        if row:
            label, *cells = row
            series.append(_series([cells], label, path, i, nonfinite))
    if not series:
        raise ValueError(f"{path} must hold a label and a series on each line, found none")
    return series, task_of(s.label for s in series), None


def read_arff(path: Path, nonfinite: str = "refuse") -> tuple[list[Series], str, tuple[str, ...] | None]:
    r"""Return the series of an ``.arff`` file, the task, and the names of the classes if it has some.

    The last attribute is the label. The others are the steps of one channel, or one relational attribute in quotes,
    whose channels are separated by ``\n``.

    Args:
        path: the file.
        nonfinite: "refuse" or "missing"; see :func:`~kernelfield.data.io.cells.number`.
    """
    attributes: list[str] = []
    lines = read_lines(path)
    start, inside = None, False
    for i, line in enumerate(lines):
        text = line.strip()
        lower = text.lower()
        if lower.startswith("@data"):
            start = i + 1
            break
        if lower.startswith("@end"):
            inside = False
        elif lower.startswith("@attribute") and not inside:
            attributes.append(text[len("@attribute") :].strip())
            inside = lower.endswith(" relational")
        elif text and text[0] not in "%@":
            raise ValueError(f"{path}, line {i + 1}: expected an attribute or @data, found {text[:40]!r}")
    if start is None or len(attributes) < 2:
        raise ValueError(f"{path} must hold attributes, the label last, and @data, found {len(attributes)} attributes")
    named = re.search(r"\{(.*)\}\s*$", attributes[-1])
    classes = tuple(_unquoted(name) for name in named[1].split(",")) if named else None
    relational = attributes[0].lower().endswith(" relational")
    series = []
    for i, line in enumerate(lines[start:], start=start + 1):
        text = line.strip()
        if text and not text.startswith("%"):
            channels, label = _relational(text, path, i) if relational else _flat(text)
            series.append(_series(channels, _unquoted(label), path, i, nonfinite))
    if not series:
        raise ValueError(f"{path} must hold series after @data, found none")
    unknown = {s.label for s in series} - set(classes or (s.label for s in series))
    if unknown:
        raise ValueError(f"{path} must hold only labels that its header lists, found {', '.join(sorted(unknown)[:4])}")
    return series, "classification" if classes else "regression", classes


def _flat(text: str) -> tuple[list[list[str]], str]:
    *cells, label = text.split(",")
    return [cells], label


def _relational(text: str, path: Path, line: int) -> tuple[list[list[str]], str]:
    quote = text[0]
    end = text.rfind(quote, 1) if quote in "'\"" else -1
    # The label may be quoted too, so the first value ends at the first quote that a comma follows.
    inner = re.match(rf"{quote}(.*?){quote}\s*,(.*)$", text) if end > 0 else None
    if inner is None:
        raise ValueError(f"{path}, line {line}: expected channels in quotes, a comma and a label, found {text[:40]!r}")
    return [channel.split(",") for channel in inner[1].split("\\n")], inner[2]


def _series(channels: Sequence[Sequence[str]], label: str, path: Path, line: int, nonfinite: str) -> Series:
    lengths = {len(cells) for cells in channels}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"{path}, line {line}: expected channels of equal length, found {sorted(lengths)}")
    values = np.array(
        [
            [number(v, path, line, "a value", column=j, nonfinite=nonfinite) for j, v in enumerate(cells, 1)]
            for cells in channels
        ]
    )
    seen = np.flatnonzero(~np.isnan(values).all(axis=0))
    if not len(seen) or not label.strip():
        raise ValueError(f"{path}, line {line}: expected a label and at least one value, found {label!r}")
    # The files pad series of unequal length with missing values at the end.
    return Series(values[:, : seen[-1] + 1], label.strip(), where=f"{path}, line {line}")


def _unquoted(text: str) -> str:
    return text.strip().strip("'\"")

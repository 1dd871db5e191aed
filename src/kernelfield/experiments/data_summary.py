"""Descriptions of a data set before training, so that users see how their files were read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from .._arguments import checked

if TYPE_CHECKING:
    from ..data.base import Data, Split

__all__ = ["data_kind", "missing_classes", "pixel_line", "repeated_samples", "split_sizes"]

#: largest number of class names to list
MOST_NAMES = 12


@checked()
def split_sizes(data: Data) -> str:
    """Return the numbers of training, validation and test samples as text.

    >>> from .datasets import synthetic_data
    >>> from .recipe import find_recipe
    >>> split_sizes(synthetic_data(find_recipe("digits").shape))
    '8 samples for training, 8 for validation, 8 for testing'
    """
    held = f"{len(data.validation):,} for validation" if data.validation is not None else "none for validation"
    return f"{len(data.train):,} samples for training, {held}, {len(data.test):,} for testing"


@checked()
def data_kind(data: Data) -> str:
    """Return the task, the classes, and the shape of the inputs as text.

    >>> from kernelfield.data import load
    >>> data_kind(load("digits"))
    'classification, 10 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9); 1 channel of size 8×8'
    """
    by_class = bool(data.classes) and data.task in ("classification", "segmentation")
    count = f"{data.out_channels} " + ("class" if by_class else "output")
    plural = "es" if by_class else "s"
    names = ", ".join(data.classes[:MOST_NAMES]) + (", …" if len(data.classes) > MOST_NAMES else "")
    out = count + (plural if data.out_channels > 1 else "") + (f" ({names})" if by_class else "")
    size = "×".join(map(str, data.size))
    channels = f"{data.in_channels} channel" + ("s" if data.in_channels > 1 else "")
    if len(data.channels) > 1:
        listed = ", ".join(data.channels[:MOST_NAMES]) + (", …" if len(data.channels) > MOST_NAMES else "")
        marks = "; one more for each marks observed values" if data.in_channels == 2 * len(data.channels) else ""
        channels += f" ({listed}{marks})"
    where = f"of size {size}"
    if data.train.coords is not None:
        where = "at irregular times" if data.dim == 1 else f"at points in {data.dim} dimensions"
    return f"{data.task}, {out}; {channels} {where}"


@checked()
def missing_classes(data: Data) -> list[str]:
    """Return a line about classes without a training, validation or test sample, for each such split.

    Scores do not count them, and the area under the ROC curve of two classes needs both.

    >>> from dataclasses import replace
    >>> from kernelfield.data import load
    >>> data = load("digits")
    >>> missing_classes(data), missing_classes(replace(data, test=data.test.take(data.test.target < 8)))
    ([], ['2 of 10 classes have no test sample: 8, 9'])
    """
    if data.task != "classification":
        return []
    lines = []
    for name, split in (("training", data.train), ("validation", data.validation), ("test", data.test)):
        seen = set() if split is None else set(split.target.unique().tolist())
        missing = [label for i, label in enumerate(data.classes) if i not in seen]
        if missing and split is not None:
            listed = ", ".join(missing[:MOST_NAMES]) + (", …" if len(missing) > MOST_NAMES else "")
            have = "have" if len(missing) > 1 else "has"
            lines.append(f"{len(missing)} of {len(data.classes)} classes {have} no {name} sample: {listed}")
    return lines


@checked()
def pixel_line(data: Data) -> str:
    """Return the range and the divisor of pixels of more than 8 bits as text; "" if there are none.

    >>> from dataclasses import replace
    >>> from kernelfield.data import load
    >>> pixel_line(replace(load("digits"), levels=(12, 3871, 4095)))
    'pixels of more than 8 bits from 12 to 3,871, divided by 4,095 (data.white)'
    """
    if not data.levels:
        return ""
    least, most, white = data.levels
    return f"pixels of more than 8 bits from {least:,} to {most:,}, divided by {white:,} (data.white)"


@checked()
def repeated_samples(data: Data) -> int:
    """Return the number of test samples whose inputs are also those of a training or validation sample.

    >>> from dataclasses import replace
    >>> from kernelfield.data import load
    >>> data = load("digits")
    >>> repeated_samples(data), repeated_samples(replace(data, test=data.train.take(slice(0, 5))))
    (0, 5)
    """
    known = {digest for split in (data.train, data.validation) if split is not None for digest in _digests(split)}
    return sum(digest in known for digest in _digests(data.test))


def _digests(split: Split) -> list[bytes]:
    """Return a checksum of the stored inputs and coordinates of each sample."""
    tensors = [t.cpu().contiguous().numpy() for t in (split.inputs, split.coords) if t is not None]
    return [
        hashlib.blake2b(b"".join(t[i].tobytes() for t in tensors), digest_size=16).digest() for i in range(len(split))
    ]

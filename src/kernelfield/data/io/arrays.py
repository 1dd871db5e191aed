"""Readers of NumPy files, which compare the size in a header with the file before they allocate memory."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._checks import check_choice
from .cells import FLOAT32_MAX, NONFINITE
from .files import check_size, decoding, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = [
    "announce_channels",
    "as_coords",
    "as_numbers",
    "check_channels_first",
    "check_precision",
    "check_times",
    "finite_array",
    "read_array",
    "read_arrays",
    "without_mask",
]

#: a last axis of at most this length, after axes of at least that length, counts as an axis of channels
MOST_LAST, LEAST_FIRST = 4, 8
#: largest error of float32, as a share of the standard deviation of a channel
PRECISION = 1e-2


def read_array(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file of numbers, booleans or text. Pickled objects are refused."""
    with open_file(path) as file, decoding(path, "a complete .npy file of numbers"):
        return _read(path, file, os.fstat(file.fileno()).st_size)


def read_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by name.

    Args:
        path: the file.
        names: names of the arrays to read, which must exist; all arrays by default.
    """
    with open_file(path) as file, decoding(path, "a complete .npz file of arrays"), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = list(members if names is None else names)
        missing = [name for name in wanted if name not in members]
        if missing:
            raise ValueError(f"{path} must hold {', '.join(wanted)}, but {missing[0]} is missing")
        stored = os.fstat(file.fileno()).st_size
        check_size(path, sum(members[name].file_size for name in wanted), stored)
        arrays = {}
        for name in wanted:
            with archive.open(members[name]) as member:
                arrays[name] = _read(path, member, members[name].file_size)
                member.read()  # to the end, where zipfile compares the checksum
        return arrays


def finite_array(array: np.ndarray, path: Path, name: str = "", nonfinite: str = "refuse") -> np.ndarray:
    """Return an array whose values are finite in float32, or NaN for missing ones.

    Args:
        array: numbers; NaN is a missing value.
        path: file of the array, for errors.
        name: name of the array in the file.
        nonfinite: "refuse" raises for a value that is infinite or too large for float32; "missing" makes it NaN.

    >>> from pathlib import Path
    >>> finite_array(np.array([[0.0, np.inf]]), Path("x.npy"))
    Traceback (most recent call last):
    ValueError: x.npy must hold finite numbers of at most 3.4e38, found inf at index (0, 1); with nonfinite='missing' it
    counts as missing
    """
    check_choice("nonfinite", nonfinite, NONFINITE)
    if array.dtype.kind != "f":
        return array
    wrong = np.isinf(array)
    if array.itemsize > 4:
        wrong |= np.abs(array) > FLOAT32_MAX
    if not wrong.any():
        return array
    if nonfinite == "missing":
        return np.where(wrong, np.nan, array)
    where = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), array.shape))
    source = f"{path}, array {name}," if name else f"{path}"
    raise ValueError(
        f"{source} must hold finite numbers of at most 3.4e38, found {array[where]} at index {where}; with "
        "nonfinite='missing' it counts as missing"
    )


def without_mask(array: Any) -> Any:
    """Return a masked array of NumPy as floats that are NaN where it is masked; anything else as it is.

    A read-only array, such as one of ``np.frombuffer``, is copied: torch warns of tensors that share its memory.

    >>> without_mask(np.ma.masked_greater(np.array([1, 2, 9]), 5)).tolist()
    [1.0, 2.0, nan]
    """
    if not isinstance(array, np.ma.MaskedArray):
        return array.copy() if isinstance(array, np.ndarray) and not array.flags.writeable else array
    if not np.ma.is_masked(array):
        return np.asarray(array)
    kind = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
    return np.ma.filled(array.astype(kind), np.nan)


def as_numbers(values: Any, name: str) -> Any:
    """Return real numbers in a form that torch reads: a tensor as it is, anything else as an array of native numbers.

    Args:
        values: a tensor, an array of any byte order and memory layout, or nested lists.
        name: name of the argument, for errors.

    >>> as_numbers([[1, 2], [3, 4]], "x").shape
    (2, 2)
    >>> as_numbers(np.array([1j]), "x")
    Traceback (most recent call last):
    TypeError: x must hold integers or real numbers, got complex128
    """
    if hasattr(values, "is_complex"):  # a tensor, also of a network that is being traced
        if values.is_complex():
            raise TypeError(f"{name} must hold integers or real numbers, got {values.dtype}")
        return values
    if isinstance(values, (list, tuple)) and any(hasattr(part, "is_complex") for part in values):
        values = [np.asarray(part.detach().cpu()) if hasattr(part, "is_complex") else part for part in values]
    try:
        array = np.asarray(without_mask(values))
        extended = array.dtype.kind == "f" and array.dtype.itemsize > 8
        array = array.astype(np.float64) if array.dtype.kind == "O" or extended else array
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must hold numbers in an array of one shape, got {type(values).__name__}: {error}"
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold integers or real numbers, got {array.dtype}")
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def check_channels_first(shape: Sequence[int], where: str) -> None:
    """Raise a ValueError if the channels of samples (n, channels, …) seem to be on the last axis.

    Args:
        shape: shape of the samples.
        where: description of the samples, for errors.

    >>> check_channels_first((20, 3, 28, 28), "X")
    >>> check_channels_first((20, 28, 28, 3), "X")
    Traceback (most recent call last):
    ValueError: X must have shape (n, channels, …), found (20, 28, 28, 3), whose channels seem to be last;
    np.moveaxis(x, -1, 1) moves them
    """
    if len(shape) > 2 and shape[-1] <= MOST_LAST and min(shape[1:-1]) >= LEAST_FIRST:
        raise ValueError(
            f"{where} must have shape (n, channels, …), found {tuple(shape)}, whose channels seem to be last; "
            "np.moveaxis(x, -1, 1) moves them"
        )


def announce_channels(shape: Sequence[int], where: str) -> None:
    """Warn of samples that seem to be images or volumes without an axis of channels: all of their axes are equal.

    Args:
        shape: shape of the samples, (n, channels, …).
        where: description of the samples.
    """
    if len(shape) > 2 and len(set(shape[1:])) == 1 and shape[1] > MOST_LAST:
        size = "×".join(map(str, shape[2:]))
        warnings.warn(
            f"{where} of shape {tuple(shape)} are read as {shape[1]} channels of size {size}; images and volumes in "
            f"gray have shape {(shape[0], 1, *shape[1:])}",
            stacklevel=4,
        )


def check_precision(array: np.ndarray, where: str) -> None:
    """Raise a ValueError if float32 rounds away how the values of a channel differ, as it does with times in seconds.

    Args:
        array: (n, channels, …) numbers; NaN is a missing value.
        where: description of the array, for errors.

    >>> check_precision(1.7e9 + np.arange(8.0).reshape(8, 1), "x.npz, array inputs,")
    Traceback (most recent call last):
    ValueError: x.npz, array inputs, must hold values that float32 can tell apart, found values around 1.7e+09 with a
    standard deviation of 2.29 in channel 0; subtract an offset
    """
    if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4 or array.dtype == np.float32:
        return
    for channel in range(array.shape[1]):
        values = array[:, channel]
        values = values[np.isfinite(values)].astype(np.float64)
        if not len(values) or values.min() == values.max():  # the deviation of a constant may be above zero
            continue
        mean, deviation = values.mean(), values.std()
        lost = np.sqrt(np.square(values - values.astype(np.float32)).mean())
        if lost > PRECISION * deviation > 0:
            raise ValueError(
                f"{where} must hold values that float32 can tell apart, found values around {mean:.6g} with a standard "
                f"deviation of {deviation:.3g} in channel {channel}; subtract an offset"
            )


def as_coords(coords: np.ndarray, where: str) -> np.ndarray:
    """Return coordinates as float32; raise a ValueError if that moves one by more than a hundredth of a step.

    Args:
        coords: finite coordinates in training steps.
        where: description of the array, for errors.

    >>> as_coords(np.array([[[0.5], [2.0]]]), "x.npz").dtype
    dtype('float32')
    >>> as_coords(1.7e9 + np.array([[[0.5], [2.0]]]), "x.npz")
    Traceback (most recent call last):
    ValueError: x.npz must hold coords that float32 can tell apart, found coords around 1.7e+09; subtract an offset
    """
    rounded = coords.astype(np.float32)
    if coords.size and float(np.abs(coords - rounded.astype(np.float64)).max()) > PRECISION:
        raise ValueError(
            f"{where} must hold coords that float32 can tell apart, found coords around {np.abs(coords).max():.6g}; "
            "subtract an offset"
        )
    return rounded


def check_times(times: np.ndarray, step: float, where: str) -> None:
    """Raise a ValueError if float64 rounds times by more than a hundredth of a step, as it does with nanoseconds.

    Args:
        times: finite times, at least one.
        step: usual gap between them.
        where: description of the times, for errors.

    >>> check_times(1.7e18 + 300 * np.arange(4.0), 300.0, "a.csv, series 7")
    Traceback (most recent call last):
    ValueError: a.csv, series 7 must have times that float64 can tell apart, found times around 1.7e+18 with steps of
    300; subtract an offset
    """
    largest = float(np.abs(times).max())
    if np.spacing(largest) > PRECISION * step:
        raise ValueError(
            f"{where} must have times that float64 can tell apart, found times around {largest:.6g} with steps of "
            f"{step:g}; subtract an offset"
        )


def _read(path: Path, file: Any, stored: int) -> np.ndarray:
    """Return the array of an open ``.npy`` file of ``stored`` bytes."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"expected version 1.0 or 2.0 of the format, found {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.kind not in "biufUS" or dtype.subdtype is not None or not dtype.itemsize:
        raise ValueError(f"{path} must hold an array of numbers, found {dtype}")
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {shape}")
    needed, left = math.prod(shape) * dtype.itemsize, stored - file.tell()
    if needed > left:
        raise ValueError(f"its header declares {needed} bytes for shape {shape}, but {left} follow")
    raw = bytearray(needed)  # not bytes: the array must be writable
    read = file.readinto(raw)
    if read != needed:
        raise ValueError(f"its header declares {needed} bytes for shape {shape}, but {read} follow")
    if not needed:
        return np.zeros(shape, dtype)
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))  # torch reads native numbers only

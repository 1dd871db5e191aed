"""Numeric arrays of MAT files (MATLAB's ``save`` up to ``-v7``), read by scipy, which runs no code from a file."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from .files import check_size, decoding, open_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["read_mat"]


def read_mat(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Return numeric arrays of a MAT file by name; needs scipy, of the extra ``train``.

    The error for a file that is truncated, has version 7.3 (HDF5), or exceeds the limit of
    :mod:`kernelfield.data.io.files` names the file.

    Args:
        path: the file.
        names: names of the variables to read, which must exist; all real numeric ones by default.
    """
    try:
        from scipy.io import loadmat, whosmat  # type: ignore[import-untyped] # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading .mat files needs scipy: pip install 'kernelfield[train]'") from error
    with open_file(path) as file, decoding(path, "a complete .mat file"):
        if file.read(10) == b"MATLAB 7.3":
            raise ValueError(f"{path} must be a MAT file of a version up to 7, found 7.3 (HDF5); save it with -v7")
        file.seek(0)
        stored = os.fstat(file.fileno()).st_size
        check_size(path, sum(8 * math.prod(shape) for _, shape, _ in whosmat(file)), stored)
        file.seek(0)
        held = loadmat(file, variable_names=None if names is None else list(names))
    found = {
        name: value for name, value in held.items() if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    }
    missing = [name for name in names or () if name not in found]
    if missing:
        there = ", ".join(name for name in held if name[0] != "_") or "nothing"
        raise ValueError(f"{path} must hold {' and '.join(names or ())}, found {there}")
    return found

"""Conversion of arrays and lists from scikit-learn and aeon to tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.io.arrays import announce_channels, check_channels_first, check_precision, without_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["is_ragged", "labels", "listed", "observed", "plain", "seed_of", "signals"]


def plain(value: Any) -> Any:
    """Convert a numpy scalar, such as one from a parameter grid, to a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def seed_of(random_state: Any) -> int:
    """Return the seed for scikit-learn's ``random_state``."""
    from sklearn.utils import check_random_state  # noqa: PLC0415

    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def labels(y: Any, n: int, numeric: bool = False) -> np.ndarray:
    """Return the checked targets of ``n`` samples as an array."""
    from sklearn.utils.validation import column_or_1d  # noqa: PLC0415

    if y is None:
        raise ValueError("y must hold a target for each sample; requires y to be passed, but the target y is None")
    array = np.asarray(y)
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    if array.ndim > (2 if numeric else 1) and array.shape[1:] != (1,):
        shapes = "(n,) or (n, outputs)" if numeric else "(n,)"
        raise ValueError(f"y must have shape {shapes}, got {array.shape}")
    if numeric:
        # NumPy would turn dates and durations into numbers of a unit that depends on their type.
        if array.dtype.kind in "mM":
            raise TypeError(f"y must hold numbers, got {array.dtype}")
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise type(error)(f"y must hold numbers: {error}") from error
        if not np.isfinite(array).all():
            raise ValueError("y must be finite: Input y contains NaN or infinity")
    else:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError("y must be finite: Input y contains NaN or infinity")
        # NumPy turns NaN among names into the name 'nan'.
        if array.dtype.kind in "OUS" and any(map(_is_missing, np.asarray(y, dtype=object).flat)):
            raise ValueError("y must hold a class for each sample: Input y contains NaN or None")
        if array.ndim == 2 and array.shape[1] == 1:
            array = column_or_1d(array, warn=True)
    if len(array) != n:
        raise ValueError(f"y must hold a target for each of the {n} samples, got {len(array)}")
    return array


def _is_missing(label: Any) -> bool:
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return True
    return type(label).__name__ in ("NAType", "NaTType")  # of pandas


def signals(X: Any) -> tuple[Tensor, Tensor | None, bool]:
    """Return the signals (n, channels, *space), their mask (n, *space) or None, and whether X was a 2D table."""
    import scipy.sparse  # type: ignore[import-untyped]  # noqa: PLC0415

    if scipy.sparse.issparse(X):
        raise TypeError("X must be dense, got a sparse matrix; sparse data were passed, use .toarray()")
    X = listed(X)
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().float() if X.dtype == torch.bfloat16 else X.detach().cpu()
    try:
        array = _padded(X) if is_ragged(X) else np.asarray(without_mask(X))
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ValueError("X must hold samples of one shape, or series (channels, length) of unequal length") from error
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    try:
        array = array.astype(np.float64 if array.dtype.kind not in "biuf" else array.dtype)
        with np.errstate(over="ignore"):
            exact, array = array, array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise type(error)(f"X must hold numbers; argument must be a string or a number: {error}") from error
    if array.ndim < 2:
        raise ValueError(
            f"X must have shape (n, channels, length), got {array.shape}. Reshape your data: Expected 2D array"
        )
    if array.shape[0] == 0 or math.prod(array.shape[1:]) == 0:
        raise ValueError(
            f"X must not be empty: Found array with {array.shape[0]} sample(s) and {array.shape[1]} feature(s) "
            f"(shape={array.shape}) while a minimum of 1 is required."
        )
    if np.isinf(array).any():
        raise ValueError("X must be finite or NaN: Input X contains infinity or a value above 3e38")
    is_table = array.ndim == 2
    if not is_table and not is_ragged(X):
        check_channels_first(array.shape, "X")
        announce_channels(array.shape, "samples X")
    check_precision(exact[:, None] if is_table else exact, "X")
    array = array[:, None] if is_table else array
    values = torch.from_numpy(np.ascontiguousarray(array))
    missing = values.isnan()
    if not bool(missing.any()):
        return values, None, is_table
    empty = missing.flatten(1).all(dim=1)
    if bool(empty.any()):
        raise ValueError(
            f"X must hold at least one value in each sample, got none in sample {int(empty.int().argmax())}"
        )
    # A position is observed if any of its channels is; its missing channels become the mean.
    return values, ~missing.all(dim=1), is_table


def observed(mask: Tensor | None, inputs: Tensor) -> Tensor:
    """Return 1 for observed and 0 for missing values, shaped like ``inputs``; replace NaN by 0 in place."""
    seen = (~inputs.isnan()).to(inputs.dtype)
    inputs.nan_to_num_(0.0)
    return seen if mask is None else seen * mask.unsqueeze(1)


def is_ragged(X: Any) -> bool:
    """Return whether X is a list, or an array of objects, of series of unequal length."""
    X = listed(X)
    if not isinstance(X, (list, tuple)) or not X or np.ndim(X[0]) not in (1, 2):
        return False
    return len({np.shape(s) for s in X}) > 1


def listed(X: Any) -> Any:
    """Return the list of series that an array of objects holds; anything else as it is."""
    is_array = isinstance(X, np.ndarray) and X.dtype.kind == "O" and X.ndim == 1
    return list(X) if is_array and len(X) and np.ndim(X[0]) else X


def _padded(series: Sequence[Any]) -> np.ndarray:
    rows = [np.atleast_2d(np.asarray(s, dtype=np.float64)) for s in series]
    channels = {row.shape[0] for row in rows}
    if len(channels) > 1:
        raise ValueError(f"X must hold series with the same number of channels, got {sorted(channels)}")
    padded = np.full((len(rows), channels.pop(), max(row.shape[1] for row in rows)), np.nan)
    for target, row in zip(padded, rows, strict=True):
        target[:, : row.shape[1]] = row
    return padded

"""Pickles of plain data, read without running any code that they name."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_pickle"]


def read_pickle(path: Path) -> Any:
    """Return the object in a pickle of dicts, lists, tuples, strings, bytes, numbers and arrays of numbers.

    Everything else is refused, and arrays are built here from their bytes, so no file can run code. Strings of Python 2
    become bytes.
    """
    try:
        return _plain(_PlainUnpickler(io.BytesIO(path.read_bytes())).load())
    except _RefusedError as error:
        raise ValueError(
            f"{path} must hold plain data (dict, list, bytes, str, numbers, arrays of numbers), found {error}"
        ) from None
    except Exception as error:  # broken bytes make the unpickler fail in many ways
        raise ValueError(
            f"{path} must be a whole pickle, found a broken one: {type(error).__name__}: {error}"
        ) from error


class _RefusedError(Exception):
    """The file asks for more than plain data."""


class _Dtype:
    """Stands for a numpy.dtype while the file is read."""

    def __init__(self, code: Any) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def real(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code)
        if dtype.kind not in "biufS" or dtype.names is not None:
            raise _RefusedError(f"an array of dtype {dtype}")
        return np.dtype(self.order + dtype.str[1:]) if self.order in ("<", ">") else dtype


class _Array:
    """Stands for a numpy.ndarray while the file is read; None before its state was set."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: str) -> None:
        if not isinstance(dtype, _Dtype):
            raise _RefusedError("an array without a dtype")
        data = data.encode("latin1") if isinstance(data, str) else bytes(data)
        self.value = np.frombuffer(data, dtype=dtype.real()).reshape(shape, order="F" if order == "F" else "C")


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        # Older files say numpy.core, newer ones numpy._core.
        known = {
            "numpy.multiarray._reconstruct": self.reconstruct,
            "numpy.multiarray.scalar": self.scalar,
            "numpy.numeric._frombuffer": self.frombuffer,
            "numpy.ndarray": self.nothing,
            "numpy.dtype": self.dtype,
            "_codecs.encode": self.latin,  # how protocol 2 writes bytes
        }
        asked = f"{module}.{name}"
        short = asked.replace("numpy.core.", "numpy.").replace("numpy._core.", "numpy.")
        if short not in known:
            raise _RefusedError(f"the name {asked}")
        return known[short]

    def nothing(self, *_: Any) -> Any:
        raise _RefusedError("a call of numpy.ndarray")

    def reconstruct(self, *_: Any) -> _Array:
        return _Array()

    def frombuffer(self, data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        array = _Array()
        array.fill(data, dtype, shape, _text(order))
        return array

    def scalar(self, dtype: Any, data: Any) -> _Array:
        return self.frombuffer(data, dtype, (), "C")

    def dtype(self, code: Any, *_: Any) -> _Dtype:
        return _Dtype(code)

    def latin(self, text: str, *_: Any) -> bytes:
        return text.encode("latin1")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """Return ``value`` with placeholders replaced by arrays."""
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, _Array):
        if value.value is None:
            raise _RefusedError("an array without content")
        return value.value if value.value.ndim else value.value[()]
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
        return value
    raise _RefusedError(f"an object of type {type(value).__name__}")

"""Pickles of plain data, read without running any code that they name."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import TYPE_CHECKING, Any

import numpy as np

from .files import check_size, decoding, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_pickle"]

#: approximate bytes in memory per operation of a pickle
_OBJECT = 100


def read_pickle(path: Path) -> Any:
    """Return the object in a pickle of dicts, lists, tuples, strings, bytes, numbers and arrays of numbers.

    Everything else is refused, and arrays are built here from their bytes, so no file can run code. Strings of Python 2
    become bytes. A file that refers to the same parts so often that its content is larger than the file is refused too.
    """
    raw = read_bytes(path)
    with decoding(path, "a complete pickle"):
        _check_operations(path, raw)
        try:
            return _plain(_PlainUnpickler(io.BytesIO(raw), _Budget(2 * len(raw))).load(), _Budget(len(raw)))
        except _RefusedError as error:
            raise ValueError(
                f"{path} must hold plain data (dict, list, bytes, str, numbers, arrays of numbers), found {error}"
            ) from None


def _check_operations(path: Path, raw: bytes) -> None:
    """Raise a ValueError if a pickle would make too many objects, or uses a memo slot with too large a number.

    The unpickler allocates memory for a slot before it reads on, and genops itself checks the lengths of strings.
    """
    for count, (operation, argument, _) in enumerate(pickletools.genops(raw)):
        check_size(path, _OBJECT * count, len(raw))
        if "PUT" in operation.name and isinstance(argument, int) and argument > len(raw):
            raise ValueError(f"slot {argument} in a file of {len(raw)} bytes")


class _RefusedError(Exception):
    """The file asks for more than plain data."""


class _Budget:
    """The number of values or bytes that may still be created.

    Without shared parts, a file holds at most one value per byte, and each byte is copied at most twice: from text to
    bytes, and to an array.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise _RefusedError("too many references to the same parts")


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
    """Stands for a numpy.ndarray while the file is read; ``value`` is None until its state is set."""

    value: np.ndarray | None = None

    def __init__(self, budget: _Budget) -> None:
        self.budget = budget

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: str) -> None:
        if not isinstance(dtype, _Dtype):
            raise _RefusedError("an array without a dtype")
        if not isinstance(data, (str, bytes, bytearray)):
            raise _RefusedError(f"an array made from {type(data).__name__}")
        self.budget.spend(len(data))
        data = data.encode("latin1") if isinstance(data, str) else bytes(data)
        self.value = np.frombuffer(data, dtype=dtype.real()).reshape(shape, order="F" if order == "F" else "C")


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, budget: _Budget) -> None:
        super().__init__(file, encoding="bytes")
        self.budget = budget

    def find_class(self, module: str, name: str) -> Any:
        # Older files name numpy.core, newer ones numpy._core.
        known = {
            "numpy.multiarray._reconstruct": self.reconstruct,
            "numpy.multiarray.scalar": self.scalar,
            "numpy.numeric._frombuffer": self.frombuffer,
            "numpy.ndarray": self.refuse_array,
            "numpy.dtype": self.dtype,
            "_codecs.encode": self.latin,  # protocol 2 writes bytes this way
        }
        asked = f"{module}.{name}"
        short = asked.replace("numpy.core.", "numpy.").replace("numpy._core.", "numpy.")
        if short not in known:
            raise _RefusedError(f"the name {asked}")
        return known[short]

    def refuse_array(self, *_: Any) -> Any:
        raise _RefusedError("a call of numpy.ndarray")

    def reconstruct(self, *_: Any) -> _Array:
        return _Array(self.budget)

    def frombuffer(self, data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        array = self.reconstruct()
        array.fill(data, dtype, shape, _text(order))
        return array

    def scalar(self, dtype: Any, data: Any) -> _Array:
        return self.frombuffer(data, dtype, (), "C")

    def dtype(self, code: Any, *_: Any) -> _Dtype:
        return _Dtype(code)

    def latin(self, text: str, *_: Any) -> bytes:
        self.budget.spend(len(text))
        return text.encode("latin1")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _plain(value: Any, budget: _Budget) -> Any:
    """Return a copy of ``value`` with placeholders replaced by arrays."""
    budget.spend()
    if isinstance(value, dict):
        return {_plain(k, budget): _plain(v, budget) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v, budget) for v in value)
    if isinstance(value, _Array):
        if value.value is None:
            raise _RefusedError("an array without content")
        return value.value if value.value.ndim else value.value[()]
    if value is None or isinstance(value, (bool, int, float, str, bytes, bytearray)):
        return value
    raise _RefusedError(f"an object of type {type(value).__name__}")

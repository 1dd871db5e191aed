"""How much memory a file may take once it is unpacked, and how long and deep a recipe may be.

Every limit has an environment variable that raises it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_BYTES", "VARIABLE", "check_size", "max_bytes", "max_recipe_bytes", "max_recipe_depth"]

#: environment variable that replaces the default limit
VARIABLE = "KERNELFIELD_MAX_BYTES"
#: default limit: 4 GiB
MAX_BYTES = 4 * 2**30
#: limits of recipes: environment variables and defaults
RECIPE_BYTES, RECIPE_DEPTH = ("KERNELFIELD_MAX_RECIPE_BYTES", 2**20), ("KERNELFIELD_MAX_RECIPE_DEPTH", 12)
#: nesting beyond this would exhaust the stack of Python
DEEPEST = 200
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def max_bytes() -> int:
    """Return how many bytes one file may unpack to: 4 GiB, or the value of ``KERNELFIELD_MAX_BYTES``, such as ``16G``.

    >>> max_bytes() == MAX_BYTES or VARIABLE in os.environ
    True
    """
    return _bytes(VARIABLE, MAX_BYTES)


def max_recipe_bytes() -> int:
    """Return how many bytes the file of a recipe may have: 1 MiB, or ``KERNELFIELD_MAX_RECIPE_BYTES``."""
    return _bytes(*RECIPE_BYTES)


def max_recipe_depth() -> int:
    """Return how deeply a recipe may be nested: 12 levels, or ``KERNELFIELD_MAX_RECIPE_DEPTH``, at most 200."""
    name, default = RECIPE_DEPTH
    text = os.environ.get(name, str(default)).strip()
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= DEEPEST:
        raise ValueError(f"{name} must be an int from 1 to {DEEPEST}, got {text!r}")
    return int(text)


def _bytes(variable: str, default: int) -> int:
    """Return the value of an environment variable that is a number of bytes."""
    text = os.environ.get(variable)
    if text is None:
        return default
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.strip().upper())
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{variable} must be a number of bytes such as 500M or 16G, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def check_size(path: str | Path, needed: int, stored: int = 0) -> None:
    """Raise if the data that a file declares exceed the memory limit.

    A file that is larger than the limit may take as many bytes as it has.

    Args:
        path: the file, and perhaps its line, for the error.
        needed: bytes in memory.
        stored: bytes of the file.
    """
    limit = max_bytes()
    if needed > max(limit, stored):
        raise ValueError(
            f"{path} must take at most {limit:,} bytes in memory, got {needed:,}; set {VARIABLE} to allow more"
        )

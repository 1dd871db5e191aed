"""How much memory a file may take once it is unpacked."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_BYTES", "VARIABLE", "check_size", "max_bytes"]

#: environment variable that replaces the default limit
VARIABLE = "KERNELFIELD_MAX_BYTES"
#: default limit: 4 GiB
MAX_BYTES = 4 * 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def max_bytes() -> int:
    """Return how many bytes one file may unpack to: 4 GiB, or the value of ``KERNELFIELD_MAX_BYTES``, such as ``16G``.

    >>> max_bytes() == MAX_BYTES or VARIABLE in os.environ
    True
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return MAX_BYTES
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text.strip().upper())
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{VARIABLE} must be a number of bytes such as 500M or 16G, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def check_size(path: str | Path, needed: int, stored: int = 0) -> None:
    """Raise if what a file declares takes more memory than the limit.

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

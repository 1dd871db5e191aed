"""The folder for what the library keeps between processes: measured costs and lists of compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["VARIABLE", "cache_folder"]

#: environment variable that moves the folder, or turns it off with "0" or "off"
VARIABLE = "KERNELFIELD_CACHE"


def cache_folder() -> Path | None:
    """Return the user's cache folder of this library, which may not exist yet; None if it is turned off.

    By default it is ``kernelfield`` in ``XDG_CACHE_HOME``, or in ``~/.cache``.

    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, {VARIABLE: "/tmp/mine"}):
    ...     str(cache_folder())
    '/tmp/mine'
    >>> with mock.patch.dict(os.environ, {VARIABLE: "off"}):
    ...     cache_folder() is None
    True
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None and chosen.strip().lower() in ("", "0", "off"):
        return None
    if chosen is not None:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kernelfield"

"""Modules of an extra that is not installed have no doctests to run."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("aeon") else ["src/kernelfield/aeon/*"]

"""The ``kernelfield`` command: one file per group of commands, which only call the package.

Exit codes: 0 success, 1 failure, 2 wrong arguments, 3 missing data, 4 diverged training.
"""

from . import calibration, catalog, comparing, runs, training  # noqa: F401 (each registers its commands)
from .app import app
from .common import DIVERGED, FAILED, NO_DATA, WRONG

__all__ = ["DIVERGED", "FAILED", "NO_DATA", "WRONG", "app"]

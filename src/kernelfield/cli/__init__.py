"""The ``kernelfield`` command: one file per group of commands, each a thin call of the package.

Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 missing data, 4 training diverged.
"""

from . import calibration, catalog, comparing, runs, training  # noqa: F401 (each registers its commands)
from .app import app
from .common import DIVERGED, FAILED, NO_DATA, WRONG

__all__ = ["DIVERGED", "FAILED", "NO_DATA", "WRONG", "app"]

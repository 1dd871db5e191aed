"""The ``kernelfield`` command: one file per group of commands, which only call the package.

- ``app`` holds the application and the options that several commands share, ``common`` their helpers;
- ``training``: train, which calls :func:`kernelfield.experiments.fit`, demo, reproduce and bench;
- ``runs``: test, inspect, predict and export;
- ``comparing``: compare, sweep and card;
- ``catalog``: list and new-recipe;
- ``calibration``: calibrate.

Exit codes: 0 success, 1 failure, 2 wrong arguments, 3 missing data, 4 diverged training.
"""

from . import calibration, catalog, comparing, runs, training  # noqa: F401 (each registers its commands)
from .app import app
from .common import DIVERGED, FAILED, NO_DATA, WRONG

#: commands in the order of ``kernelfield --help``: what users need first comes first
ORDER = (
    "train", "predict", "test", "inspect", "export", "list", "new-recipe", "compare", "sweep", "card", "demo", "bench",
    "calibrate", "reproduce",
)  # fmt: skip
app.registered_commands.sort(key=lambda c: ORDER.index(c.name or getattr(c.callback, "__name__", "")))

__all__ = ["DIVERGED", "FAILED", "NO_DATA", "WRONG", "app"]

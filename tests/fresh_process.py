"""Python modules run in processes of their own, with warnings as errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kernelfield

__all__ = ["run_module"]

_FOLDERS = (Path(kernelfield.__file__).parents[1], Path(__file__).parents[1])


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the result of ``python -m name *arguments`` without the caller's environment."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", name, *arguments],
        env={"PYTHONPATH": ":".join(map(str, _FOLDERS)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

"""Compilation of a training's GPU kernels ahead of time, from the record of an earlier training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._files import cache_folder
from ..ops.precompile import KernelRecord, precompile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KernelsAhead", "kernel_records"]


def kernel_records() -> Path | None:
    """Return the folder of records, ``kernels`` in the cache folder, or None if the cache is turned off."""
    folder = cache_folder()
    return None if folder is None else folder / "kernels"


class KernelsAhead:
    """Compile the GPU kernels of a recipe in the background, and record the kernels that it needs.

    Args:
        recipe: name of the recipe.
        folder: folder of the run, which holds a record too.
    """

    def __init__(self, recipe: str, folder: Path) -> None:
        records = kernel_records()
        self._paths = [folder / "kernels.jsonl", *([] if records is None else [records / f"{recipe}.jsonl"])]
        self._record = KernelRecord()
        self._compiling = precompile(self._paths)

    def wait(self) -> None:
        """Wait until all kernels are compiled."""
        self._compiling.wait()

    def write(self) -> None:
        """Write the record of the kernels compiled so far."""
        try:
            for path in self._paths:
                self._record.write(path)
        except OSError:  # without a record the next training compiles later, but still runs
            return

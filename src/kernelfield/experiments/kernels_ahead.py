"""GPU kernels of a training, compiled ahead from the record of an earlier one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..ops.precompile import KernelRecord, precompile

if TYPE_CHECKING:
    import torch

__all__ = ["KernelsAhead", "kernel_records"]


def kernel_records() -> Path:
    """Return the folder of records: ``kernels`` in ``KERNELFIELD_CACHE``, by default ~/.cache/kernelfield."""
    return Path(os.environ.get("KERNELFIELD_CACHE", "~/.cache/kernelfield")).expanduser() / "kernels"


class KernelsAhead:
    """Compile the kernels of a recipe in the background, and record which ones it needs. On a CPU it does nothing.

    Args:
        recipe: name of the recipe.
        folder: of the run, which holds a record too.
        device: of the training.
    """

    def __init__(self, recipe: str, folder: Path, device: torch.device) -> None:
        self._paths = [folder / "kernels.jsonl", kernel_records() / f"{recipe}.jsonl"]
        shipped = (
            Path(__file__).parent / "kernels" / f"{recipe}.jsonl"
        )  # of the version's own recipes, where there is one
        self._record = KernelRecord() if device.type == "cuda" else None
        self._compiling = precompile([*self._paths, shipped]) if device.type == "cuda" else None

    def wait(self) -> None:
        """Wait until all kernels are compiled."""
        if self._compiling is not None:
            self._compiling.wait()

    def write(self) -> None:
        """Write the kernels that were compiled so far."""
        if self._record is None:
            return
        try:
            for path in self._paths:
                self._record.write(path)
        except OSError:  # a home that cannot be written to costs time, not the training
            return

"""Layers and networks whose kernels are fields: continuous functions, sampled wherever the data lives."""

from . import fields, grids, masks, ops, testing
from ._version import __version__

__all__ = ["__version__", "fields", "grids", "masks", "ops", "testing"]

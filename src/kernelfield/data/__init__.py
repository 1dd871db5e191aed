"""Data, one file per kind: made in code, or read from where its user says."""

from .base import Batch, Data, Split
from .forms import as_sequence, noise_padded, permuted
from .irregular import drop_samples, drop_split
from .registry import Description, describe, list_data, load, register

__all__ = [
    "Batch",
    "Data",
    "Description",
    "Split",
    "as_sequence",
    "describe",
    "drop_samples",
    "drop_split",
    "list_data",
    "load",
    "noise_padded",
    "permuted",
    "register",
]

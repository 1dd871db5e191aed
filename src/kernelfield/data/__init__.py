"""Data sets, generated or read from files."""

from .base import Batch, Data, Split
from .preprocessing import Preprocessing, preprocessing
from .registry import Description, data_shape, describe, list_data, load, register
from .shape import DataShape
from .transforms.drop_samples import drop_samples, drop_split
from .transforms.to_sequence import as_sequence, noise_padded, permuted

__all__ = [
    "Batch",
    "Data",
    "DataShape",
    "Description",
    "Preprocessing",
    "Split",
    "as_sequence",
    "data_shape",
    "describe",
    "drop_samples",
    "drop_split",
    "list_data",
    "load",
    "noise_padded",
    "permuted",
    "preprocessing",
    "register",
]

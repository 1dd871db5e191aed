"""Data sets, generated or read from files.

:func:`load` returns a data set by name, and :func:`register` adds your own. The files:

- containers: ``base`` (batch, split, data set), ``shape`` (channels, size and task, known before loading);
- data sets: ``registry`` (all names), ``sets/`` (one folder per kind of data, one file per set);
- reading and changing them: ``io/`` (readers of files), ``transforms/`` (of samples, batches and splits);
- new samples for a trained network: ``metadata`` (the preparation, without the samples), ``preprocessing``
  (pretrained networks), ``labelled`` (new test data).
"""

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

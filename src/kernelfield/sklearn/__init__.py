"""Estimators with the interface of scikit-learn and aeon.

They take arrays (n, channels, length) or (n, length), images (n, channels, rows, columns), and lists of series of
unequal length, (channels, length) or (length,). NaN marks a missing value.

:class:`RandomKernelClassifier` and :class:`RandomKernelRegressor` are fitted in seconds and suit up to a few thousand
samples. :class:`CCNNClassifier` and :class:`CCNNRegressor` train a network and average its predictions with theirs.
"""

from .ccnn import CCNNClassifier, CCNNRegressor
from .random_kernels import RandomKernelClassifier, RandomKernelRegressor

__all__ = ["CCNNClassifier", "CCNNRegressor", "RandomKernelClassifier", "RandomKernelRegressor"]

"""Estimators with the interface of scikit-learn.

They take arrays (n, channels, length) or (n, length), images (n, channels, rows, columns), and lists of series of
unequal length, (channels, length) or (length,). NaN marks a missing value.

The estimators that train a network also take series at irregular times: a list of pairs (times, values), with times
(points,) and values (channels, points); or of dicts of such pairs by channel, each channel at its own times.
:class:`CCNNForecaster` predicts values at query times.

:class:`RandomKernelClassifier` and :class:`RandomKernelRegressor` are fitted in seconds and suit up to a few thousand
samples. :class:`CCNNClassifier` and :class:`CCNNRegressor` train a network and average its predictions with theirs.
:class:`WaveletClassifier` is for sounds, :class:`GroupClassifier` for images in any orientation.

The files:

- one per family of estimators: ``ccnn``, ``forecast``, ``group``, ``random_kernels``, ``wavelet``;
- base classes: ``_base`` (all estimators), ``_network`` (those that train a network), ``_partial`` (training in parts),
  ``_arguments`` (constructors);
- inputs: ``_arrays`` (series and images), ``_irregular`` (series with times);
- fits in closed form: ``_ridge``, ``_blend`` (weights of networks and random kernels).
"""

from .ccnn import CCNNClassifier, CCNNRegressor
from .forecast import CCNNForecaster
from .group import GroupClassifier
from .random_kernels import RandomKernelClassifier, RandomKernelRegressor
from .wavelet import WaveletClassifier

__all__ = [
    "CCNNClassifier",
    "CCNNForecaster",
    "CCNNRegressor",
    "GroupClassifier",
    "RandomKernelClassifier",
    "RandomKernelRegressor",
    "WaveletClassifier",
]

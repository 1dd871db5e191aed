"""The estimators, as aeon's classes."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import sklearn as wrapped
from ..sklearn._arguments import KernelArguments, NetworkArguments
from ._base import Classifier, ContinuedClassifier, ContinuedRegressor, Regressor

__all__ = ["CCNNClassifier", "CCNNRegressor", "RandomKernelClassifier", "RandomKernelRegressor"]


class _Network(NetworkArguments):
    """Tags and test parameters for aeon of the estimators that train a network."""

    _TEST_PARAMS: ClassVar[dict[str, Any]] = {
        "channels": 4, "blocks": 1, "epochs": 1, "networks": 1, "random_kernels": 10, "device": "cpu"
    }  # fmt: skip
    _tags: ClassVar[dict[str, Any]] = {"algorithm_type": "deeplearning"}


class _Kernels(KernelArguments):
    """Tags and test parameters for aeon of the estimators of random kernels."""

    _TEST_PARAMS: ClassVar[dict[str, Any]] = {"kernels": 10}
    _tags: ClassVar[dict[str, Any]] = {"algorithm_type": "convolution"}


class CCNNClassifier(_Network, ContinuedClassifier):
    """A trained network as an aeon classifier, with the arguments of :class:`kernelfield.sklearn.CCNNClassifier`.

    Attributes:
        estimator_: the fitted estimator of :mod:`kernelfield.sklearn`, with its ``network_`` and ``history_``.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> y = np.array(["up", "down"] * 10)
    >>> X[y == "up"] += np.linspace(0, 4, 16)
    >>> clf = CCNNClassifier(channels=8, blocks=1, epochs=20, random_kernels=50).fit(X, y)
    >>> clf.predict_proba(X).shape
    (20, 2)
    """

    _ESTIMATOR = wrapped.CCNNClassifier


class CCNNRegressor(_Network, ContinuedRegressor):
    """A trained network as an aeon regressor, with the arguments of :class:`kernelfield.sklearn.CCNNRegressor`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> CCNNRegressor(channels=4, blocks=1, epochs=1, random_kernels=50).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """

    _ESTIMATOR = wrapped.CCNNRegressor


class RandomKernelClassifier(_Kernels, Classifier):
    """Random kernels as an aeon classifier, with the arguments of :class:`kernelfield.sklearn.RandomKernelClassifier`.

    >>> import numpy as np
    >>> X, y = np.random.default_rng(0).normal(size=(20, 1, 16)), np.arange(20) % 2
    >>> RandomKernelClassifier(kernels=50).fit(X, y).predict(X).shape
    (20,)
    """

    _ESTIMATOR = wrapped.RandomKernelClassifier


class RandomKernelRegressor(_Kernels, Regressor):
    """Random kernels as an aeon regressor, with the arguments of :class:`kernelfield.sklearn.RandomKernelRegressor`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> RandomKernelRegressor(kernels=50).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """

    _ESTIMATOR = wrapped.RandomKernelRegressor

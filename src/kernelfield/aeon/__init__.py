"""The estimators of :mod:`kernelfield.sklearn` as aeon's classifiers and regressors.

They pass aeon's own estimator checks and take aeon's collections: arrays (n, channels, length) or (n, length), and
lists of series of unequal length. NaN marks a missing value. Arguments, defaults and predictions are those of the
scikit-learn classes, which also take images and irregular times.

Install aeon with the extra ``aeon``: ``pip install -e '.[aeon]'`` in a checkout.
"""

from .estimators import CCNNClassifier, CCNNRegressor, RandomKernelClassifier, RandomKernelRegressor

__all__ = ["CCNNClassifier", "CCNNRegressor", "RandomKernelClassifier", "RandomKernelRegressor"]

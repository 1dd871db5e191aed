"""Base classes of aeon estimators that wrap an estimator of :mod:`kernelfield.sklearn`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from aeon.classification import BaseClassifier
from aeon.regression import BaseRegressor

from ..sklearn._base import check_columns

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Classifier", "ContinuedClassifier", "ContinuedRegressor", "Regressor"]


class _Wrapped:
    """An aeon estimator that fits a scikit-learn estimator, ``estimator_``."""

    is_fitted: bool
    _ESTIMATOR: ClassVar[type]
    #: arguments for aeon's checks: small networks and short trainings
    _TEST_PARAMS: ClassVar[dict[str, Any]]
    _tags: ClassVar[dict[str, Any]] = {
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "X_inner_type": ["numpy3D", "np-list"],
    }

    def _new(self) -> Any:
        return self._ESTIMATOR(**self.get_params(deep=False))  # type: ignore[attr-defined]

    def _preprocess_collection(self, X: Any, store_metadata: bool = True) -> Any:
        """Check and convert series as aeon does; columns of a data frame in another order than in fit are an error."""
        check_columns(self, X, reset=store_metadata)
        return super()._preprocess_collection(X, store_metadata=store_metadata)  # type: ignore[misc]

    def _fit(self, X: Any, y: np.ndarray) -> Any:
        self.estimator_ = self._new().fit(X, y)
        return self

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:  # noqa: ARG003
        return dict(cls._TEST_PARAMS)


class Classifier(_Wrapped, BaseClassifier):
    """Base class of the classifiers."""

    def _predict_proba(self, X: Any) -> np.ndarray:
        return self.estimator_.predict_proba(X)


class Regressor(_Wrapped, BaseRegressor):
    """Base class of the regressors."""


class ContinuedClassifier(Classifier):
    """Base class of the classifiers with ``partial_fit``."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Any:
        """Train one pass over these series; see :meth:`kernelfield.sklearn.CCNNClassifier.partial_fit`.

        Args:
            X: series.
            y: (n,) their classes.
            classes: all classes, including those of later calls; needed in the first call.
        """
        series = self._preprocess_collection(X, store_metadata=not self.is_fitted)
        y = self._check_y(y, len(series), update_classes=False, allow_single_class=True)
        estimator = self.estimator_ if self.is_fitted else self._new()
        self.estimator_ = estimator.partial_fit(series, y, classes)
        self.classes_, self.n_classes_ = estimator.classes_, len(estimator.classes_)
        self._class_dictionary = {label: i for i, label in enumerate(self.classes_)}
        self.is_fitted = True
        return self


class ContinuedRegressor(Regressor):
    """Base class of the regressors with ``partial_fit``."""

    def partial_fit(self, X: Any, y: Any) -> Any:
        """Train one pass over these series; see :meth:`kernelfield.sklearn.CCNNRegressor.partial_fit`."""
        series = self._preprocess_collection(X, store_metadata=not self.is_fitted)
        y = self._check_y(y, len(series))
        estimator = self.estimator_ if self.is_fitted else self._new()
        self.estimator_ = estimator.partial_fit(series, y)
        self.is_fitted = True
        return self

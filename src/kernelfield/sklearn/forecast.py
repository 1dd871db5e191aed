"""An estimator that predicts values at query times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from ..data.base import TargetScale
from ..data.transforms.series_checks import compare_queries
from ._irregular import Points, check_same_zones, irregular, is_irregular, points_like, query_times, with_times
from ._partial import PartialFit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["CCNNForecaster"]


class CCNNForecaster(PartialFit):
    """A network that predicts the values of series at query times, for interpolation and forecasts.

    ``X`` is a list of series at irregular times, as in :class:`CCNNClassifier`. ``y`` holds the values to predict and
    their times in the same form: for each series a pair (times, values), or a dict of such pairs by channel, each at
    its own times. The channels of ``y`` may differ from those of ``X``. Times have the same origin in both.

    Args:
        options: arguments of :class:`CCNNClassifier`; there are no random kernels.

    Attributes:
        network_: the trained network, with a dense readout.
        history_: one row of metrics per evaluated epoch.

    >>> source = np.random.default_rng(0)
    >>> times = [np.sort(source.uniform(0, 6, 20)) for _ in range(16)]
    >>> X = [(t[:12], np.sin(t[:12])) for t in times]
    >>> y = [(t[12:], np.sin(t[12:])) for t in times]
    >>> model = CCNNForecaster(channels=4, blocks=1, epochs=1).fit(X, y)
    >>> model.predict(X, at=[4.0, 4.5, 5.0]).shape
    (16, 3)
    """

    task = "dense-regression"

    def fit(self, X: Any, y: Any) -> CCNNForecaster:
        """Fit to series ``X`` and the values ``y`` to predict at their times."""
        self._check_arguments()
        _check_series(X, y)
        inputs, mask = self._read(X)
        targets = self._read_targets(y)
        at = self._placed(X, targets.times)
        self._reach_ = (float(at.min()), float(at.max()))
        self._fit(X, inputs, mask, self._scale_.normal(targets.values), targets.values.shape[1], at)
        return self

    def partial_fit(self, X: Any, y: Any) -> CCNNForecaster:
        """Train one pass over these series like :meth:`CCNNClassifier.partial_fit`."""
        self._check_arguments()
        _check_series(X, y)
        if self._is_first():
            inputs, mask = self._read(X)
            targets = self._read_targets(y)
            self._start(X, inputs, mask)
        else:
            targets = self._read_more_targets(y)
            if targets.values.shape[1] != len(self._scale_.mean):
                raise ValueError(f"y must have {len(self._scale_.mean)} channels, got {targets.values.shape[1]}")
        at = self._placed(X, targets.times)
        known = (at.new_tensor(self._reach_) if hasattr(self, "_reach_") else at).flatten()
        self._reach_ = (min(float(known.min()), float(at.min())), max(float(known.max()), float(at.max())))
        self._continue(X, self._scale_.normal(targets.values), targets.values.shape[1], at)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Series with times are lists, and no check of scikit-learn makes them.
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, False
        return tags

    def _read_targets(self, y: Any) -> Points:
        """Return the values to predict, and store their form and scale."""
        y = with_times(y)
        targets = irregular(y, "y", dates=self._dates_)
        if bool(targets.values.isnan().all()):
            raise ValueError("y must hold at least one value to predict, got none")
        self._one_ = not isinstance(y[0], dict) and np.ndim(y[0][1]) == 1
        self._targets_ = sorted({c for series in y for c in series}, key=str) if isinstance(y[0], dict) else None
        self._scale_ = TargetScale.of(targets.values, "y")
        return targets

    def _read_more_targets(self, y: Any) -> Points:
        """Return values to predict, in the form of those in ``fit``."""
        return points_like(y, "y", self._targets_, dates=self._dates_)

    def predict(self, X: Any, at: Any) -> Any:
        """Return the values of series at query times.

        Args:
            X: the series.
            at: (queries,) times for all series, or a list of the times for each.

        Returns:
            (n, targets, queries) values, or a list of (targets, queries) for a list of times; without the axis of
            targets if ``fit`` was given values (points,).
        """
        check_is_fitted(self, "_mean_")
        rows, common = query_times(at, len(X), self._dates_)
        check_same_zones(X, [at] * len(X) if common else list(at), "at")
        found = self._values_at(X, rows)
        return np.stack(found) if common else found

    def _values_at(self, X: Any, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Return the values of each series at its query times."""
        longest = max(map(len, rows))
        times = torch.from_numpy(np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows]))
        at = self._placed(X, times)
        compare_queries(at, self._reach_, self._unit_ or 1.0)
        found = self._scale_.undo(self._outputs(X, at)[0]).numpy()
        found = found[:, 0] if self._one_ else found
        return [values[..., : len(row)] for values, row in zip(found, rows, strict=True)]

    def score(self, X: Any, y: Any) -> float:
        """Return the coefficient of determination R² of the predictions at the times of ``y``."""
        check_is_fitted(self, "_mean_")
        _check_series(X, y)
        targets = self._read_more_targets(y)
        rows = [times[mask].numpy() for times, mask in zip(targets.times, targets.mask, strict=True)]
        errors, values = [], []
        wanted = self._scale_.normal(targets.values)
        for i, found in enumerate(self._values_at(X, rows)):
            predicted = torch.from_numpy(np.atleast_2d(found))
            learned = self._scale_.normal(predicted.unsqueeze(0))[0]
            target = wanted[i, :, : learned.shape[1]]
            known = ~target.isnan()
            errors.append((learned - target)[known])
            values.append(target[known])
        error, value = torch.cat(errors).double(), torch.cat(values).double()
        return float(1 - error.square().sum() / (value - value.mean()).square().sum().clamp(min=1e-12))

    def _placed(self, X: Sequence[Any], times: Tensor) -> Tensor:
        """Return times (n, queries) as coordinates (n, queries, 1) of the series."""
        first = self._points(X).times[:, :1]
        assert self._unit_ is not None  # series with times have a unit
        return ((times - first) / self._unit_).float().unsqueeze(2)


def _check_series(X: Any, y: Any) -> None:
    """Raise a ValueError unless both are lists of series with times, of the same length."""
    for name, given in (("X", X), ("y", y)):
        if not is_irregular(given):
            raise ValueError(f"{name} must be a list of series with times, got {type(given).__name__}")
    if len(y) != len(X):
        raise ValueError(f"y must hold the values to predict for each of the {len(X)} series, got {len(y)}")
    check_same_zones(X, y, "y")

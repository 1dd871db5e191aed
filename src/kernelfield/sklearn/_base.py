"""Base class of the estimators: normalisation, input checks, predictions in batches."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import validation
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .._arguments import takes_argument
from ..data.base import Split, TargetScale
from ..data.transforms.series_checks import compare_channels
from ._arrays import is_ragged, labels, observed, plain, signals
from ._irregular import (
    Points,
    are_dates,
    check_gaps,
    irregular,
    is_irregular,
    median_gap,
    points_like,
    warn_of_lists,
    with_times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from .._kinds import Kind

__all__ = ["Classifier", "Estimator", "Regressor", "check_columns", "check_no_gaps"]

#: samples per forward pass of a prediction
BATCH = 256
#: held by the fit that draws from torch's global random state
_RANDOM_NUMBERS = threading.RLock()


def check_no_gaps(network: nn.Module, mask: Tensor | None) -> None:
    """Raise a ValueError if values are missing and the network does not take a mask."""
    if mask is not None and not takes_argument(network.forward, "mask"):
        raise ValueError(f"X must have no missing values for a {type(network).__name__}, got NaN")


def check_columns(estimator: Any, X: Any, *, reset: bool) -> None:
    """Keep the names of a data frame's columns as ``feature_names_in_``, or compare them with those of ``fit``."""
    check = getattr(validation, "_check_feature_names", None)
    if check is None:  # before scikit-learn 1.6
        estimator._check_feature_names(X, reset=reset)  # noqa: SLF001
    else:
        check(estimator, X, reset=reset)


def _without_values(values: Tensor) -> Tensor:
    """Return which samples have no value of which channel (n, channels), for values that are NaN where missing."""
    return values.isnan().flatten(2).all(dim=2)


class Estimator(BaseEstimator):
    """Base class of all estimators.

    A subclass defines ``_fit_networks``, which fits one or more networks to normalised inputs, and ``_networks``, which
    returns them.

    Attributes:
        task: "classification" or "regression".
    """

    task: str
    #: kinds of the arguments; ``fit`` checks them, as scikit-learn requires
    KINDS: ClassVar[dict[str, Kind]] = {}

    def _check_arguments(self) -> None:
        for name, kind in self.KINDS.items():
            kind.check(name, plain(getattr(self, name)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.non_deterministic = False
        return tags

    def prepare(self, X: Any) -> tuple[Tensor, Tensor | None]:
        """Return inputs (n, channels, *space) and mask (n, *space) or None for the fitted networks.

        Networks that are fitted to series with times also take the result of :meth:`coordinates`.
        """
        check_is_fitted(self, "_mean_")
        if is_irregular(X) != (self._unit_ is not None):
            raise ValueError(f"X must {'' if self._unit_ else 'not '}have times, as in fit, got {type(X).__name__}")
        if self._unit_ is not None:
            points = self._points(X)
            check_gaps(points, self._unit_)
            if points.values.shape[1] != self._shape_[0]:
                raise ValueError(f"X must have {self._shape_[0]} channels, got {points.values.shape[1]}")
            seen = observed(points.mask, points.values)
            self._compare(points.values, seen)
            return self._with_observed(self._normal(points.values, seen), seen), points.mask
        check_columns(self, X, reset=False)  # columns of a data frame in another order are an error
        inputs, mask, is_table = signals(X)
        # Series of unequal length have no fixed number of features.
        if is_table and not self._ragged_ and inputs.shape[-1] != self.n_features_in_:
            raise ValueError(
                f"X has {inputs.shape[-1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        if inputs.shape[1] != self._shape_[0] or inputs.dim() != len(self._shape_) + 1:
            raise ValueError(f"X must hold samples of shape {tuple(self._shape_)}, got {tuple(inputs.shape[1:])}")
        size, other = self._shape_[1:], tuple(inputs.shape[2:])
        if not self._ragged_ and other != tuple(size):
            shown = ["×".join(map(str, one)) for one in (other, size)]
            warnings.warn(
                f"samples of X have {'length' if len(size) == 1 else 'size'} {shown[0]}, and those in fit {shown[1]}; "
                "they count as sampled at the same rate",
                stacklevel=4,
            )
        seen = observed(mask, inputs)
        self._compare(inputs, seen)
        return self._normal(inputs, seen), mask

    def _compare(self, values: Tensor, seen: Tensor) -> None:
        """Warn if the observed values (n, channels, …) of a channel seem to have another unit than in ``fit``."""
        names = [str(name) for name in self._channels_ or ()]
        mean, deviation = (t.double().flatten() for t in (self._mean_, self._deviation_))
        known = values.double().masked_fill(seen.expand_as(values) == 0, torch.nan)
        compare_channels(known.transpose(0, 1).flatten(1), mean, deviation, names, "X", stacklevel=5)
        without = _without_values(known) & self._always_
        for channel in torch.nonzero(without.any(dim=0)).flatten().tolist()[:3]:
            warnings.warn(
                f"{int(without[:, channel].sum())} of {len(values)} series of X have no value of channel "
                f"{repr(names[channel]) if names else channel}; all series in fit had one",
                stacklevel=4,
            )

    def coordinates(self, X: Any) -> Tensor | None:
        """Return the coordinates (n, points, 1) of series with times, in training steps; None for other samples."""
        check_is_fitted(self, "_mean_")
        if self._unit_ is None:
            return None
        times = self._points(X).times
        return ((times - times[:, :1]) / self._unit_).float().unsqueeze(2)

    def _points(self, X: Any) -> Points:
        """Return series with times, in the form of those in ``fit``."""
        return points_like(X, "X", self._channels_, dates=self._dates_)

    def _read(self, X: Any) -> tuple[Tensor, Tensor | None]:
        """Return the values (n, channels, *space) of training samples, NaN where missing, and their mask."""
        self._unit_: float | None = None
        self._channels_: list[Any] | None = None
        self._dates_ = False
        check_columns(self, X, reset=True)
        X = with_times(X)
        if not is_irregular(X):
            warn_of_lists(X)
            return signals(X)[:2]
        if isinstance(X[0], dict):
            self._channels_ = sorted({c for series in X for c in series}, key=str)
        self._dates_ = are_dates(X)
        points = irregular(X)
        # One training step is that of the weights to start from, or the median gap between two points.
        self._unit_ = self._start_unit() or median_gap(points) or 1.0
        return points.values, points.mask

    def _start_unit(self) -> float | None:
        """Return the time of one training step of the weights to start from; None if there are none with times."""
        return None

    def _with_observed(self, inputs: Tensor, seen: Tensor) -> Tensor:
        """Return inputs and, if channels are observed at different times, one channel of 1 and 0 for each."""
        return torch.cat([inputs, seen], dim=1) if self._observed_ else inputs

    def _fit(
        self, X: Any, inputs: Tensor, mask: Tensor | None, target: Tensor, out: int, at: Tensor | None = None
    ) -> None:
        self._start(X, inputs, mask, ignore_constants=True)
        with self._restored_random_state():
            self._fit_networks(self._split(X, target, at), out)

    def _start(self, X: Any, inputs: Tensor, mask: Tensor | None, *, ignore_constants: bool = False) -> None:
        """Store the shape of the samples, and the mean and deviation of each channel.

        Args:
            X: the samples as given.
            inputs: (n, channels, *space) their values.
            mask: (n, *space) observed positions, or None.
            ignore_constants: whether the networks never see channels that are constant in ``X``. Their weights for such
                channels keep their random start, so other values would change predictions at random.
        """
        timed = self._unit_ is not None
        self._ragged_ = timed or is_ragged(X)
        self.n_features_in_ = int(inputs.shape[-1] if inputs.shape[1] == 1 else inputs.shape[1])
        self._shape_ = tuple(inputs.shape[1:])
        seen = observed(mask, inputs)
        self._observed_ = timed and bool((seen.amin(dim=1) != seen.amax(dim=1)).any())
        self._always_ = ~_without_values(inputs.masked_fill(seen.expand_as(inputs) == 0, torch.nan)).any(dim=0)
        axes = (0, *range(2, inputs.dim()))
        count = seen.sum(dim=axes).clamp(min=1)
        shape = (1, -1, *(1,) * (inputs.dim() - 2))
        self._mean_ = (inputs * seen).sum(dim=axes).div(count).view(shape)
        deviation = ((inputs - self._mean_) * seen).square().sum(dim=axes).div(count).sqrt().view(shape)
        if bool((deviation <= 1e-8).any()):  # in float64: the squares of small values are zero in float32
            exact = ((inputs - self._mean_) * seen).double().square().sum(dim=axes).div(count).sqrt().view(shape)
            deviation = torch.where(deviation <= 1e-8, exact.to(deviation), deviation)
        # Small values vary too, such as magnetic fields in tesla; a constant varies by rounding only.
        varies = (deviation > 1e-8) | (deviation > self._mean_.abs() * 1e-6)
        self._deviation_ = torch.where(varies, deviation, torch.inf if ignore_constants else 1.0)

    def _split(self, X: Any, target: Tensor, at: Tensor | None = None) -> Split:
        """Return normalised samples and their targets."""
        inputs, mask = self.prepare(X)
        return Split(inputs, target, mask=mask, coords=self.coordinates(X), at=at)

    @staticmethod
    @contextmanager
    def _restored_random_state() -> Iterator[None]:
        """Restore torch's random state at the end. Threads share it, so only one may draw at a time."""
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with _RANDOM_NUMBERS, torch.random.fork_rng(devices=list(devices)):
            yield

    def _normal(self, inputs: Tensor, seen: Tensor) -> Tensor:
        return (inputs - self._mean_) / self._deviation_ * seen

    def _fit_networks(self, split: Split, out: int) -> None:
        """Fit the networks.

        Args:
            split: normalised inputs and targets, with mask, coordinates and queries if there are any.
            out: number of outputs.
        """
        raise NotImplementedError

    def _networks(self) -> Sequence[nn.Module]:
        raise NotImplementedError

    def _shares(self) -> list[tuple[float, float]]:
        """Return the weight of each network in the mean, and the factor on its logits."""
        return [(1.0, 1.0)]

    @torch.no_grad()
    def _outputs(self, X: Any, at: Tensor | None = None) -> list[Tensor]:
        """Return the outputs of each network in float64: (n, out), or (n, out, queries) at query coordinates.

        In float64, a prediction does not depend on the other samples of its batch.
        """
        inputs, mask = self.prepare(X)
        given = {"mask": mask, "coords": self.coordinates(X), "at": at}
        found = []
        for network in self._networks():
            check_no_gaps(network, mask)
            tensor = next(network.parameters())
            parts = []
            for start in range(0, len(inputs), BATCH):
                part = slice(start, start + BATCH)
                options = {name: t[part].to(tensor.device) for name, t in given.items() if t is not None}
                options = {name: t.to(tensor.dtype) if t.is_floating_point() else t for name, t in options.items()}
                parts.append(network(inputs[part].to(tensor), **options).cpu().double())
            found.append(torch.cat(parts))
        return found


class Classifier(Estimator):
    """Base class of all classifiers."""

    task = "classification"

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to series or images ``X`` and their classes ``y`` (n,)."""
        self._check_arguments()
        inputs, mask = self._read(X)
        y = labels(y, len(inputs))
        check_classification_targets(y)
        self._set_classes("y", y)
        self._fit(X, inputs, mask, self._index(y), len(self.classes_))
        return self

    def _set_classes(self, name: str, values: np.ndarray) -> None:
        self.classes_ = np.unique(values)
        if len(self.classes_) < 2:
            raise ValueError(f"{name} must hold at least 2 classes, got one class: {plain(self.classes_[0])!r}")

    def _index(self, y: np.ndarray) -> Tensor:
        """Return the indices of classes."""
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y must hold only the classes {self.classes_.tolist()}, got {plain(unknown[0])!r}")
        return torch.from_numpy(np.searchsorted(self.classes_, y)).long()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes: (n, classes)."""
        outputs = self._outputs(X)
        parts = [w * (f * logits).softmax(dim=1) for logits, (w, f) in zip(outputs, self._shares(), strict=True)]
        return torch.stack(parts).sum(dim=0).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the classes: (n,)."""
        index = self.predict_proba(X).argmax(axis=1)
        return self.classes_[index]


class Regressor(Estimator):
    """Base class of all regressors."""

    task = "regression"

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to series or images ``X`` and their values ``y`` (n,) or (n, outputs)."""
        self._check_arguments()
        inputs, mask = self._read(X)
        target = self._values(y, len(inputs))
        self._scale_ = TargetScale.of(target, "y")
        self._fit(X, inputs, mask, self._scale_.normal(target), target.shape[1])
        return self

    def _values(self, y: Any, n: int) -> Tensor:
        """Return the targets of ``n`` samples as (n, outputs)."""
        values = labels(y, n, numeric=True)
        self._one_ = values.ndim == 1
        return torch.from_numpy(values.reshape(len(values), -1)).double()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """Return the values: (n,) or (n, outputs)."""
        outputs = self._outputs(X)  # comes first, because it raises if the estimator is not fitted
        learned = torch.stack([w * part for part, (w, _) in zip(outputs, self._shares(), strict=True)]).sum(dim=0)
        values = self._scale_.undo(learned)
        return (values[:, 0] if self._one_ else values).numpy()

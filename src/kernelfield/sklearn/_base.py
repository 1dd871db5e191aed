"""Base class of the estimators: normalisation, input checks, predictions in batches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from .._kinds import SEED, TEXT
from .._object_kinds import FIELD, Instance
from ..data.base import TargetScale
from ._arrays import is_ragged, labels, observed, plain, signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from .._kinds import Kind

__all__ = ["Classifier", "Estimator", "Regressor"]

FIELD_OR_NAME = TEXT | FIELD
RANDOM_STATE = SEED | Instance("numpy.random.RandomState") | None
#: samples per forward pass of a prediction
BATCH = 256
#: held by the fit that draws random numbers
_RANDOM_NUMBERS = threading.RLock()


class Estimator(BaseEstimator):
    """Base class of all estimators.

    A subclass defines ``_fit_networks`` (inputs, mask, target, out), which fits one or several networks to normalised
    inputs, and ``_networks``, which returns them.

    Attributes:
        task: "classification" or "regression".
    """

    task: str
    #: kinds of the arguments; they are checked by ``fit``, as scikit-learn wants it
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
        """Return inputs (n, channels, *space) and mask (n, *space) or None, as the fitted networks take them."""
        check_is_fitted(self, "_mean_")
        inputs, mask, is_table = signals(X)
        # Series of unequal length have no fixed number of features.
        if is_table and not self._ragged_ and inputs.shape[-1] != self.n_features_in_:
            raise ValueError(
                f"X has {inputs.shape[-1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        if inputs.shape[1] != self._shape_[0] or inputs.dim() != len(self._shape_) + 1:
            raise ValueError(f"X must hold samples of shape {tuple(self._shape_)}, got {tuple(inputs.shape[1:])}")
        return self._normal(inputs, observed(mask, inputs)), mask

    def _fit(self, X: Any, inputs: Tensor, mask: Tensor | None, target: Tensor, out: int) -> None:
        self._ragged_ = is_ragged(X)
        self.n_features_in_ = int(inputs.shape[-1] if inputs.shape[1] == 1 else inputs.shape[1])
        self._shape_ = tuple(inputs.shape[1:])
        seen = observed(mask, inputs)
        axes = (0, *range(2, inputs.dim()))
        count = seen.sum(dim=axes).clamp(min=1)
        shape = (1, -1, *(1,) * (inputs.dim() - 2))
        self._mean_ = (inputs * seen).sum(dim=axes).div(count).view(shape)
        deviation = ((inputs - self._mean_) * seen).square().sum(dim=axes).div(count).sqrt().view(shape)
        self._deviation_ = torch.where(deviation > 1e-8, deviation, torch.ones_like(deviation))
        # Threads share torch's random numbers: a fit that draws from them runs alone.
        with _RANDOM_NUMBERS, torch.random.fork_rng(devices=[]):
            self._fit_networks(self._normal(inputs, seen), mask, target, out)

    def _normal(self, inputs: Tensor, seen: Tensor) -> Tensor:
        return (inputs - self._mean_) / self._deviation_ * seen

    def _fit_networks(self, inputs: Tensor, mask: Tensor | None, target: Tensor, out: int) -> None:
        raise NotImplementedError

    def _networks(self) -> Sequence[nn.Module]:
        raise NotImplementedError

    @torch.no_grad()
    def _outputs(self, X: Any) -> list[Tensor]:
        """Return the outputs (n, out) of each network, in float64.

        In float64 the other samples of a batch do not change the last digits of a prediction.
        """
        inputs, mask = self.prepare(X)
        found = []
        for network in self._networks():
            tensor = next(network.parameters())
            parts = []
            for start in range(0, len(inputs), BATCH):
                part = slice(start, start + BATCH)
                options = {} if mask is None else {"mask": mask[part].to(tensor.device)}
                parts.append(network(inputs[part].to(tensor), **options).cpu().double())
            found.append(torch.cat(parts))
        return found


class Classifier(Estimator):
    """Methods of all classifiers."""

    task = "classification"

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to series or images ``X`` and their classes ``y`` (n,)."""
        self._check_arguments()
        inputs, mask, _ = signals(X)
        y = labels(y, len(inputs))
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least 2 classes, got one class: {self.classes_[0]!r}")
        self._fit(X, inputs, mask, torch.from_numpy(index).long(), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes: (n, classes)."""
        return torch.stack([outputs.softmax(dim=1) for outputs in self._outputs(X)]).mean(dim=0).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the classes: (n,)."""
        index = self.predict_proba(X).argmax(axis=1)
        return self.classes_[index]


class Regressor(Estimator):
    """Methods of all regressors."""

    task = "regression"

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to series or images ``X`` and their values ``y`` (n,) or (n, outputs)."""
        self._check_arguments()
        inputs, mask, _ = signals(X)
        values = labels(y, len(inputs), numeric=True)
        self._one_ = values.ndim == 1
        target = torch.from_numpy(values.reshape(len(values), -1)).double()
        self._scale_ = TargetScale.of(target)
        self._fit(X, inputs, mask, self._scale_.normal(target), target.shape[1])
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """Return the values: (n,) or (n, outputs)."""
        learned = torch.stack(self._outputs(X)).mean(dim=0)  # first: it raises if the estimator is not fitted
        outputs = self._scale_.undo(learned)
        return (outputs[:, 0] if self._one_ else outputs).numpy()

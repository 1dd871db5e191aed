"""Estimators with the interface of scikit-learn and aeon.

They take arrays (n, channels, length) or (n, length), images (n, channels, rows, columns), and lists of series of
unequal length, (channels, length) or (length,). NaN marks a missing value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ._checks import check_int, check_positive
from .data.base import Batch, Split, TargetScale
from .experiments.loop import Loop
from .experiments.recipe import Optimizer, Schedule, Training
from .experiments.task import Task
from .models import create_model
from .models.registry import configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

__all__ = ["CCNNClassifier", "CCNNRegressor"]


class _Estimator(BaseEstimator):
    """Base class of classifier and regressor."""

    def __init__(
        self,
        *,
        model: str = "ccnn_4_140",
        channels: int = 32,
        blocks: int = 2,
        epochs: int = 50,
        batch: int = 32,
        lr: float = 0.01,
        weight_decay: float = 1e-4,
        dropout: float = 0.0,
        device: str = "cpu",
        random_state: int | None = 0,
    ) -> None:
        self.model = model
        self.channels = channels
        self.blocks = blocks
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.non_deterministic = False
        return tags

    def _check(self, X: Any) -> None:
        """Check the arguments; note whether the series have unequal lengths."""
        for name in ("channels", "blocks", "epochs", "batch"):
            check_int(name, _plain(getattr(self, name)))
        check_positive("lr", _plain(self.lr))
        for name, below in (("weight_decay", math.inf), ("dropout", 1.0)):
            value = getattr(self, name)
            if not 0 <= value < below:
                limit = "finite" if below == math.inf else f"below {below:g}"
                raise ValueError(f"{name} must be at least 0 and {limit}, got {value}")
        self._ragged_ = _is_ragged(X)

    def _fit(self, inputs: Tensor, mask: Tensor | None, target: Tensor, task: str, out: int) -> None:
        self.n_features_in_ = int(inputs.shape[-1] if inputs.shape[1] == 1 else inputs.shape[1])
        self._shape_ = tuple(inputs.shape[1:])
        seen = _spread(mask, inputs)
        axes = (0, *range(2, inputs.dim()))
        count = seen.sum(dim=axes).clamp(min=1)
        shape = (1, -1, *(1,) * (inputs.dim() - 2))
        self._mean_ = (inputs * seen).sum(dim=axes).div(count).view(shape)
        deviation = ((inputs - self._mean_) * seen).square().sum(dim=axes).div(count).sqrt().view(shape)
        self._deviation_ = torch.where(deviation > 1e-8, deviation, torch.ones_like(deviation))
        seed = _seed(self.random_state)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _network(
                self.model,
                in_channels=inputs.shape[1],
                out_channels=out,
                dim=inputs.dim() - 2,
                size=tuple(inputs.shape[2:]),
                channels=self.channels,
                blocks=self.blocks,
                dropout=self.dropout,
                # Kernels start at least a few samples wide, however short the series is.
                sigma=min(1.0, max(0.2, 3 / min(inputs.shape[2:]))),
            )
            trained = Task(
                network,
                task,
                out_channels=out,
                optimizer=Optimizer(lr=self.lr, weight_decay=self.weight_decay),
                schedule=Schedule("cosine", warmup=min(2, self.epochs / 10)),
            )
            settings = Training(
                epochs=self.epochs, batch=min(self.batch, len(inputs)), seed=seed, clip=1.0, evaluate_every=self.epochs
            )
            from lightning.fabric import Fabric  # noqa: PLC0415

            accelerator = "cpu" if self.device == "cpu" else "cuda"
            fabric = Fabric(accelerator=accelerator, devices=1)
            split = Split(self._normal(inputs, seen), target, mask=mask)
            Loop(trained, split, None, settings, fabric=fabric, name=type(self).__name__).run()
        # A fresh task: the trained one refers to processes and devices and cannot be pickled. In float64 the other
        # samples of a batch do not change the last digits of a prediction.
        self._task_ = Task(network.double(), task, out_channels=out).eval()

    def _normal(self, inputs: Tensor, seen: Tensor) -> Tensor:
        return (inputs - self._mean_) / self._deviation_ * seen

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "_task_")
        inputs, mask, is_table = _signals(X)
        # Series of unequal length have no fixed number of features.
        if is_table and not self._ragged_ and inputs.shape[-1] != self.n_features_in_:
            raise ValueError(
                f"X has {inputs.shape[-1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        if inputs.shape[1] != self._shape_[0] or inputs.dim() != len(self._shape_) + 1:
            raise ValueError(f"X must hold samples of shape {tuple(self._shape_)}, got {tuple(inputs.shape[1:])}")
        device = next(self._task_.parameters()).device
        inputs = self._normal(inputs, _spread(mask, inputs)).double()
        parts = []
        for start in range(0, len(inputs), 256):
            part = slice(start, start + 256)
            batch = Batch(inputs[part], mask=None if mask is None else mask[part])
            parts.append(self._task_(batch.to(device)).cpu())
        return torch.cat(parts)


class CCNNClassifier(ClassifierMixin, _Estimator):
    """A :class:`kernelfield.CCNN` as a classifier of series and images.

    Args:
        model: name of a network such as "ccnn_4_140"; ``channels`` and ``blocks`` override its width and depth.
        channels: its width.
        blocks: its depth.
        epochs: passes over the training samples.
        batch: samples per step.
        lr: learning rate.
        weight_decay: weight decay of all weights outside kernel networks and masks.
        dropout: probability inside the blocks.
        device: "cpu" or "cuda".
        random_state: seed.

    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> y = np.array(["up", "down"] * 10)
    >>> X[y == "up"] += np.linspace(0, 4, 16)
    >>> clf = CCNNClassifier(channels=8, blocks=1, epochs=20).fit(X, y)
    >>> float(clf.score(X, y)) > 0.8
    True
    """

    def fit(self, X: Any, y: Any) -> CCNNClassifier:
        """Fit to series or images ``X`` and their classes ``y`` (n,)."""
        self._check(X)
        inputs, mask, _ = _signals(X)
        y = _labels(y, len(inputs))
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least 2 classes, got one class: {self.classes_[0]!r}")
        self._fit(inputs, mask, torch.from_numpy(index).long(), "classification", len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes: (n, classes)."""
        return self._outputs(X).double().softmax(dim=1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the classes: (n,)."""
        index = self._outputs(X).argmax(dim=1).numpy()
        return self.classes_[index]


class CCNNRegressor(RegressorMixin, _Estimator):
    """A :class:`kernelfield.CCNN` as a regressor on series and images; arguments as :class:`CCNNClassifier`.

    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> CCNNRegressor(channels=4, blocks=1, epochs=1).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """

    def fit(self, X: Any, y: Any) -> CCNNRegressor:
        """Fit to series or images ``X`` and their values ``y`` (n,) or (n, outputs)."""
        self._check(X)
        inputs, mask, _ = _signals(X)
        values = _labels(y, len(inputs), numeric=True)
        self._one_ = values.ndim == 1
        target = torch.from_numpy(values.reshape(len(values), -1)).double()
        self._scale_ = TargetScale.of(target)
        self._fit(inputs, mask, self._scale_.normal(target), "regression", target.shape[1])
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """Return the values: (n,) or (n, outputs)."""
        learned = self._outputs(X)  # first: it raises if the estimator is not fitted
        outputs = self._scale_.undo(learned)
        return (outputs[:, 0] if self._one_ else outputs).numpy()


def _plain(value: Any) -> Any:
    """Convert a numpy scalar, as a parameter grid holds it, to a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _network(name: str, **arguments: Any) -> nn.Module:
    """Build a named network with the estimator's arguments; list the families that take them otherwise."""
    dense = configuration(name, argument="model").arguments.get("readout") == "dense"
    why = "it predicts a value for every position" if dense else ""
    try:
        if not why:
            return create_model(name, **arguments)
    except TypeError as error:
        why = str(error)
    families = "ccnn_…, fccnn_…, ckcnn_…, cktcn_…, flextcn_… or dnarch_…"
    raise ValueError(f"model must be one of list_models() whose name begins with {families}, got {name!r}: {why}")


def _seed(random_state: Any) -> int:
    from sklearn.utils import check_random_state  # noqa: PLC0415

    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _labels(y: Any, n: int, numeric: bool = False) -> np.ndarray:
    from sklearn.utils.validation import column_or_1d  # noqa: PLC0415

    if y is None:
        raise ValueError("y must hold a target for each sample; requires y to be passed, but the target y is None")
    array = np.asarray(y)
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    if numeric:
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            raise ValueError("y must be finite: Input y contains NaN or infinity")
    else:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError("y must be finite: Input y contains NaN or infinity")
        if array.ndim == 2 and array.shape[1] == 1:
            array = column_or_1d(array, warn=True)
    if len(array) != n:
        raise ValueError(f"y must hold a target for each of the {n} samples, got {len(array)}")
    return array


def _signals(X: Any) -> tuple[Tensor, Tensor | None, bool]:
    """Return the signals (n, channels, *space), their mask (n, *space) or None, and whether X was a 2D table."""
    import scipy.sparse  # type: ignore[import-untyped]  # noqa: PLC0415

    if scipy.sparse.issparse(X):
        raise TypeError("X must be dense, got a sparse matrix; sparse data were passed, use .toarray()")
    array = _padded(X) if _is_ragged(X) else np.asarray(X)
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported")
    try:
        array = array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise type(error)(f"X must hold numbers; argument must be a string or a number: {error}") from error
    if array.ndim < 2:
        raise ValueError(
            f"X must have shape (n, channels, length), got {array.shape}. Reshape your data: Expected 2D array"
        )
    if array.shape[0] == 0 or math.prod(array.shape[1:]) == 0:
        raise ValueError(
            f"X must not be empty: Found array with {array.shape[0]} sample(s) and {array.shape[1]} feature(s) "
            f"(shape={array.shape}) while a minimum of 1 is required."
        )
    if np.isinf(array).any():
        raise ValueError("X must be finite or NaN: Input X contains infinity")
    is_table = array.ndim == 2
    array = array[:, None] if is_table else array
    values = torch.from_numpy(np.ascontiguousarray(array))
    missing = values.isnan()
    if not bool(missing.any()):
        return values, None, is_table
    # A position is observed if any of its channels is; its missing channels are set to the mean.
    return values, ~missing.all(dim=1), is_table


def _spread(mask: Tensor | None, inputs: Tensor) -> Tensor:
    """Return 1 for observed and 0 for missing values, shaped like ``inputs``; replace NaN by 0 in place."""
    seen = (~inputs.isnan()).to(inputs.dtype)
    inputs.nan_to_num_(0.0)
    return seen if mask is None else seen * mask.unsqueeze(1)


def _is_ragged(X: Any) -> bool:
    """Return whether X is a list of series of unequal length."""
    if not isinstance(X, (list, tuple)) or not X or np.ndim(X[0]) not in (1, 2):
        return False
    return len({np.shape(s) for s in X}) > 1


def _padded(series: Sequence[Any]) -> np.ndarray:
    rows = [np.atleast_2d(np.asarray(s, dtype=np.float32)) for s in series]
    channels = {row.shape[0] for row in rows}
    if len(channels) > 1:
        raise ValueError(f"X must hold series of the same number of channels, got {sorted(channels)}")
    whole = np.full((len(rows), channels.pop(), max(row.shape[1] for row in rows)), np.nan, dtype=np.float32)
    for target, row in zip(whole, rows, strict=True):
        target[:, : row.shape[1]] = row
    return whole

"""Incremental training with ``partial_fit``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.multiclass import check_classification_targets

from ..data.base import TargetScale
from ..experiments.optim import make_optimizer
from ..experiments.recipe import Schedule
from ._arrays import labels, plain, seed_of
from ._base import Classifier, Regressor
from ._network import TrainedNetwork

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data.base import Split

__all__ = ["NetworkClassifier", "NetworkRegressor", "PartialFit"]


class PartialFit(TrainedNetwork):
    """A trained network that can continue its training on other samples."""

    def _is_first(self) -> bool:
        """Return whether there is no network yet."""
        if self.validation_fraction:
            raise ValueError(f"validation_fraction must be 0 for partial_fit, got {self.validation_fraction}")
        if self.patience is not None:
            raise ValueError(f"patience must be None for partial_fit, got {self.patience}")
        return not hasattr(self, "network_")

    def _continue(self, X: Any, target: Tensor, out: int, at: Tensor | None = None) -> None:
        """Train one pass over these samples, with the optimiser states of the last call."""
        split = self._split(X, target, at)
        seed = seed_of(self.random_state)
        first = self._is_first()
        with self._restored_random_state():
            if first:
                torch.manual_seed(seed)
                self.network_ = self._build(split, out)
                self.networks_ = [self.network_]
                self.random_kernels_, self._blend_, self.validation_score_ = None, None, None
                self.history_: list[dict[str, Any]] = []
                self.n_iter_, self._optimizer_state_ = 0, None
            # The seed differs from call to call, and a repeated sequence of calls gives the same batches and dropout.
            torch.manual_seed((seed + 1) * 1_000_003 + self.n_iter_)
            states = self._optimizer_state_ or [None] * len(self.networks_)
            found = [
                self._train_pass(network, state, split, out)
                for network, state in zip(self.networks_, states, strict=True)
            ]
        self._optimizer_state_ = [state for state, _ in found]
        self.n_iter_ += self._batches(split)
        loss = sum(loss for _, loss in found) / len(found)
        self.history_.append({"epoch": len(self.history_) + 1, "step": self.n_iter_, "train_loss": loss})
        if self.verbose:
            print(f"{type(self).__name__}: step {self.n_iter_}, loss {loss:.4g}", flush=True)  # noqa: T201

    def _batches(self, split: Split) -> int:
        return math.ceil(len(split) / plain(self.batch))

    def _train_pass(self, network: nn.Module, state: Any, split: Split, out: int) -> tuple[Any, float]:
        """Train a network once on every sample; return the optimiser's state and the mean loss."""
        device = torch.device(self._accelerator())
        task = self._task(network.to(device).train(), out, Schedule("constant"))
        optimizer = make_optimizer(network, task.optimizer_settings)
        if state is not None:
            optimizer.load_state_dict(state)
        losses = []
        for rows in torch.randperm(len(split)).tensor_split(self._batches(split)):
            loss = task.training_step(split.batch(rows, training=True).to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        optimizer.zero_grad(set_to_none=True)
        network.cpu().eval()
        return _on_cpu(optimizer.state_dict()), float(torch.stack(losses).mean())


class NetworkClassifier(Classifier, PartialFit):
    """Base class of the classifiers that train a network."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Any:
        """Train one pass over these samples, in batches of ``batch``.

        The first call builds the network and computes the mean and deviation of each channel from its samples. Later
        calls continue with the weights and the optimiser's state. The learning rate is constant. ``partial_fit`` adds
        no random kernels and does not change those of an earlier ``fit``.

        Args:
            X: series or images.
            y: (n,) their classes.
            classes: all classes, including those of later calls; needed in the first call.
        """
        self._check_arguments()
        if self._is_first():
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit, got None")
            inputs, mask = self._read(X)
            self._set_classes("classes", labels(classes, len(classes)))
            index = self._index(self._checked(y, len(inputs)))
            self._start(X, inputs, mask)
        else:
            if classes is not None and set(classes) != set(self.classes_):
                raise ValueError(f"classes must be those of the first call, {self.classes_.tolist()}, got {classes!r}")
            index = self._index(self._checked(y, len(self.prepare(X)[0])))
        self._continue(X, index, len(self.classes_))
        return self

    @staticmethod
    def _checked(y: Any, n: int) -> Any:
        y = labels(y, n)
        check_classification_targets(y)
        return y


class NetworkRegressor(Regressor, PartialFit):
    """Base class of the regressors that train a network."""

    def partial_fit(self, X: Any, y: Any) -> Any:
        """Train one pass like :meth:`CCNNClassifier.partial_fit`; the first call sets the scale of ``y``."""
        self._check_arguments()
        if self._is_first():
            inputs, mask = self._read(X)
            target = self._values(y, len(inputs))
            self._scale_ = TargetScale.of(target, "y")
            self._start(X, inputs, mask)
        else:
            target = self._values(y, len(self.prepare(X)[0]))
            if target.shape[1] != len(self._scale_.mean):
                raise ValueError(f"y must hold {len(self._scale_.mean)} values per sample, got {target.shape[1]}")
        self._continue(X, self._scale_.normal(target), target.shape[1])
        return self


def _on_cpu(state: Any) -> Any:
    """Return an optimiser's state with copies of its tensors on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {name: _on_cpu(value) for name, value in state.items()}
    return [_on_cpu(value) for value in state] if isinstance(state, list) else state

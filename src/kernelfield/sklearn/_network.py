"""Base class of the estimators that train a network."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from .._arguments import takes_argument
from ..experiments.loop import Loop, Progress
from ..experiments.metrics import is_better
from ..experiments.recipe import Optimizer, Schedule, Training
from ..experiments.start_from import conversion_hint, find_start
from ..experiments.task import Task
from ..layers.pointwise import BATCH_STATISTICS, uses_batch_statistics
from ..models import create_model
from ..models.registry import configuration
from ._arguments import NetworkArguments
from ._arrays import plain, seed_of
from ._base import Estimator, check_no_gaps
from ._blend import blend, folds
from .random_kernels import fit_random_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from ..data.base import Split

__all__ = ["TrainedNetwork"]

#: default number of steps, and least number of epochs
STEPS, LEAST_EPOCHS = 400, 10
#: default number of random kernels, and of networks for few samples
KERNELS, SEVERAL = 1000, 3
#: smallest number of samples from which a part can be held out
SMALLEST_SET = 12


class TrainedNetwork(NetworkArguments, Estimator):
    """Base class of the estimators that train a network."""

    #: the default network, and arguments that differ from its defaults
    _MODEL: ClassVar[str] = "ccnn_4_140"
    _MODEL_OPTIONS: ClassVar[dict[str, Any]] = {"channels": 32, "blocks": 2}
    #: largest number of samples for which random kernels are added by default
    _FEW_SAMPLES: ClassVar[int] = 5000
    #: largest number of samples for which several networks are trained by default
    _SMALL_SET: ClassVar[int] = 500

    def _fit_networks(self, split: Split, out: int) -> None:
        if self.patience is not None and not self.validation_fraction:
            raise ValueError(f"patience must be None without a validation_fraction, got {self.patience}")
        seed = seed_of(self.random_state)
        self.random_kernels_, self._blend_ = None, None
        self._optimizer_state_: list[Any] | None = None
        count = self._count(split)
        if count == 1:
            torch.manual_seed(seed)
            network = self._build(split, out)
            self.networks_ = [self._train(network, *self._divide(split, seed), out, seed)]
        else:
            held_out = self._cross_fit(split, out, seed, count)
        self.network_ = self.networks_[0]
        if uses_batch_statistics(self.network_):
            warnings.warn(BATCH_STATISTICS, stacklevel=5)
        kernels = self._kernels(split)
        if kernels:
            torch.manual_seed(seed)
            self.random_kernels_, _, left_out = fit_random_kernels(
                split.inputs, split.mask, split.target, out, kernels=kernels, field=self.field
            )
            if count > 1 and len(left_out) == len(split):
                self._blend_ = blend(held_out, left_out, split.target)

    def _cross_fit(self, split: Split, out: int, seed: int, count: int) -> Tensor:
        """Train each network without one fold of the samples; return the outputs for the held-out folds."""
        part = folds(split.target, count, seed)
        held_out = torch.empty(len(split), out, dtype=torch.float64)
        self.networks_ = []
        for i in range(count):
            own_seed = (seed + i) % 2**32
            torch.manual_seed(own_seed)
            network = self._build(split, out)
            train, validation = self._divide(split.take((part != i).nonzero()[:, 0]), seed)
            self.networks_.append(self._train(network, train, validation, out, own_seed))
            rows = (part == i).nonzero()[:, 0]
            double = copy.deepcopy(network).double()
            with torch.no_grad():
                for some in rows.split(256):
                    mask = {} if split.mask is None else {"mask": split.mask[some]}
                    held_out[some] = double(split.inputs[some].double(), **mask)
        return held_out

    def _count(self, split: Split) -> int:
        """Return the number of networks: by default several for few samples, if random kernels are added."""
        if self.networks is not None:
            if plain(self.networks) > 1 and (split.coords is not None or len(split) < 2 * plain(self.networks)):
                raise ValueError(
                    f"networks must be 1 for series with times, and at most half the {len(split)} samples, "
                    f"got {self.networks}"
                )
            return plain(self.networks)
        plain_default = self.model is None and self.start_from is None and not self.validation_fraction
        few = SMALLEST_SET <= len(split) <= self._SMALL_SET
        return SEVERAL if plain_default and few and self._kernels(split) else 1

    def _kernels(self, split: Split) -> int:
        """Return the number of random kernels; they need samples on a grid."""
        if split.coords is not None:
            if self.random_kernels:
                raise ValueError(f"random_kernels must be None or 0 for series with times, got {self.random_kernels}")
            return 0
        default = KERNELS if len(split) <= self._FEW_SAMPLES else 0
        return default if self.random_kernels is None else plain(self.random_kernels)

    def _build(self, split: Split, out: int) -> nn.Module:
        """Return the network, with those of the default arguments that its class takes."""
        if self.start_from is not None:
            return self._trained(split, out)
        model = self._MODEL if self.model is None else self.model
        chosen = configuration(model, argument="model")
        takes = inspect.signature(chosen.build).parameters
        if chosen.arguments.get("readout") == "dense":
            raise ValueError(f"model must predict one target per sample, got {model!r}, which is dense")
        inputs, size = split.inputs, tuple(split.inputs.shape[2:])
        if split.coords is not None:
            ends = [split.coords] if split.at is None else [split.coords, split.at]
            low, high = min(float(t.min()) for t in ends), max(float(t.max()) for t in ends)
            size = (max(2, math.ceil(high - low) + 1),)
        usual: dict[str, Any] = {"in_channels": inputs.shape[1], "out_channels": out, "dim": len(size)}
        usual["size"] = size if len(size) > 1 else size[0]
        fixed = {name: value for name, value in chosen.arguments.items() if name in ("dim", "in_channels", "size")}
        if any(fixed[name] != usual[name] for name in ("dim", "in_channels") if name in fixed):
            raise ValueError(f"model must be for samples of shape {tuple(self._shape_)}, got {model!r} for {fixed}")
        # Kernels reach both ways and start at least a few samples wide, also for short series.
        usual |= {"dropout": plain(self.dropout), "causal": False, "sigma": min(1.0, max(0.2, 3 / min(size)))}
        if split.coords is not None:  # smooth kernels without a mask have a near-linear convolution at points
            usual |= {"sigma": None, "stem": "linear"}
        if split.at is not None:
            usual["readout"] = "dense"
        given = {name: value for name, value in usual.items() if name in takes and name not in fixed}
        given |= self._architecture(size)
        if "dropout" not in takes:
            self._check_dropout(f"for model={model!r}, which has none")
        try:
            network = create_model(model, **{**given, **(self.options or {})})
        except (TypeError, RuntimeError, ValueError) as error:
            what = f"got {model!r} with {', '.join(given)}: {error}"
            raise ValueError(f"model must take samples of shape {self._shape_}, {what}") from error
        if split.coords is not None and not takes_argument(network.forward, "coords"):
            raise ValueError(f"X must lie on a grid for a {type(network).__name__}, got times")
        check_no_gaps(network, split.mask)
        try:
            shape = _output_shape(network, split)
        except (TypeError, RuntimeError, ValueError) as error:
            what = f"got {model!r} with {', '.join(given)}: {error}"
            raise ValueError(f"model must take samples of shape {self._shape_}, {what}") from error
        if shape != ((out,) if split.at is None else (out, split.at.shape[1])):
            raise ValueError(f"model must predict {out} values per sample, got {model!r}, which predicts {shape}")
        return network

    def _check_dropout(self, where: str) -> None:
        """Raise a ValueError if a network that does not take the dropout rate is given another than the default."""
        default = inspect.signature(NetworkArguments).parameters["dropout"].default
        if self.dropout != default:
            raise ValueError(f"dropout must be left at its default {where}, got {self.dropout}")

    def _architecture(self, size: tuple[int, ...]) -> dict[str, Any]:  # noqa: ARG002
        """Return the arguments of the network's architecture, for samples of ``size``."""
        named = {"field": self.field, "channels": plain(self.channels), "blocks": plain(self.blocks)}
        chosen = {name: value for name, value in named.items() if value is not None}
        return {**self._MODEL_OPTIONS, **chosen} if self.model is None else chosen

    def _start_unit(self) -> float | None:
        if self.start_from is None:
            return None
        there = find_start(self.start_from).preparation()
        if there.get("unit") is not None and there.get("dates") not in (None, self._dates_):
            kinds = ("dates", "numbers") if there["dates"] else ("numbers", "dates")
            raise ValueError(f"X must have times that are {kinds[0]}, like {self.start_from!r}, got {kinds[1]}")
        return there.get("unit")

    def _trained(self, split: Split, out: int) -> nn.Module:
        """Return the network of a run or a pretrained weight, with a new classifier."""
        assert self.start_from is not None
        for name in ("model", "field", "channels", "blocks", "options"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} must be None with start_from={self.start_from!r}, which has its own, "
                    f"got {getattr(self, name)!r}"
                )
        self._check_dropout(f"with start_from={self.start_from!r}, which keeps its own")
        start = find_start(self.start_from)
        network = start.network().train()
        try:
            network.reset_classifier(out)  # type: ignore[operator]
            shape = _output_shape(network, split)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            what = f"got {self.start_from!r}: {error}{conversion_hint(start)}"
            raise ValueError(f"start_from must take samples of shape {self._shape_}, {what}") from error
        if shape != ((out,) if split.at is None else (out, split.at.shape[1])):
            raise ValueError(
                f"start_from must predict {out} values per sample, got {self.start_from!r}, which predicts {shape}"
            )
        return network

    def _divide(self, split: Split, seed: int) -> tuple[Split, Split | None]:
        """Return training samples and held-out samples, stratified by class if the classes are large enough."""
        if not self.validation_fraction:
            return split, None
        from sklearn.model_selection import train_test_split  # noqa: PLC0415

        n = len(split)
        held_out = max(1, round(self.validation_fraction * n))
        if held_out >= n:
            raise ValueError(f"validation_fraction must leave samples to train on, got {self.validation_fraction}")
        strata = None
        if split.target.dtype == torch.long:
            counts = split.target.bincount()
            strata = (
                split.target.numpy() if int(counts.min()) > 1 and min(held_out, n - held_out) >= len(counts) else None
            )
        first, second = train_test_split(np.arange(n), test_size=held_out, random_state=seed, stratify=strata)
        return split.take(torch.from_numpy(first)), split.take(torch.from_numpy(second))

    def _train(self, network: nn.Module, train: Split, validation: Split | None, out: int, seed: int) -> nn.Module:
        """Train a network and return it."""
        from lightning.fabric import Fabric  # noqa: PLC0415

        batch = min(plain(self.batch), len(train))
        per_epoch = max(1, len(train) // batch)
        epochs = plain(self.epochs) or max(LEAST_EPOCHS, math.ceil(STEPS / per_epoch))
        task = self._task(network, out, Schedule("cosine", warmup=epochs / 10))
        settings = Training(
            epochs=epochs,
            batch=batch,
            seed=seed,
            clip=1.0,
            evaluate_every=1 if validation is not None else epochs,
            patience=plain(self.patience),
            log_every=max(1, per_epoch * epochs // 10),
        )
        watch = _BestWeights(network, task.metric, type(self).__name__ if self.verbose else "")
        fabric = Fabric(accelerator=self._accelerator(), devices=1)
        loop = Loop(task, train, validation, settings, fabric=fabric, name=type(self).__name__, on_progress=watch)
        state = loop.run()
        if watch.weights is not None:
            network.load_state_dict(watch.weights)
        self.history_ = state.rows
        self.n_iter_ = state.step
        self.validation_score_ = watch.best
        return network.cpu().eval()

    def _task(self, network: nn.Module, out: int, schedule: Schedule) -> Task:
        return Task(
            network,
            self.task,
            out_channels=out,
            optimizer=Optimizer(lr=plain(self.lr), weight_decay=plain(self.weight_decay)),
            schedule=schedule,
            label_smoothing=plain(self.label_smoothing) if self.task == "classification" else 0.0,
        )

    def _accelerator(self) -> str:
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise ValueError("device must be 'auto' or 'cpu' on a machine without a CUDA device, got 'cuda'")
        return "cuda" if available and self.device != "cpu" else "cpu"

    def _networks(self) -> Sequence[nn.Module]:
        trained = [copy.deepcopy(network).double() for network in self.networks_]
        return trained if self.random_kernels_ is None else [*trained, self.random_kernels_]

    def _shares(self) -> list[tuple[float, float]]:
        count = len(self.networks_)
        if self.random_kernels_ is None:
            return [(1 / count, 1.0)] * count
        share, factor = self._blend_ or (0.5, 1.0)
        return [(share / count, factor)] * count + [(1 - share, 1.0)]


@torch.no_grad()
def _output_shape(network: nn.Module, split: Split) -> tuple[int, ...]:
    """Return the shape of the prediction for one sample."""
    few = split.batch(slice(0, 2))
    return tuple(copy.deepcopy(network).eval()(few.inputs, **few.sampling).shape[1:])


class _BestWeights:
    """Print progress and keep the weights of the best epoch by validation."""

    def __init__(self, network: nn.Module, metric: str, title: str) -> None:
        self.network, self.metric, self.title = network, metric, title
        self.best: float | None = None
        self.loss = math.inf
        self.weights: dict[str, Tensor] | None = None

    def __call__(self, progress: Progress) -> None:
        scores = progress.metrics
        if self.title and (scores or not math.isnan(progress.loss)):  # a report of the speed alone has no loss
            text = "".join(f", validation {name} {value:.4g}" for name, value in scores.items())
            print(f"{self.title}: step {progress.step} of {progress.steps}, loss {progress.loss:.4g}{text}", flush=True)  # noqa: T201
        if not scores:
            return
        value, loss = scores[self.metric], scores["loss"]
        if is_better(self.metric, value, self.best) or (value == self.best and loss < self.loss):
            self.best, self.loss = value, loss
            self.weights = {name: t.detach().cpu().clone() for name, t in self.network.state_dict().items()}

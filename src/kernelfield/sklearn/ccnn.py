"""Estimators that train a network."""

from __future__ import annotations

import copy
import inspect
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin

from .._container_kinds import DICT
from .._kinds import BOOL, NOT_NEGATIVE, POSITIVE, RATE, TEXT, Choice, Int
from ..experiments.loop import Loop, Progress
from ..experiments.metrics import is_better
from ..experiments.recipe import Optimizer, Schedule, Training
from ..experiments.start_from import find_start
from ..experiments.task import Task
from ..models import create_model
from ..models.registry import configuration
from ._arrays import plain, seed_of
from ._base import FIELD_OR_NAME, RANDOM_STATE, Classifier, Estimator, Regressor
from .random_kernels import fit_random_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from .._kinds import Kind
    from ..data.base import Split
    from ..fields import Field

__all__ = ["CCNNClassifier", "CCNNRegressor"]

#: the default network is this one, with these arguments
DEFAULT, DEFAULT_OPTIONS = "ccnn_4_140", {"channels": 32, "blocks": 2}
#: a training has about this many steps unless ``epochs`` is given, and at least this many epochs
STEPS, LEAST_EPOCHS = 400, 10
#: up to how many samples random kernels are added by default, and how many of them
FEW_SAMPLES, KERNELS = 5000, 1000


class _TrainedNetwork(Estimator):
    KINDS: ClassVar[dict[str, Kind]] = {
        "model": TEXT,
        "start_from": TEXT | None,
        "field": FIELD_OR_NAME | None,
        "channels": Int() | None,
        "blocks": Int() | None,
        "options": DICT | None,
        "random_kernels": Int(0) | None,
        "epochs": Int() | None,
        "batch": Int(),
        "lr": POSITIVE,
        "weight_decay": NOT_NEGATIVE,
        "dropout": RATE,
        "label_smoothing": RATE,
        "validation_fraction": RATE,
        "patience": Int() | None,
        "device": Choice("auto", "cpu", "cuda"),
        "verbose": Int(0) | BOOL,
        "random_state": RANDOM_STATE,
    }

    def __init__(
        self,
        *,
        model: str = DEFAULT,
        start_from: str | None = None,
        field: str | Callable[..., Field] | None = None,
        channels: int | None = None,
        blocks: int | None = None,
        options: dict[str, Any] | None = None,
        random_kernels: int | None = None,
        epochs: int | None = None,
        batch: int = 16,
        lr: float = 0.01,
        weight_decay: float = 0.01,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        device: str = "auto",
        verbose: int | bool = 0,
        random_state: int | None = 0,
    ) -> None:
        self.model = model
        self.start_from = start_from
        self.field = field
        self.channels = channels
        self.blocks = blocks
        self.options = options
        self.random_kernels = random_kernels
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.label_smoothing = label_smoothing
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def _fit_networks(self, split: Split, out: int) -> None:
        if self.patience is not None and not self.validation_fraction:
            raise ValueError(f"patience must be None without a validation_fraction, got {self.patience}")
        seed = seed_of(self.random_state)
        torch.manual_seed(seed)
        network = self._build(split, out)
        train, validation = self._divide(split, seed)
        self._train(network, train, validation, out, seed)
        self.random_kernels_ = None
        kernels = plain(self.random_kernels)
        if split.coords is not None:  # random kernels are responses on a grid
            kernels = 0
        elif kernels is None:
            kernels = KERNELS if len(split) <= FEW_SAMPLES else 0
        if kernels:
            torch.manual_seed(seed)
            self.random_kernels_, _ = fit_random_kernels(
                split.inputs, split.mask, split.target, out, kernels=kernels, field=self.field
            )

    def _build(self, split: Split, out: int) -> nn.Module:
        """Return the network, with those of the usual arguments that its class takes."""
        if self.start_from is not None:
            return self._trained(split, out)
        chosen = configuration(self.model, argument="model")
        takes = inspect.signature(chosen.build).parameters
        if chosen.arguments.get("readout") == "dense":
            raise ValueError(f"model must predict one target per sample, got {self.model!r}, which is dense")
        inputs, size = split.inputs, tuple(split.inputs.shape[2:])
        if split.coords is not None:
            ends = [split.coords] if split.at is None else [split.coords, split.at]
            low, high = min(float(t.min()) for t in ends), max(float(t.max()) for t in ends)
            size = (max(2, math.ceil(high - low) + 1),)
        usual: dict[str, Any] = {"in_channels": inputs.shape[1], "out_channels": out, "dim": len(size), "size": size}
        fixed = {name: value for name, value in chosen.arguments.items() if name in ("dim", "in_channels", "size")}
        if any(fixed[name] != usual[name] for name in ("dim", "in_channels") if name in fixed):
            raise ValueError(
                f"model must be for samples of shape {tuple(self._shape_)}, got {self.model!r} for {fixed}"
            )
        # Kernels see both ways, and start at least a few samples wide, however short the series is.
        usual |= {"dropout": plain(self.dropout), "causal": False, "sigma": min(1.0, max(0.2, 3 / min(size)))}
        if split.coords is not None:  # smooth kernels without a mask: convolved at points in near-linear time
            usual |= {"sigma": None, "stem": "linear"}
        if split.at is not None:
            usual["readout"] = "dense"
        given = {name: value for name, value in usual.items() if name in takes and name not in fixed}
        given |= DEFAULT_OPTIONS if self.model == DEFAULT else {}
        named = {"field": self.field, "channels": plain(self.channels), "blocks": plain(self.blocks)}
        given |= {name: value for name, value in named.items() if value is not None}
        try:
            network = create_model(self.model, **{**given, **(self.options or {})})
            shape = _output_shape(network, split)
        except (TypeError, RuntimeError, ValueError) as error:
            what = f"got {self.model!r} with {', '.join(given)}: {error}"
            raise ValueError(f"model must take samples of shape {self._shape_}, {what}") from error
        if shape != ((out,) if split.at is None else (out, split.at.shape[1])):
            raise ValueError(f"model must predict {out} values per sample, got {self.model!r}, which predicts {shape}")
        return network

    def _trained(self, split: Split, out: int) -> nn.Module:
        """Return the network of a run or a pretrained weight, with a new classifier."""
        assert self.start_from is not None
        for name, default in (("model", DEFAULT), ("field", None), ("channels", None), ("blocks", None)):
            if getattr(self, name) != default:
                raise ValueError(
                    f"{name} must be left out with start_from={self.start_from!r}, which has its own, "
                    f"got {getattr(self, name)!r}"
                )
        network = find_start(self.start_from).network().train()
        try:
            network.reset_classifier(out)  # type: ignore[operator]
            shape = _output_shape(network, split)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            what = f"got {self.start_from!r}: {error}"
            raise ValueError(f"start_from must take samples of shape {self._shape_}, {what}") from error
        if shape != ((out,) if split.at is None else (out, split.at.shape[1])):
            raise ValueError(
                f"start_from must predict {out} values per sample, got {self.start_from!r}, which predicts {shape}"
            )
        return network

    def _divide(self, split: Split, seed: int) -> tuple[Split, Split | None]:
        """Return the samples to train on and those held out; classes are divided alike where they are large enough."""
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

    def _train(self, network: nn.Module, train: Split, validation: Split | None, out: int, seed: int) -> None:
        from lightning.fabric import Fabric  # noqa: PLC0415

        batch = min(plain(self.batch), len(train))
        per_epoch = max(1, len(train) // batch)
        epochs = plain(self.epochs) or max(LEAST_EPOCHS, math.ceil(STEPS / per_epoch))
        task = Task(
            network,
            self.task,
            out_channels=out,
            optimizer=Optimizer(lr=plain(self.lr), weight_decay=plain(self.weight_decay)),
            schedule=Schedule("cosine", warmup=epochs / 10),
            label_smoothing=plain(self.label_smoothing) if self.task == "classification" else 0.0,
        )
        settings = Training(
            epochs=epochs,
            batch=batch,
            seed=seed,
            clip=1.0,
            evaluate_every=1 if validation is not None else epochs,
            patience=plain(self.patience),
            log_every=max(1, per_epoch * epochs // 10),
        )
        watch = _Watch(network, task.metric, type(self).__name__ if self.verbose else "")
        accelerator = (
            "cuda" if self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available()) else "cpu"
        )
        fabric = Fabric(accelerator=accelerator, devices=1)
        loop = Loop(task, train, validation, settings, fabric=fabric, name=type(self).__name__, on_progress=watch)
        state = loop.run()
        if watch.weights is not None:
            network.load_state_dict(watch.weights)
        self.network_ = network.cpu().eval()
        self.history_ = state.rows
        self.n_iter_ = state.step
        self.validation_score_ = watch.best

    def _networks(self) -> Sequence[nn.Module]:
        trained = copy.deepcopy(self.network_).double()
        return [trained] if self.random_kernels_ is None else [trained, self.random_kernels_]


@torch.no_grad()
def _output_shape(network: nn.Module, split: Split) -> tuple[int, ...]:
    """Return the shape of a prediction for one of the samples."""
    few = split.batch(slice(0, 2))
    sampling = {name: value for name, value in few.sampling.items() if name != "step"}
    return tuple(copy.deepcopy(network).eval()(few.inputs, **sampling).shape[1:])


class _Watch:
    """Print progress, and keep the weights of the best epoch by validation."""

    def __init__(self, network: nn.Module, metric: str, title: str) -> None:
        self.network, self.metric, self.title = network, metric, title
        self.best: float | None = None
        self.loss = math.inf
        self.weights: dict[str, Tensor] | None = None

    def __call__(self, progress: Progress) -> None:
        scores = progress.metrics
        if self.title:
            text = "".join(f", validation {name} {value:.4g}" for name, value in scores.items())
            print(f"{self.title}: step {progress.step} of {progress.steps}, loss {progress.loss:.4g}{text}", flush=True)  # noqa: T201
        if not scores:
            return
        value, loss = scores[self.metric], scores["loss"]
        if is_better(self.metric, value, self.best) or (value == self.best and loss < self.loss):
            self.best, self.loss = value, loss
            self.weights = {name: t.detach().cpu().clone() for name, t in self.network.state_dict().items()}


class CCNNClassifier(ClassifierMixin, Classifier, _TrainedNetwork):
    """A trained network as a classifier of series and images: by default a small :class:`kernelfield.CCNN`.

    Series may lie at irregular times: X is then a list of pairs (times, values) or of dicts of such pairs by channel.
    Channels observed at different times are taken as they are.

    Up to 5,000 samples, its probabilities are averaged with those of :class:`RandomKernelClassifier`, which generalises
    better from few samples.

    Args:
        model: name of the network, any of :func:`kernelfield.list_models` that predicts one target per sample.
        start_from: fine-tune a pretrained network instead: a weight of ``list_models(pretrained=True)``, or the folder
            of a run. Its classifier is replaced. X must have its channels.
        field: field of the kernels, a class of :mod:`kernelfield.fields` or its name; the network's own by default.
        channels: width; 32 for the default network, and that of the name for others.
        blocks: depth; 2 for the default network, and that of the name for others.
        options: further arguments of the network.
        random_kernels: number of random kernels; 0 for none. By default 1,000 up to 5,000 samples, and none beyond;
            none for series at irregular times.
        epochs: passes over the training samples; by default as many as make 400 steps, at least 10.
        batch: samples per step.
        lr: learning rate.
        weight_decay: weight decay of all weights outside kernel networks and masks.
        dropout: probability inside the blocks.
        label_smoothing: of the cross-entropy.
        validation_fraction: share of the samples that is held out; the epoch with the best score on it is kept.
        patience: epochs without improvement on it after which training stops; None to train to the end.
        device: "auto", "cpu" or "cuda".
        verbose: 1 prints progress.
        random_state: seed.

    Attributes:
        network_: the trained network; it takes what ``prepare(X)`` returns.
        random_kernels_: the fitted :class:`~kernelfield.models.RandomKernelNet`, or None.
        history_: a row of metrics per evaluated epoch.
        n_iter_: number of steps.
        validation_score_: best score on the samples that were held out; None if there were none.
        classes_: the classes.

    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> y = np.array(["up", "down"] * 10)
    >>> X[y == "up"] += np.linspace(0, 4, 16)
    >>> clf = CCNNClassifier(channels=8, blocks=1, epochs=20, random_kernels=50).fit(X, y)
    >>> float(clf.score(X, y)) > 0.8
    True
    """


class CCNNRegressor(RegressorMixin, Regressor, _TrainedNetwork):
    """A trained network as a regressor on series and images; arguments and attributes as :class:`CCNNClassifier`.

    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> CCNNRegressor(channels=4, blocks=1, epochs=1, random_kernels=50).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """

"""Constructors of the estimators, shared by the classes for scikit-learn and aeon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .._kinds import BOOL, NOT_NEGATIVE, POSITIVE, RATE, TEXT, Choice, Int
from .._object_kinds import DICT, FIELD, Instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._kinds import Kind
    from ..fields import Field

__all__ = ["KernelArguments", "NetworkArguments"]

FIELD_OR_NAME = TEXT | FIELD
#: random states of scikit-learn
RANDOM_STATE = Int(0, 2**32 - 1) | Instance("numpy.random.RandomState") | None


class NetworkArguments:
    """Arguments of the estimators that train a network; see :class:`~kernelfield.sklearn.CCNNClassifier`."""

    KINDS: ClassVar[dict[str, Kind]] = {
        "model": TEXT | None,
        "start_from": TEXT | None,
        "field": FIELD_OR_NAME | None,
        "channels": Int() | None,
        "blocks": Int() | None,
        "options": DICT | None,
        "networks": Int(1, 100) | None,
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
        model: str | None = None,
        start_from: str | None = None,
        field: str | Callable[..., Field] | None = None,
        channels: int | None = None,
        blocks: int | None = None,
        options: dict[str, Any] | None = None,
        networks: int | None = None,
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
        self.networks = networks
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
        super().__init__()


class KernelArguments:
    """Arguments of the estimators of random kernels; see :class:`~kernelfield.sklearn.RandomKernelClassifier`."""

    KINDS: ClassVar[dict[str, Kind]] = {
        "kernels": Int() | None,
        "field": FIELD_OR_NAME | None,
        "random_state": RANDOM_STATE,
    }

    def __init__(
        self,
        *,
        kernels: int | None = None,
        field: str | Callable[..., Field] | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.kernels = kernels
        self.field = field
        self.random_state = random_state
        super().__init__()

"""Settings of optimisers and learning-rate schedules, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from .._arguments import checked_fields
from .._kinds import NOT_NEGATIVE, POSITIVE, RATE, SHARE, TEXT, Choice, Int, ListOf

__all__ = ["Optimizer", "Schedule"]

#: what tasks measure, and a plateau can watch
MEASURED = (
    "loss",
    "accuracy",
    "auc",
    "auc_clip",
    "map",
    "map_clip",
    "mse",
    "mae",
    "psnr",
    "l2",
    "bits",
    "iou",
    "part_iou",
    "part_iou_kinds",
)


@checked_fields(
    name=Choice("adamw", "adam", "sgd", "adadelta"),
    lr=POSITIVE,
    weight_decay=NOT_NEGATIVE,
    decayed=ListOf(TEXT),
    mask_lr=NOT_NEGATIVE,
    subset_lr=NOT_NEGATIVE,
    betas=ListOf(RATE, count=2),
    momentum=RATE,
)
@dataclass(frozen=True)
class Optimizer:
    """The optimiser: one of torch's own.

    Args:
        name: "adamw", with decay decoupled from the gradient, or "adam", "sgd" or "adadelta", which add decay to the
            gradient (coupled L2).
        lr: learning rate.
        weight_decay: weight decay of the parameters that ``decayed`` names.
        decayed: kinds of parameters, or patterns of parameter names such as ``"blocks.*.weight"``. Kinds are "weights"
            (matrices and tables outside kernel networks), "biases" (biases and norms), "fields" (kernel networks),
            "masks", "subsets" (distributions p(u)) and "all".
        mask_lr: learning rate of the masks, in units of ``lr``.
        subset_lr: learning rate of the distributions p(u), in units of ``lr``.
        betas: decay rates of Adam's moments; "adamw" and "adam" only.
        momentum: momentum of "sgd".
        nesterov: use Nesterov's momentum; "sgd" only.
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    decayed: list[str] = field(default_factory=lambda: ["weights"])
    mask_lr: float = 1.0
    subset_lr: float = 0.1
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    momentum: float = 0.9
    nesterov: bool = False

    choices: ClassVar[dict[str, tuple[str, ...]]] = {"name": ("adamw", "adam", "sgd", "adadelta")}

    def __post_init__(self) -> None:
        if self.name != "sgd" and (self.nesterov or self.momentum != 0.9):
            got = "nesterov" if self.nesterov else "momentum"
            raise ValueError(f"optimizer.{got} is a setting of 'sgd', got it for {self.name!r}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov needs a momentum above 0, got momentum=0")
        if self.name not in ("adamw", "adam") and list(self.betas) != [0.9, 0.999]:
            raise ValueError(f"optimizer.betas is a setting of 'adamw' and 'adam', got it for {self.name!r}")


@checked_fields(
    name=Choice("cosine", "steps", "plateau", "constant"),
    warmup=NOT_NEGATIVE,
    final=NOT_NEGATIVE,
    factor=SHARE,
    patience=Int(0),
    milestones=ListOf(Int(), least=0),
    monitor=Choice("", *MEASURED),
    split=Choice("", "validation", "train"),
)
@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes.

    Args:
        name: "cosine" (per step), "steps" (at given epochs), "plateau" (per evaluated epoch) or "constant".
        warmup: epochs of linear growth from zero; with every schedule.
        final: where a cosine ends, in units of the learning rate.
        factor: multiplies the learning rate at a plateau or a step.
        patience: epochs without improvement after which a plateau lowers the learning rate.
        milestones: epochs after which "steps" lowers the learning rate.
        monitor: the quantity a plateau watches, "loss" or a metric; the metric the run is chosen by if empty.
        split: the data it is measured on, "validation" or "train"; if empty, validation data where there are any, and
            the training loss otherwise.
    """

    name: str = "cosine"
    warmup: float = 0.0
    final: float = 0.0
    factor: float = 0.2
    patience: int = 20
    milestones: list[int] = field(default_factory=list)
    monitor: str = ""
    split: str = ""

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "name": ("cosine", "steps", "plateau", "constant"),
        "monitor": ("", *MEASURED),
        "split": ("", "validation", "train"),
    }

    def __post_init__(self) -> None:
        if any(b <= a for a, b in pairwise(self.milestones)):
            raise ValueError(f"schedule.milestones must be increasing epochs, got {self.milestones}")
        if (self.name == "steps") != bool(self.milestones):
            wanted = "epochs for 'steps'" if self.name == "steps" else f"left out for {self.name!r}"
            raise ValueError(f"schedule.milestones must be {wanted}, got {self.milestones}")
        if self.name != "plateau" and (self.monitor or self.split):
            got = "monitor" if self.monitor else "split"
            raise ValueError(f"schedule.{got} is a setting of 'plateau', got it for {self.name!r}")
        if self.name != "cosine" and self.final:
            raise ValueError(f"schedule.final is a setting of 'cosine', got it for {self.name!r}")

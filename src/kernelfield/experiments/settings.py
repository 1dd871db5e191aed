"""Settings of a recipe, checked at construction: optimiser, learning-rate schedule, training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import ClassVar

from .._arguments import checked_fields
from .._kinds import NOT_NEGATIVE, POSITIVE, PROBABILITY, RATE, SHARE, STRING, TEXT, Choice, Int, ListOf
from .progress import LOGGERS

__all__ = ["SELECT", "Optimizer", "Schedule", "Training", "with_section"]

#: metrics of all tasks, which a plateau can watch
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
    """Settings of the optimiser.

    Args:
        name: optimiser of torch: "adamw", with weight decay decoupled from the gradient, or "adam", "sgd" or
            "adadelta", which add it to the gradient (coupled L2).
        lr: learning rate.
        weight_decay: weight decay of the parameters that match ``decayed``.
        decayed: kinds of parameters, or patterns of parameter names such as ``"blocks.*.weight"``. Kinds are "weights"
            (matrices and tables outside kernel networks), "biases" (biases and norms), "fields" (kernel networks),
            "masks", "subsets" (distributions p(u)) and "all".
        mask_lr: learning rate of the masks, in units of ``lr``.
        subset_lr: learning rate of the distributions p(u), in units of ``lr``.
        betas: decay rates of Adam's moments; "adamw" and "adam" only.
        momentum: momentum of "sgd".
        nesterov: whether to use Nesterov's momentum; "sgd" only.
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
    #: settings of some optimisers only, with the names of these
    owners: ClassVar[dict[str, tuple[str, ...]]] = {
        "betas": ("adamw", "adam"),
        "momentum": ("sgd",),
        "nesterov": ("sgd",),
    }

    def __post_init__(self) -> None:
        if self.name != "sgd" and (self.nesterov or self.momentum != 0.9):
            got = "nesterov" if self.nesterov else "momentum"
            raise ValueError(f"optimizer.{got} must be set only for 'sgd', got it for {self.name!r}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov must be false without momentum, got true with momentum=0")
        if self.name not in ("adamw", "adam") and list(self.betas) != [0.9, 0.999]:
            raise ValueError(f"optimizer.betas must be set only for 'adamw' and 'adam', got them for {self.name!r}")


@checked_fields(
    name=Choice("cosine", "steps", "plateau", "constant"),
    warmup=NOT_NEGATIVE,
    final=NOT_NEGATIVE,
    factor=SHARE,
    patience=Int(0),
    milestones=ListOf(POSITIVE, least=0),
    monitor=Choice("", *MEASURED),
    split=Choice("", "validation", "train"),
)
@dataclass(frozen=True)
class Schedule:
    """Settings of the learning-rate schedule.

    Args:
        name: "cosine" (per step), "steps" (at given epochs), "plateau" (per evaluated epoch) or "constant".
        warmup: epochs, or a fraction of one, of linear growth from zero; with every schedule.
        final: final value of a cosine, in units of the learning rate.
        factor: factor on the learning rate at a plateau or a step.
        patience: epochs without improvement after which a plateau lowers the learning rate.
        milestones: epochs, or fractions of them, after which "steps" lowers the learning rate.
        monitor: quantity that a plateau watches, "loss" or a metric; by default the metric that selects the best epoch.
        split: split on which it is measured, "validation" or "train"; by default validation data if there are any,
            otherwise the training loss.
    """

    name: str = "cosine"
    warmup: float = 0.0
    final: float = 0.0
    factor: float = 0.2
    patience: int = 20
    milestones: list[float] = field(default_factory=list)
    monitor: str = ""
    split: str = ""

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "name": ("cosine", "steps", "plateau", "constant"),
        "monitor": ("", *MEASURED),
        "split": ("", "validation", "train"),
    }
    #: settings of some schedules only, with the names of these
    owners: ClassVar[dict[str, tuple[str, ...]]] = {
        "final": ("cosine",),
        "factor": ("plateau", "steps"),
        "patience": ("plateau",),
        "milestones": ("steps",),
        "monitor": ("plateau",),
        "split": ("plateau",),
    }

    def __post_init__(self) -> None:
        if any(b <= a for a, b in pairwise(self.milestones)):
            raise ValueError(f"schedule.milestones must be increasing epochs, got {self.milestones}")
        if (self.name == "steps") != bool(self.milestones):
            wanted = "epochs for 'steps'" if self.name == "steps" else f"empty for {self.name!r}"
            raise ValueError(f"schedule.milestones must be {wanted}, got {self.milestones}")
        if self.milestones and self.milestones[0] < self.warmup:
            raise ValueError(
                f"schedule.milestones must not lie in the warm-up of {self.warmup:g} epochs, got {self.milestones}"
            )
        if self.name != "plateau" and (self.monitor or self.split):
            got = "monitor" if self.monitor else "split"
            raise ValueError(f"schedule.{got} must be set only for 'plateau', got it for {self.name!r}")
        if self.name != "cosine" and self.final:
            raise ValueError(f"schedule.final must be set only for 'cosine', got it for {self.name!r}")

    def scaled(self, factor: float) -> Schedule:
        """Return the schedule of a training with ``factor`` times the epochs, in the same proportions.

        >>> Schedule("steps", warmup=5, milestones=[200, 250]).scaled(0.02)
        Schedule(name='steps', warmup=0.1, ..., milestones=[4.0, 5.0], ...)
        """
        return replace(
            self,
            warmup=self.warmup * factor,
            patience=max(1, round(self.patience * factor)) if self.patience else 0,
            milestones=[epoch * factor for epoch in self.milestones],
        )


#: weights of a training to test and to use
SELECT = ("best", "last", "average")


@checked_fields(
    eval_batch=Int() | None,
    seed=Int(0, 2**32 - 1),
    clip=POSITIVE | None,
    ema=SHARE | None,
    label_smoothing=PROBABILITY,
    precision=Choice("32", "bf16"),
    matmul=Choice("highest", "high", "medium"),
    norm_batches=Int(0) | None,
    log=ListOf(Choice(*LOGGERS), least=0),
    select=Choice(*SELECT),
    temperature=ListOf(POSITIVE, count=0) | ListOf(POSITIVE, count=2),
    start_from=STRING,
)
@dataclass(frozen=True)
class Training:
    """Length, batch size, precision and reports of a training.

    Args:
        epochs: passes over the training samples.
        batch: samples per step over all processes.
        eval_batch: samples per batch of an evaluation; by default ``batch``.
        seed: seed of weights, order of samples, dropout and augmentation.
        clip: largest norm of the gradient.
        ema: decay of a moving average of the weights, which replaces them in tests.
        label_smoothing: label smoothing of cross-entropies.
        precision: "32" or "bf16" (mixed).
        compile: whether to compile the network with torch.compile.
        capture: whether to replay steps as CUDA graphs, on one GPU and if the network allows it.
        matmul: precision of float32 matrix products; see :func:`torch.set_float32_matmul_precision`.
        evaluate_every: epochs between evaluations on the validation split.
        norm_batches: number of training batches from which batch-norm statistics are re-estimated before each
            evaluation; 0 keeps the running averages. The default is 50 for trainings of up to 5,000 steps and for
            ``select: average``, and 0 otherwise.
        log: loggers: "csv", "tensorboard", "wandb".
        log_every: steps between two reports of the loss.
        checkpoint_every: steps between checkpoints inside an epoch; the end of each evaluated epoch has one too.
        patience: epochs without improvement on the validation split after which to stop.
        select: weights to test and to use: "best" (the epoch with the best validation score; of equal scores the one
            with the smallest loss), "last", or "average", the mean of the weights after each of the last
            ``average_last`` evaluated epochs.
        average_last: number of epochs for ``select: average``.
        temperature: first and last temperature of distributions over the elements of a finite group, linear over all
            steps (0.5 to 1e-4 in chapter 11); if empty, each distribution keeps its own.
        start_from: initial weights, copied where names and shapes agree: the folder of a run or the name of a
            pretrained weight, MODEL.TAG; "" for none.
        freeze: whether to train only the classifier and keep all other weights of ``start_from``.
    """

    epochs: int = 10
    batch: int = 64
    eval_batch: int | None = None
    seed: int = 0
    clip: float | None = None
    ema: float | None = None
    label_smoothing: float = 0.0
    precision: str = "32"
    compile: bool = False
    capture: bool = True
    matmul: str = "highest"
    evaluate_every: int = 1
    norm_batches: int | None = None
    log: list[str] = field(default_factory=list)
    log_every: int = 50
    checkpoint_every: int = 1000
    patience: int | None = None
    select: str = "best"
    average_last: int = 5
    temperature: list[float] = field(default_factory=list)
    start_from: str = ""
    freeze: bool = False

    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "precision": ("32", "bf16"),
        "matmul": ("highest", "high", "medium"),
        "select": SELECT,
    }

    def __post_init__(self) -> None:
        if self.freeze and not self.start_from:
            raise ValueError("training.freeze must be false without training.start_from, the weights to keep, got true")


def with_section(key: str) -> str:
    """Return the name of a setting with its section, if optimizer, schedule or training alone has it.

    >>> with_section("lr"), with_section("epochs"), with_section("model.channels"), with_section("name")
    ('optimizer.lr', 'training.epochs', 'model.channels', 'name')
    """
    sections = {"optimizer": fields(Optimizer), "schedule": fields(Schedule), "training": fields(Training)}
    found = [f"{section}.{key}" for section, own in sections.items() if key in {f.name for f in own}]
    return found[0] if len(found) == 1 else key

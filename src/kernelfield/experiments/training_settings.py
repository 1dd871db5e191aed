"""Settings of a training: its length, batch size, precision, logs and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .._arguments import checked_fields
from .._kinds import POSITIVE, PROBABILITY, SHARE, STRING, Choice, Int, ListOf
from .loggers import LOGGERS

__all__ = ["SELECT", "Training"]

#: which weights of a training are tested and used
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
        batch: samples per step, over all processes together.
        eval_batch: samples per step of an evaluation; as in training if not given.
        seed: of weights, order, dropout and augmentation.
        clip: largest norm of the gradient.
        ema: decay of a moving average of the weights, which is then tested in their place.
        label_smoothing: of cross-entropies.
        precision: "32" or "bf16" (mixed).
        compile: whether to compile the network with torch.compile.
        capture: whether to replay steps as CUDA graphs, on one GPU and where the network allows it.
        matmul: precision of float32 matrix products, as of :func:`torch.set_float32_matmul_precision`.
        evaluate_every: epochs between evaluations on the validation split.
        norm_batches: number of training batches from which batch-norm statistics are re-estimated before each
            evaluation; 0 keeps the running averages. By default 50 in trainings of up to 5,000 steps, and 0 otherwise.
        log: loggers: "csv", "tensorboard", "wandb".
        log_every: steps between two reports of the loss.
        checkpoint_every: steps between checkpoints inside an epoch; there is one at the end of each evaluated epoch.
        patience: epochs without improvement on the validation split after which to stop.
        select: weights to test and to use: "best" (the epoch with the best validation score; of equal ones that with
            the smallest loss), "last", or "average", the mean of the weights after each of the last ``average_last``
            evaluated epochs.
        average_last: number of epochs for ``select: average``.
        temperature: first and last temperature of distributions over the elements of a finite group, on a line over all
            steps (0.5 to 1e-4 in chapter 11); a distribution keeps its own if empty.
        start_from: weights to start from where names and shapes agree: the folder of a run or the name of a
            pretrained weight, MODEL.TAG; "" for none.
        freeze: whether to train the classifier alone, and keep all other weights of ``start_from``.
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
            raise ValueError("training.freeze needs training.start_from, the weights to keep, got none")

"""Progress, counters and clock of a training loop."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Clock", "Progress", "State"]


@dataclass(frozen=True)
class Progress:
    """Progress of a training.

    Args:
        step: steps done.
        steps: steps in all.
        epoch: epochs done.
        loss: mean loss since the last report; NaN in the first report, which comes after a few steps for its
            ``seconds_left`` alone.
        lr: learning rate.
        rate: samples per second.
        seconds_left: expected time to the end.
        metrics: validation metrics at the end of an evaluated epoch; empty otherwise.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    lr: float
    rate: float
    seconds_left: float
    metrics: dict[str, float]


@dataclass
class State:
    """The part of a loop's state that is plain numbers.

    Args:
        step: steps done.
        epoch: epochs done.
        position: steps done in the current epoch.
        seconds: time spent training.
        best: best validation score so far.
        best_step: step at which it was reached.
        best_loss: validation loss at that step, which breaks ties.
        waited: epochs since then.
        rows: metrics of each evaluated epoch.
        masks: mask sizes after each evaluated epoch.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    best_loss: float | None = None
    waited: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    masks: list[dict[str, float]] = field(default_factory=list)


class Clock:
    """Time spent training, counted on from an earlier run.

    Args:
        before: seconds of the earlier run.
        first_step: step at which this run began.
    """

    def __init__(self, before: float = 0.0, first_step: int = 0) -> None:
        self.before, self.first_step = before, first_step
        self._begun = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._begun

    @property
    def seconds(self) -> float:
        return self.before + self.elapsed

"""A training on two processes: alone, interrupted and resumed. Prints what differs as JSON.

python -m tests.experiments.distributed_program STRATEGY FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernelfield.experiments.checkpoint import gather
from kernelfield.experiments.fitting import make_fabric
from kernelfield.experiments.loop import Loop, TrainingInterrupted
from kernelfield.experiments.run import make_network, make_task
from tests.experiments.helpers import small_data, small_recipe

#: 12 steps of 8 samples; stopped after step 4
EPOCHS, STOP = 2, 4


def train(fabric: Any, folder: Path | None, *, dropout: float = 0.2, **options: Any) -> Loop:
    """Return a finished training of a small CCNN with batch norms."""
    recipe, data = (
        small_recipe(f"training.epochs={EPOCHS}", f"model.dropout={dropout}", "training.ema=0.9"),
        small_data(),
    )
    task = make_task(recipe, make_network(recipe, data), data)
    settings = replace(recipe.training, log_every=3, checkpoint_every=100)
    loop = Loop(task, data.train, data.validation, settings, fabric=fabric, folder=folder, **options)
    loop.run()
    return loop


def interrupted(fabric: Any, folder: Path) -> Loop:
    """Return the training, stopped by its second process and resumed."""
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps == STOP and fabric.global_rank == 1

    try:
        train(fabric, folder, should_stop=stop)
    except TrainingInterrupted:
        pass
    else:
        raise AssertionError("training must stop on all processes if one is asked to")
    torch.manual_seed(99)  # what the stopped training has drawn is no longer there
    return train(fabric, folder)


def largest_difference(one: Loop, other: Loop) -> float:
    """Return the largest difference between the weights and statistics of two trainings."""
    states = [gather(dict(loop.task.network.state_dict())) for loop in (one, other)]
    return max(float((a.double() - states[1][name].double()).abs().max()) for name, a in states[0].items())


def rows(loop: Loop) -> list[dict[str, float]]:
    """Return the metrics of each epoch but for times."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in loop.state.rows]


def main() -> None:
    strategy, folder = sys.argv[1], Path(sys.argv[2])
    fabric = make_fabric("cpu", devices=2, strategy=strategy)
    whole = train(fabric, folder / "whole")
    resumed = interrupted(fabric, folder / "resumed")
    together = train(fabric, None, dropout=0.0)
    found: dict[str, Any] = {"difference": largest_difference(whole, resumed)}
    found["rows"] = [rows(loop) for loop in (whole, resumed)]
    if fabric.global_rank == 0:
        found["losses"] = [
            [row["train_loss"] for row in rows(loop)] for loop in (together, train(None, None, dropout=0.0))
        ]
        (folder / "found.json").write_text(json.dumps(found))
    fabric.barrier()


if __name__ == "__main__":
    main()

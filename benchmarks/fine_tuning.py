"""Does a network that starts from a pretrained weight learn more from few samples than the same network from scratch?

    OMP_NUM_THREADS=1 python benchmarks/fine_tuning.py --save benchmarks/results/fine_tuning.json
    python benchmarks/fine_tuning.py --steps 4 --seeds 1          # to see that it runs

Each task differs from the one that the weight was trained on. The same network is trained on a tenth of the task's
training data, from the weight and from scratch, for the same number of steps with the same optimiser and schedule, by
the recipe of ``kernelfield train DATA --start-from WEIGHT``. Each start has its own learning rate: of two,
the one with the better score on the validation split under the first seed. Scores are those of the last step on the
test split. All data are generated or come with scikit-learn, and the weights come with the package.

The tasks, the steps and the rates were set before the first run. Run the script again with the same ``--save`` to
continue where it stopped. It takes about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _measure import machine
from _tables import describe, replace_section, save, table

from kernelfield.experiments.custom_data import recipe_for
from kernelfield.experiments.datasets import load_source
from kernelfield.experiments.fitting import fit, make_fabric
from kernelfield.experiments.metrics import is_better
from kernelfield.experiments.recipe import with_settings

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "pretrained.md"
#: share of the training data
SHARE = 0.1
RATES = (0.01, 0.001)
STARTS = ("weight", "scratch")


@dataclass(frozen=True)
class Task:
    """A task to train on.

    Args:
        weight: the pretrained weight.
        trained_on: what it was trained on, in words.
        title: the task, in words.
        data: name of the loader and its options.
        steps: of a training.
        batch: samples per step.
    """

    weight: str
    trained_on: str
    title: str
    data: dict[str, Any]
    steps: int
    batch: int = 16


_FLOW = {"name": "darcy_synthetic", "inverse_length": 9.0}
_SOLIDS = {"name": "solids", "points": 128, "normals": False, "train": 1_000, "test": 300}
TASKS = {
    "digits as sequences": Task(
        *("flextcn_2.smnist", "MNIST, pixel by pixel", "scikit-learn's digits, pixel by pixel"),
        {"name": "digits", "resolution": 28, "sequence": True},
        steps=40,
    ),
    "digits as images": Task(
        *("full_gcnn_t2.rotmnist", "rotated MNIST", "scikit-learn's digits, upright"),
        {"name": "digits", "resolution": 28},
        steps=32,
    ),
    "chirps": Task(
        *("w5.transients_small", "five kinds of transients", "chirps, by the change of their frequency"),
        {"name": "chirps", "length": 1_024, "train": 2_000, "validation": 200, "test": 300},
        steps=120,
    ),
    "adding 200": Task(
        *("ckcnn_adding.adding_100", "adding problem, T = 100", "adding problem, T = 200"),
        {"name": "adding", "T": 200, "train": 5_000, "validation": 200, "test": 500},
        steps=120,
    ),
    "copying 200": Task(
        *("ckcnn_copy.copy_100", "copy memory, T = 100", "copy memory, T = 200"),
        {"name": "copy_memory", "T": 200, "train": 5_000, "validation": 200, "test": 500},
        steps=120,
    ),
    "Darcy flow": Task(
        *("ccnn_4_140_global.darcy", "published Darcy flow", "Darcy flow through smaller patches"),
        _FLOW,
        steps=24,
    ),
    "Darcy flow with a U-Net": Task(
        *("unet_p4m.darcy_short", "published Darcy flow", "Darcy flow through smaller patches"),
        {**_FLOW, "coordinates": False},
        steps=36,
    ),
    "solids": Task(
        *("gridified_modelnet40.chair_monitor_small", "chairs and monitors", "eight solids, at any angle"),
        _SOLIDS,
        steps=48,
    ),
}


def train(name: str, start: str, rate: float, seed: int, most: int | None) -> dict[str, Any]:
    """Train one network and return its row.

    Args:
        name: of the task.
        start: "weight" or "scratch".
        rate: learning rate.
        seed: of fresh weights, order and dropout.
        most: largest number of steps; None for the task's own.
    """
    task, begin = TASKS[name], time.process_time()
    data = load_source({**task.data, "share": SHARE}, name)
    recipe = recipe_for(data, "fine-tuning", task.data, start_from=task.weight)
    steps = task.steps if most is None else min(most, task.steps)
    epochs = max(1, round(steps / (len(data.train) // task.batch)))
    settings: dict[str, Any] = {"optimizer.lr": rate, "schedule.warmup": max(1, epochs // 10), "test.step": []}
    settings |= {f"training.{key}": v for key, v in {"epochs": epochs, "batch": task.batch, "seed": seed}.items()}
    settings |= {"training.evaluate_every": epochs, "training.select": "last"}
    settings |= {"training.start_from": task.weight if start == "weight" else ""}
    recipe = with_settings(recipe, settings)
    with tempfile.TemporaryDirectory() as folder:
        run = fit(recipe, Path(folder) / "run", data=data, fabric=make_fabric("cpu"), report=False)
        result, last = run.result(), run.read_rows("metrics.csv")[-1]
    return {
        "task": name,
        "start": start,
        "lr": rate,
        "seed": seed,
        "samples": len(data.train),
        "steps": result["steps"],
        "metric": result["metric"],
        "validation": last[f"val_{result['metric']}"],
        "test": result["metrics"]["test"][result["metric"]],
        "seconds": round(time.process_time() - begin, 1),
    }


def chosen_rate(rows: list[dict[str, Any]]) -> float:
    """Return the learning rate of the row with the best score on the validation split."""
    best = rows[0]
    for row in rows[1:]:
        if is_better(row["metric"], row["validation"], best["validation"]):
            best = row
    return float(best["lr"])


def train_all(report: dict[str, Any], names: list[str], options: argparse.Namespace) -> None:
    """Train all networks that are not in the report yet, and add their rows to it as they end."""

    def row(*key: Any) -> dict[str, Any]:
        found = [old for old in report["rows"] if tuple(old[k] for k in ("task", "start", "lr", "seed")) == key]
        if not found:
            found = [train(*key, options.steps)]
            print(found[0], flush=True)
            report["rows"] += found
            save(report, options.save)
        return found[0]

    for name, start in itertools.product(names, STARTS):
        rate = chosen_rate([row(name, start, rate, options.seed) for rate in RATES])
        for seed in range(options.seed + 1, options.seed + options.seeds):
            row(name, start, rate, seed)


def scores(rows: list[dict[str, Any]], name: str, start: str) -> tuple[float, list[float]]:
    """Return the chosen learning rate of a task and a start, and the test scores of all seeds."""
    own = [row for row in rows if row["task"] == name and row["start"] == start]
    if not own:
        return RATES[0], []
    rate = chosen_rate([row for row in own if row["seed"] == min(row["seed"] for row in own)])
    return rate, [row["test"] for row in own if row["lr"] == rate]


def shown(rows: list[dict[str, Any]]) -> str:
    """Return the table, with a line for each task whose trainings are all done."""
    lines = []
    for name, task in TASKS.items():
        own = [row for row in rows if row["task"] == name]
        (rate, tuned), (fresh_rate, fresh) = (scores(rows, name, start) for start in STARTS)
        if not tuned or not fresh:
            continue
        metric = own[0]["metric"]
        means = [statistics.mean(tuned), statistics.mean(fresh)]
        cells = [_cell(metric, tuned, rate), _cell(metric, fresh, fresh_rate)]
        for i in range(2):
            cells[i] = f"**{cells[i]}**" if is_better(metric, means[i], means[1 - i]) else cells[i]
        counts = f"{own[0]['samples']}, {own[0]['steps']}"
        lines.append([task.title, f"`{task.weight}` ({task.trained_on})", counts, metric, *cells])
    return table(["task", "weight (trained on)", "samples, steps", "score", "from the weight", "from scratch"], lines)


def _cell(metric: str, values: list[float], rate: float) -> str:
    """Return the mean and the range of scores, and the learning rate."""
    scale, digits, unit = (100, 1, " %") if metric == "accuracy" else (1, 4, "")
    mean, low, high = (f"{scale * f(values):.{digits}f}" for f in (statistics.mean, min, max))
    return f"{mean}{unit} ({low} to {high}; {rate:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="names of tasks, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, help="largest number of steps of a training")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--page", action="store_true", help=f"write the table to {PAGE.name}")
    options = parser.parse_args()
    if unknown := [name for name in options.tasks.split(",") if name not in TASKS]:
        parser.error(f"--tasks must hold names among {', '.join(TASKS)}, got {unknown[0]}")
    report: dict[str, Any] = {"machine": machine(torch.device("cpu"), options.seed), "rows": []}
    if options.save is not None and options.save.exists():
        report["rows"] = json.loads(options.save.read_text())["rows"]
    train_all(report, options.tasks.split(","), options)
    text = f"{describe(report['machine'])}\n\n{shown(report['rows'])}"
    print(f"\n{text}")
    if options.page:
        replace_section(PAGE, "fine-tuning", text)


if __name__ == "__main__":
    main()

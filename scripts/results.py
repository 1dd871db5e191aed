"""Run rows of the tables of the thesis, several trainings side by side on one device.

    python scripts/results.py memory mnist --data DATA --at-once 4 --seeds 3
    python scripts/results.py cifar --time-limit 540 --copy-to OUT        # stops in time; the same call continues
    python scripts/results.py cifar --continue-from OUT --copy-to OUT     # on another machine
    python scripts/results.py --list

A row is ``kernelfield reproduce RECIPE`` with the settings below. Its JSON is written to results/ as soon as its last
seed ends, and copied to ``--copy-to`` with the run and its last checkpoint. A recipe that is in no set can be named
too, and runs with its own settings. DATA is a folder with the files of MNIST and CIFAR-10 in their usual places and
folders ``fsdd``, ``physionet2012``, ``kodak`` and ``darcy``. Exit status: 1 if a row failed, 3 if one was interrupted.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelfield import keep_freed_memory
from kernelfield.experiments.fitting import make_fabric
from kernelfield.experiments.kernels_ahead import kernel_records
from kernelfield.experiments.metrics import is_better, main_metric
from kernelfield.experiments.recipe import find_recipe, list_recipes
from kernelfield.experiments.reproduce import Row, reproduce_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelfield.experiments.loop import Progress

ROOT = Path(__file__).parents[1]
#: subfolders of data sets that have one
FOLDERS = {"fsdd": "fsdd", "physionet2012": "physionet2012", "photograph": "kodak", "darcy": "darcy"}


@dataclass(frozen=True)
class Plan:
    """A recipe and the settings to run it with.

    Args:
        recipe: its name.
        epochs: number of epochs; that of the recipe if not given.
        settings: further settings.
        folds: folds of a cross-validation.
        floor: worst accepted validation score, by epoch; a training with a worse one ends there.
    """

    recipe: str
    epochs: int | None = None
    settings: tuple[str, ...] = ()
    folds: tuple[int, ...] = ()
    floor: dict[int, float] = field(default_factory=dict)


FAST = ("training.eval_batch=500", "training.matmul=high")
SHORT = ("schedule.name=cosine", "schedule.warmup=1", *FAST)
BF16 = ("training.precision=bf16",)

HALF = (*FAST, *BF16)
#: frequencies that the grid can hold, the default of the network, and some dropout
BAND = ("model.omega_0=null", "model.dropout=0.1")
#: with 2,000 digits held out and 60 epochs, DRENMaxPooling ends at a validation loss of 0.109 as published, without
#: regularisation; with dropout 0.080, with decay too 0.068, and with half the rate 0.061
DREN = (
    "data.validation=0",
    "schedule.name=cosine",
    "optimizer.lr=0.005",
    "optimizer.weight_decay=0.0001",
    "model.dropout=0.3",
)

PHOTOGRAPHS = tuple(range(6))
#: networks of sines under envelopes, with the second moment of Adam over 100 steps instead of 1,000
GABOR = ("data.pixels=8192", "optimizer.betas=[0.9, 0.99]")

#: rows at about a third of the published epochs, with the schedules of their recipes
THIRDS: dict[str, list[Plan]] = {
    "ccnn": [
        *(
            Plan(f"ch03-{task}-ccnn-4-140", epochs, (*HALF, *BAND, "training.eval_batch=1000", "schedule.warmup=4"))
            for task, epochs in (("scifar10", 40), ("pmnist", 40))
        ),
        Plan("ch03-smnist-ccnn-4-140", 70, HALF),
        Plan(
            "ch03-cifar10-ccnn-4-140",
            90,
            (*HALF, "model.omega_0=null", "training.eval_batch=1000", "training.evaluate_every=5"),
        ),
    ],
    "ccnn-large": [Plan(f"ch03-{task}-ccnn-6-380", 70, HALF) for task in ("scifar10", "cifar10")],
    "dnarch-third": [
        Plan(f"ch06-cifar10-{kind}-4-140", 70, HALF) for kind in ("ccnn", "dnarch-k", "dnarch-kr", "dnarch-krwd")
    ],
    "self-attention-third": [Plan(f"ch09-rotmnist-{n}", 100, FAST) for n in ("z2", "r4", "r8", "r12")],
    "partial": [
        *(Plan(f"ch11-rotmnist-se2-8-{k}", 40, (*HALF, "schedule.warmup=3")) for k in ("full", "partial")),
        *(Plan(f"ch11-rotmnist-e2-8-{k}", 100, HALF) for k in ("full", "partial")),
        *(Plan(f"ch11-cifar10-se2-8-{k}", 100, HALF) for k in ("full", "partial")),
        Plan("ch11-mnist6-180-se2-8-full", 5, FAST),
        Plan("ch11-mnist6-180-se2-8-partial", 5, (*FAST, "optimizer.subset_lr=5")),
        Plan("ch11-mnist6-m-mirror-full", 16, FAST),
        Plan("ch11-mnist6-m-mirror-partial", 16, (*FAST, "optimizer.subset_lr=5")),
    ],
    # All 12,000 digits and the last epoch, as in chapter 8's rows.
    "co-attention": [
        *(
            Plan(f"ch07-rotmnist-{kind}", 100, (*FAST, *DREN))
            for kind in ("dren", "dren-co", "dren-max", "dren-max-co")
        ),
        *(
            Plan(
                f"ch07-rotmnist-{kind}",
                100,
                (*FAST, "data.validation=0", "schedule.name=cosine", "optimizer.lr=0.003"),
            )
            for kind in ("p4cnn", "p4cnn-co")
        ),
        Plan(
            "ch07-rotmnist-z2cnn",
            300,
            (*FAST, "data.validation=0", "schedule.name=cosine", "optimizer.lr=0.003"),
        ),
    ],
    "block-ablation": [
        Plan(f"ch03-smnist-{kind}-4-140", 6, (*HALF, "schedule.warmup=1")) for kind in ("fccnn", "s4-ccnn", "ccnn")
    ],
    "kernel-comparison": [
        Plan(f"ch11-rotmnist-se2-8-{kind}", 12, (*HALF, "schedule.warmup=1"))
        for kind in ("full", "relu", "leaky-relu", "swish", "gelu", "magnet")
    ],
    "ckcnn": [Plan(f"ch02-{task}-ckcnn-2-30", 66, FAST) for task in ("smnist", "pmnist")],
    "flex": [
        Plan(
            "ch05-smnist-flextcn-2",
            25,
            (*FAST, "schedule.warmup=2", "optimizer.lr=0.002", "model.dropout=0.15"),
        ),
        *(Plan(f"ch05-{task}-flextcn-2", 66, (*FAST, "optimizer.lr=0.002")) for task in ("pmnist", "scifar10")),
        Plan("ch05-npcifar10-flextcn-2", 100, FAST),
        Plan("ch05-cifar10-flexnet-16", 116, HALF),
        *(Plan(f"ch05-cifar16-flexnet-16-{kind}", 33, FAST) for kind in ("plain", "aliasing")),
    ],
}
#: rows with short schedules
SETS: dict[str, list[Plan]] = THIRDS | {
    "memory": [
        *(Plan(f"ch02-copy-{n}", 60, (*SHORT, "optimizer.lr=0.003")) for n in (6000, 3000, 1000)),
        *(Plan(f"ch02-copy-{n}", 24, (*SHORT, "optimizer.lr=0.004")) for n in (200, 100)),
        *(Plan(f"ch02-adding-{n}", 30, (*SHORT, "optimizer.lr=0.002")) for n in (6000, 3000, 1000)),
        *(Plan(f"ch02-adding-{n}", 10, SHORT) for n in (200, 100)),
    ],
    "mnist": [
        Plan("ch03-smnist-ccnn-4-140", 30, (*HALF, "training.eval_batch=1000", "schedule.warmup=3")),
        *(Plan(f"ch02-{task}-ckcnn-2-30", 8, SHORT) for task in ("smnist", "pmnist")),
        *(Plan(f"ch05-{task}-flextcn-2", 8, SHORT) for task in ("smnist", "pmnist")),
    ],
    "cifar": [
        Plan("ch03-cifar10-ccnn-4-140", 8, (*SHORT, *BF16)),
        Plan("ch05-cifar10-flexnet-16", 5, (*SHORT, *BF16)),
        Plan("ch03-scifar10-ccnn-4-140", 6, (*SHORT, *BF16)),
        Plan("ch05-cifar16-flexnet-16-plain", 5, SHORT),
        Plan("ch05-cifar16-flexnet-16-aliasing", 5, SHORT),
    ],
    "series": [
        Plan(
            "ch03-fsdd-ccnn-4-140",
            45,
            (*HALF, "training.eval_batch=100", "schedule.warmup=3", "model.omega_0=null"),
        ),
        Plan("ch02-physionet2012-ckcnn-2-30", 4, (*SHORT, "data.sets=[a, b]")),
    ],
    "groups": [
        Plan("ch11-rotmnist-se2-8-full", 20, (*SHORT, *BF16)),
        Plan("ch11-rotmnist-se2-8-partial", 20, (*SHORT, *BF16, "optimizer.subset_lr=1")),
        Plan("ch11-mnist6-m-mirror-full", 10, SHORT),
        Plan("ch11-mnist6-m-mirror-partial", 10, (*SHORT, "optimizer.subset_lr=20")),
        Plan("ch11-mnist6-180-se2-8-full", 6, (*SHORT, *BF16)),
        Plan("ch11-mnist6-180-se2-8-partial", 6, (*SHORT, *BF16, "optimizer.subset_lr=5")),
        *(Plan(f"ch11-cifar10-{group}-8-full", 3, (*SHORT, *BF16)) for group in ("se2", "e2")),
        *(
            Plan(f"ch11-cifar10-{group}-8-partial", 3, (*SHORT, *BF16, "optimizer.subset_lr=5"))
            for group in ("se2", "e2")
        ),
    ],
    # All 12,000 digits, as published, and the last epoch of a cosine: no data is left to choose an epoch by. The rate
    # was chosen with 2,000 digits held out.
    "attentive": [
        Plan(
            f"ch08-rotmnist-p4cnn{kind}",
            100,
            (*FAST, "data.validation=0", "schedule.name=cosine", "optimizer.lr=0.003"),
        )
        for kind in ("", "-11", "-15", "-19", "-channel", "-spatial", "-full", "-input", "-co")
    ],
    "self-attention": [
        Plan(f"ch09-rotmnist-{n}", 6, (*SHORT, "training.batch=64", "optimizer.lr=0.003", "model.readout=mean-max"))
        for n in ("z2", "r4", "r8", "r12")
    ],
    "dnarch": [
        Plan(f"ch06-cifar10-{kind}-4-140", 6, (*SHORT, *BF16, "training.batch=100"))
        for kind in ("dnarch-krwd", "ccnn", "dnarch-k", "dnarch-kr")
    ],
    "darcy": [Plan(f"ch06-darcy-small-{kind}-4-140", 60, FAST) for kind in ("ccnn", "dnarch-krwd")],
    "wavelets": [
        Plan(f"ch10-fsdd-{net}", 6, (*SHORT, *BF16, "training.eval_batch=100"), folds=(0, 1, 2, 3, 4))
        for net in ("w11", "w11-wl", "w5", "w5-wl", "m11", "m5")
    ],
    # As many steps as published, of some of the pixels each.
    "kodak": [
        Plan("ch05-kodak-siren", 200, (*SHORT, "data.pixels=8192"), folds=PHOTOGRAPHS),
        Plan("ch05-kodak-fourier", 200, (*SHORT, "data.pixels=4096", "optimizer.lr=0.02"), folds=PHOTOGRAPHS),
        *(
            Plan(
                f"ch05-kodak-{kind}",
                200,
                (*SHORT, *GABOR, "optimizer.lr=0.06", "training.compile=true"),
                folds=PHOTOGRAPHS,
            )
            for kind in ("magnet", "magnet-equal")
        ),
        *(
            Plan(f"ch05-kodak-{kind}", 200, (*SHORT, *GABOR, "optimizer.lr=0.04"), folds=PHOTOGRAPHS)
            for kind in ("gabor", "gabor-varied")
        ),
    ],
}


def main() -> None:
    options = parse(sys.argv[1:])
    if options.list:
        for name, plans in SETS.items():
            for plan in plans:
                print(name, plan.recipe, f"epochs={plan.epochs}", *plan.settings)
        return
    keep_freed_memory()
    sys.exit(run(choose(options.sets), options))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"{', '.join(SETS)}, or the name of a recipe")
    parser.add_argument("--list", action="store_true", help="print the rows and their settings")
    parser.add_argument("--data", type=Path, default=Path(".data"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of each row")
    parser.add_argument(
        "--at-once", type=int, default=4, help="number of trainings side by side, over all rows and seeds"
    )
    parser.add_argument("--epochs", type=int, help="epochs of all rows")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="setting A.B=C for all rows")
    parser.add_argument("--note", default="", help="remark to write to each result")
    parser.add_argument("--time-limit", type=float, help="seconds after which trainings stop, with checkpoints")
    parser.add_argument(
        "--floor",
        action="append",
        default=[],
        metavar="EPOCH:SCORE",
        help="end a training whose best validation score after EPOCH is worse than SCORE",
    )
    parser.add_argument("--copy-to", type=Path, help="folder to copy results, runs and checkpoints to")
    parser.add_argument("--copy-every", type=float, default=60.0, help="seconds between copies of a run in progress")
    parser.add_argument("--continue-from", type=Path, help="a folder that --copy-to wrote, to continue its runs")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--synthetic", action="store_true", help="synthetic data, to try the script")
    options = parser.parse_args(arguments)
    if not options.list and not options.sets:
        parser.error(f"SET must be one of {', '.join(SETS)} or a recipe, got nothing")
    try:
        pairs = [text.split(":") for text in options.floor]
        options.floor = {int(epoch): float(score) for epoch, score in pairs}
    except ValueError:
        parser.error(f"--floor must be EPOCH:SCORE such as 10:0.5, got {' '.join(options.floor)}")
    return options


def choose(names: list[str]) -> list[Plan]:
    """Return the plans of sets and of single recipes."""
    # A recipe in several sets has the plan of the first.
    every = {plan.recipe: plan for plans in reversed(SETS.values()) for plan in reversed(plans)}
    unknown = [name for name in names if name not in SETS and name not in every and name not in list_recipes()]
    if unknown:
        sys.exit(f"results.py: SET must be one of {', '.join(SETS)} or a recipe, got {', '.join(unknown)}")
    return [plan for name in names for plan in SETS.get(name) or [every.get(name) or Plan(name)]]


def make_row(plan: Plan, options: argparse.Namespace, should_stop: Callable[[], bool] | None) -> Row:
    """Return the row of a plan; of several values of a setting, the last one counts."""
    epochs = options.epochs or plan.epochs
    settings = [*([f"training.epochs={epochs}"] if epochs else []), *plan.settings, *options.set]
    last = {setting.split("=")[0]: setting for setting in settings}
    folder = options.data / FOLDERS.get(find_recipe(plan.recipe).data["name"], "")
    further = {"folder": str(folder), "report": False, "synthetic": options.synthetic, "should_stop": should_stop}
    seeds = 1 if plan.folds else options.seeds
    return Row(plan.recipe, tuple(last.values()), seeds, plan.folds, options.note, further)


def run(plans: list[Plan], options: argparse.Namespace) -> int:
    """Run all plans and return the exit status."""
    begun = time.monotonic()
    deadline = None if options.time_limit is None else begun + options.time_limit
    should_stop = None if deadline is None else lambda: time.monotonic() > deadline
    rows = [make_row(plan, options, should_stop) for plan in plans]
    floors = {plan.recipe: {**plan.floor, **options.floor} for plan in plans}
    if options.continue_from is not None:
        continue_from(options.continue_from, options.runs)
    copies = Copies(options)

    def on_progress(row: Row, now: Progress) -> None:
        if now.metrics:
            check_floor(row, now, floors[row.recipe])
        copies.in_progress(row, now)

    def on_result(row: Row, result: dict[str, Any]) -> None:
        copies.finished(row, result)
        print(f"{time.monotonic() - begun:.0f} s: {line(result)}", flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the graphs of the next row use this memory

    found = reproduce_rows(
        rows,
        options.results,
        options.runs,
        fabric=make_fabric(options.accelerator),
        at_once=options.at_once,
        on_progress=on_progress,
        on_result=on_result,
    )
    states = {result["status"] for result in found}
    return 1 if "failed" in states else 3 if "interrupted" in states else 0


def check_floor(row: Row, now: Progress, floor: dict[int, float]) -> None:
    """Raise if the validation score of a row is worse than the floor of its epoch."""
    due = max((epoch for epoch in floor if epoch <= now.epoch), default=None)
    if due is None:
        return
    recipe = row.resolved()
    metric = recipe.metric or main_metric(recipe.shape.task)
    score = now.metrics[metric]
    if is_better(metric, floor[due], score):
        raise RuntimeError(f"stopped: validation {metric} {score:.4f} after epoch {now.epoch}, floor {floor[due]}")


def line(result: dict[str, Any]) -> str:
    """Return one line about a result."""
    if result["status"] != "done":
        return f"{result['recipe']}: {result['status']}: {result['error']}"
    metric = result["metric"]
    scale = 100 if metric in ("accuracy", "iou") else 1  # as published
    shown = {"test": result["metrics"]["test"][metric], "last epoch": result["last"]["test"][metric]}
    if "deviation" in result:
        shown["spread"] = result["deviation"]["test"][metric]
    parts = [f"{name} {scale * value:.4g}" for name, value in shown.items()]
    published = result["published"].get(metric)
    parts += [] if published is None else [f"published {published}"]
    return f"{result['recipe']}: {metric} {', '.join(parts)}; {result['seconds_per_epoch']} s an epoch"


class Copies:
    """Copies of results and runs in ``--copy-to``, so that nothing is lost with the machine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.copied: dict[str, float] = {}

    def in_progress(self, row: Row, now: Progress) -> None:
        """Print the progress of a row and copy its run, from time to time."""
        before = self.copied.setdefault(row.recipe, time.monotonic())
        if time.monotonic() - before < self.options.copy_every:
            return
        self.copied[row.recipe] = time.monotonic()
        scores = " ".join(f"{name} {value:.4f}" for name, value in now.metrics.items())
        print(f"  {row.recipe}: epoch {now.epoch}, loss {now.loss:.4f} {scores}, {now.rate:,.0f} samples/s", flush=True)
        self._copy_run(row)

    def finished(self, row: Row, result: dict[str, Any]) -> None:
        """Copy the result of a row and its run."""
        if self.options.copy_to is None:
            return
        self._copy_run(row)
        path = self.options.results / f"{result['recipe']}.json"
        if path.exists():
            target = self.options.copy_to / "results" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    def _copy_run(self, row: Row) -> None:
        records = kernel_records()
        if self.options.copy_to is not None and records is not None and records.exists():
            shutil.copytree(records, self.options.copy_to / "kernels", dirs_exist_ok=True)
        folder = row.folder(self.options.runs)
        if self.options.copy_to is None or not folder.exists():
            return
        target = self.options.copy_to / "runs" / folder.name
        draft = target.with_name(f".{target.name}")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(folder, draft, ignore=shutil.ignore_patterns(".lock", ".step-*", ".best-*"))
        shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)


def continue_from(folder: Path, runs: Path) -> None:
    """Copy runs, and records of GPU kernels, that ``--copy-to`` has written to their places, unless they are there."""
    for record in sorted((folder / "kernels").glob("*.jsonl")):
        records = kernel_records()
        if records is not None and not (records / record.name).exists():
            records.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(record, records / record.name)
    for run_folder in sorted((folder / "runs").glob("[!.]*")):
        if not (runs / run_folder.name).exists():
            shutil.copytree(run_folder, runs / run_folder.name, copy_function=shutil.copyfile)
    for path in [p for p in runs.rglob("*") if p.is_dir()]:
        path.chmod(0o755)  # copies of files that are read-only


if __name__ == "__main__":
    main()

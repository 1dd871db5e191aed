"""Run rows of the thesis's tables with the shortened schedules that docs/results.md reports, several at a time.

    python scripts/results.py memory mnist --data DATA --jobs 4
    python scripts/results.py --list

A row is ``kernelfield reproduce RECIPE`` with the settings below; its JSON goes to results/. DATA is a folder with the
files of MNIST and CIFAR-10 in their usual places and folders ``fsdd``, ``physionet2012``, ``kodak`` and ``darcy``. A
row that has not ended after ``--limit`` seconds is stopped and leaves nothing behind but its run, which is taken up
again.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelfield.experiments.recipe import find_recipe
from kernelfield.experiments.reproduce import reproduce

ROOT = Path(__file__).parents[1]
#: folders of data that have one of their own
FOLDERS = {"fsdd": "fsdd", "physionet2012": "physionet2012", "photograph": "kodak", "darcy": "darcy"}


@dataclass(frozen=True)
class Row:
    """A recipe and what is changed of it.

    Args:
        recipe: its name.
        epochs: instead of the published ones.
        settings: further ones.
        folds: of a cross-validation, such as "0,1,2,3,4".
    """

    recipe: str
    epochs: int
    settings: tuple[str, ...] = ()
    folds: str = ""


FAST = ("training.eval_batch=500", "training.matmul=high")
SHORT = ("schedule.name=cosine", "schedule.warmup=1", *FAST)
BF16 = ("training.precision=bf16",)

SETS: dict[str, list[Row]] = {
    "memory": [
        *(Row(f"ch02-copy-{n}", 20, SHORT) for n in (6000, 3000, 1000, 200, 100)),
        *(Row(f"ch02-adding-{n}", 5, SHORT) for n in (6000, 3000, 1000, 200, 100)),
    ],
    "mnist": [
        *(Row(f"ch03-{task}-ccnn-4-140", 5, SHORT) for task in ("smnist", "pmnist")),
        *(Row(f"ch02-{task}-ckcnn-2-30", 8, SHORT) for task in ("smnist", "pmnist")),
        *(Row(f"ch05-{task}-flextcn-2", 8, SHORT) for task in ("smnist", "pmnist")),
    ],
    "cifar": [
        Row("ch03-cifar10-ccnn-4-140", 8, (*SHORT, *BF16)),
        Row("ch05-cifar10-flexnet-16", 5, (*SHORT, *BF16)),
        Row("ch03-scifar10-ccnn-4-140", 6, (*SHORT, *BF16)),
        Row("ch05-cifar16-flexnet-16-plain", 5, SHORT),
        Row("ch05-cifar16-flexnet-16-aliasing", 5, SHORT),
    ],
    "series": [
        Row("ch03-fsdd-ccnn-4-140", 12, SHORT),
        Row("ch02-physionet2012-ckcnn-2-30", 4, (*SHORT, "data.sets=[a, b]")),
    ],
    "groups": [
        Row("ch11-rotmnist-se2-8-full", 20, (*SHORT, *BF16)),
        Row("ch11-rotmnist-se2-8-partial", 20, (*SHORT, *BF16, "optimizer.subset_lr=1")),
        Row("ch11-mnist6-m-mirror-full", 10, SHORT),
        Row("ch11-mnist6-m-mirror-partial", 10, (*SHORT, "optimizer.subset_lr=20")),
        Row("ch11-mnist6-180-se2-8-full", 6, (*SHORT, *BF16)),
        Row("ch11-mnist6-180-se2-8-partial", 6, (*SHORT, *BF16, "optimizer.subset_lr=5")),
        *(Row(f"ch11-cifar10-{group}-8-full", 3, (*SHORT, *BF16)) for group in ("se2", "e2")),
        *(
            Row(f"ch11-cifar10-{group}-8-partial", 3, (*SHORT, *BF16, "optimizer.subset_lr=5"))
            for group in ("se2", "e2")
        ),
    ],
    "attentive": [
        Row(f"ch08-rotmnist-p4cnn{kind}", 100, FAST)
        for kind in ("", "-co", "-input", "-channel", "-spatial", "-full", "-11", "-15", "-19")
    ],
    "self-attention": [
        Row(f"ch09-rotmnist-{n}", 6, (*SHORT, "training.batch=64", "optimizer.lr=0.003"))
        for n in ("z2", "r4", "r8", "r12")
    ],
    "dnarch": [
        Row(f"ch06-cifar10-{kind}-4-140", 6, (*SHORT, *BF16, "training.batch=100"))
        for kind in ("dnarch-krwd", "ccnn", "dnarch-k", "dnarch-kr")
    ],
    "darcy": [Row(f"ch06-darcy-small-{kind}-4-140", 40, FAST) for kind in ("ccnn", "dnarch-krwd")],
    "wavelets": [
        Row(f"ch10-fsdd-{net}", 6, (*SHORT, *BF16, "training.eval_batch=100"), folds="0,1,2,3,4")
        for net in ("w11", "w11-wl", "w5", "w5-wl", "m11", "m5")
    ],
    "kodak": [Row(f"ch05-kodak-{field}", 15, FAST) for field in ("magnet", "gabor", "fourier", "siren")],
}


def arguments(row: Row, options: argparse.Namespace) -> tuple[Path, list[str]]:
    """Return the folder of a row's data, and its settings."""
    folder = options.data / FOLDERS.get(find_recipe(row.recipe).data["name"], "")
    settings = [f"training.epochs={row.epochs}", *row.settings, *options.set]
    return folder, list(
        {setting.split("=")[0]: setting for setting in settings}.values()
    )  # the last one of each counts


def run_here(row: Row, options: argparse.Namespace) -> tuple[str, int, float]:
    """Run a row in this process, without a report; return its name, exit status and seconds."""
    begun = time.perf_counter()
    folder, settings = arguments(row, options)
    folds = [int(fold) for fold in row.folds.split(",") if fold]
    result = reproduce(
        row.recipe, options.results, options.runs, settings=settings, folds=folds, folder=str(folder), report=False
    )
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # graphs of the next row find the memory of those before
    return row.recipe, int(result["status"] != "done"), time.perf_counter() - begun


def run(row: Row, options: argparse.Namespace) -> tuple[str, int, float]:
    """Run a row in a process of its own; return its name, exit status and seconds."""
    folder, settings = arguments(row, options)
    command = [sys.executable, "-m", "kernelfield", "reproduce", row.recipe, "--json", "--data", str(folder)]
    command += ["--results", str(options.results), "--runs", str(options.runs)]
    command += [part for setting in settings for part in ("--set", setting)]
    command += ["--folds", row.folds] if row.folds else []
    # Several processes share the cores: a pool of threads in each would have them wait for each other.
    env = {"OMP_NUM_THREADS": "2", **os.environ}
    begun = time.perf_counter()
    log = options.runs / f"{row.recipe}.out"
    with log.open("w") as out:
        try:
            status = subprocess.run(
                command, env=env, stdout=out, stderr=subprocess.STDOUT, timeout=options.limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
    return row.recipe, status, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"{', '.join(SETS)}, or the name of a row in one")
    parser.add_argument("--list", action="store_true", help="print the rows and their settings")
    parser.add_argument("--data", type=Path, default=Path(".data"))
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument(
        "--jobs", type=int, default=1, help="rows at a time, each a process; 0 for all in this one, which starts once"
    )
    parser.add_argument("--limit", type=float, help="seconds for a row")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting for all rows")
    options = parser.parse_args()
    if options.list:
        for name, rows in SETS.items():
            for row in rows:
                print(name, row.recipe, f"epochs={row.epochs}", *row.settings)
        return
    every = {row.recipe: row for rows in SETS.values() for row in rows}
    unknown = [name for name in options.sets if name not in SETS and name not in every]
    if unknown or not options.sets:
        parser.error(f"SET must be one of {', '.join(SETS)} or a row of one, got {unknown or 'nothing'}")
    rows = [row for name in options.sets for row in (SETS.get(name) or [every[name]])]
    options.runs.mkdir(parents=True, exist_ok=True)
    failed = 0
    with ThreadPoolExecutor(max_workers=max(1, options.jobs)) as pool:
        done = pool.map(lambda row: run(row, options), rows) if options.jobs else (run_here(r, options) for r in rows)
        for recipe, status, seconds in done:
            print(f"{recipe}: exit {status} after {seconds:.0f} s", flush=True)
            failed += status != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

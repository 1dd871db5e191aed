"""Does a network learn equally well in bfloat16 with fast kernels and in float32 with the formulas?

    python benchmarks/precision_accuracy.py --data .data --out benchmarks/results/precision-accuracy-h200.json
    python benchmarks/precision_accuracy.py --digits --epochs 2 --out trial.json       # bundled digits, a small network
    python benchmarks/precision_accuracy.py --from-json benchmarks/results/precision-accuracy-h200.json

Trains CCNN_4,140 on sMNIST by its recipe, the schedule shortened to ``--epochs``, with each of ``--seeds``:

- ``fast``: bfloat16 autocast, convolutions on tensor cores, fused kernels for everything else,
- ``formula``: float32 with products of full precision, torch.fft, torch's own operations between.

Every run is a process of its own, since the environment chooses the way; ``--workers`` of them at a time. Accuracies of
every epoch, those on the test split, and the seconds that an epoch took, evaluation included, are saved as they come.
Times of runs that share a device with others are marked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

from _tables import describe, table

#: environment and settings of each way
WAYS: dict[str, tuple[dict[str, str], list[str]]] = {
    "fast": (
        {"KERNELFIELD_FAST": "1"},
        ["training.precision=bf16", "training.matmul=high"],
    ),
    "formula": ({"KERNELFIELD_FAST": "0"}, ["training.matmul=highest"]),
}


def job(way: str, seed: int, options: argparse.Namespace) -> None:
    """Train once, in this process, and write the result."""
    import torch  # noqa: PLC0415
    from _measure import machine  # noqa: PLC0415

    from kernelfield.experiments import find_recipe, fit  # noqa: PLC0415
    from kernelfield.experiments.fitting import make_fabric  # noqa: PLC0415
    from kernelfield.experiments.recipe import with_settings  # noqa: PLC0415

    fabric = make_fabric("cuda" if torch.cuda.is_available() else "cpu")
    settings = [*WAYS[way][1], f"training.epochs={options.epochs}", f"training.seed={seed}"]
    settings += [f"schedule.warmup={min(1, options.epochs - 1)}", f"training.batch={options.batch}"]
    recipe = with_settings(find_recipe("digits" if options.digits else "ch03-smnist-ccnn-4-140"), settings)
    with tempfile.TemporaryDirectory() as folder:
        run = fit(recipe, folder, folder=options.data, fabric=fabric, report=False)
        rows, result = run.read_rows("metrics.csv"), json.loads((Path(folder) / "result.json").read_text())
    ends = [0.0, *(float(row["seconds"]) for row in rows)]
    found = {
        "way": way,
        "seed": seed,
        "validation": [float(row["val_accuracy"]) for row in rows],
        "train_loss": [float(row["train_loss"]) for row in rows],
        "test": result["metrics"]["test"]["accuracy"],
        "epoch_seconds": [b - a for a, b in pairwise(ends)],
        "recipe": recipe.name,
        "settings": settings,
        "machine": machine(fabric.device, seed),
    }
    options.job_out.write_text(json.dumps(found))


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train every way with every seed; save the results after each."""
    found: list[dict[str, Any]] = []
    lock = Lock()

    def start(way: str, seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.json"
            command = [sys.executable, __file__, "--job", way, str(seed), "--job-out", str(path)]
            command += ["--epochs", str(options.epochs), "--batch", str(options.batch)]
            command += ["--digits"] if options.digits else ["--data", str(options.data)]
            done = subprocess.run(command, env=os.environ | WAYS[way][0], check=False)
            with lock:
                if path.exists():
                    found.append(json.loads(path.read_text()) | {"workers": options.workers})
                else:
                    found.append({"way": way, "seed": seed, "failed": done.returncode})
                found.sort(key=lambda row: (row["way"], row["seed"]))
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
                print(render(found), flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(lambda pair: start(*pair), [(way, seed) for seed in options.seeds for way in options.ways]))
    return found


def render(found: list[dict[str, Any]]) -> str:
    """Return the accuracies as a table, a row for each run and one for the mean of each way."""
    rows = []
    for way in WAYS:
        runs = [row for row in found if row["way"] == way and "failed" not in row]
        for row in runs:
            seconds = statistics.median(row["epoch_seconds"][1:] or row["epoch_seconds"])
            shared = "" if row["workers"] == 1 else " (shared)"
            accuracies = " ".join(f"{100 * a:.2f}" for a in row["validation"])
            rows.append([way, str(row["seed"]), accuracies, f"{100 * row['test']:.2f}", f"{seconds:.2f}{shared}"])
        if len(runs) > 1:
            mean = statistics.mean(row["test"] for row in runs)
            rows.append([way, "mean", "", f"{100 * mean:.2f}", ""])
    machines = [row["machine"] for row in found if "machine" in row]
    header = ("way", "seed", "validation, %, by epoch", "test, %", "seconds an epoch")
    return (f"{describe(machines[0])}.\n\n" if machines else "") + table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with MNIST's files")
    parser.add_argument("--digits", action="store_true", help="bundled digits and a small network instead")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--from-json", type=Path, help="show saved results instead of making new ones")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--job-out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        job(options.job[0], int(options.job[1]), options)
    elif options.from_json is not None:
        print(render(json.loads(options.from_json.read_text())))
    else:
        run(options)


if __name__ == "__main__":
    main()

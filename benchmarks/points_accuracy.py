"""Accuracy on point clouds after equally many epochs: gridified networks, a CCNN on points, and PointNet++.

    python benchmarks/points_accuracy.py --data .data                  # furniture, five splits, and chairs and monitors
    python benchmarks/points_accuracy.py --data .data --epochs 1 --splits 1 --networks gridified    # a trial
    python benchmarks/points_accuracy.py --data .data --sets furniture --workers 4
    python benchmarks/points_accuracy.py --data .data --epochs 10 --limit 120           # stops after two minutes
    python benchmarks/points_accuracy.py --data .data --networks gridified-6 --only 3   # one split of five

Every network is trained by its recipe (``ch04-furniture-gridified`` and so on; PointNet++ by the gridified network's,
with its own learning rate), all splits in a process of their own, several networks at a time on one device. Writes one
JSON with the mean over the splits for each network and data set to results/, from which scripts/results_page.py makes
a table. The file is written again after every split, so an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: recipes and changes to them
NETWORKS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "furniture": {
        "gridified": ("ch04-furniture-gridified", {}),
        "ccnn": ("ch04-furniture-ccnn-4-32", {}),
        "pointnet2": ("ch04-furniture-gridified", {"model": {"name": "pointnet2"}, "optimizer.lr": 0.001}),
        "gridified-6": ("ch04-furniture-gridified-6", {}),
        "pointnet2-256": ("ch04-furniture-gridified-6", {"model": {"name": "pointnet2"}, "optimizer.lr": 0.001}),
        "ccnn-voxels": ("ch03-furniture-voxels-ccnn-4-32", {}),
    },
    "chair_monitor": {
        "gridified": ("ch04-chair-monitor-gridified", {}),
        "ccnn": ("ch04-chair-monitor-ccnn-4-32", {}),
        "pointnet2": ("ch04-chair-monitor-gridified", {"model": {"name": "pointnet2"}, "optimizer.lr": 0.001}),
    },
}
#: changes to all recipes
EVERYWHERE = {"training.matmul": "high", "training.eval_batch": 64}
#: option that selects the split of a data set, and the number of splits
SPLITS = {"furniture": ("data.split", 5), "chair_monitor": ("data.seed", 2)}

#: seconds since 1970 that are never reached
FOREVER = 1e12


def splits_of(data: str, options: argparse.Namespace) -> range:
    return range(min(options.splits, SPLITS[data][1]))


def job(data: str, network: str, options: argparse.Namespace) -> None:
    """Train one network on all splits, in this process, and leave the results in the runs' folders."""
    import torch  # noqa: PLC0415
    from _pointnet2 import PARTS, PointNet2  # noqa: PLC0415

    from kernelfield.experiments import find_recipe, fit  # noqa: PLC0415
    from kernelfield.experiments.fitting import make_fabric  # noqa: PLC0415
    from kernelfield.experiments.recipe import recipe_from, with_settings  # noqa: PLC0415
    from kernelfield.models.registry import register  # noqa: PLC0415

    register("pointnet2", PointNet2, f"PointNet++, parts of {PARTS}")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.workers))
    fabric = make_fabric("cuda" if torch.cuda.is_available() else "cpu")
    name, changes = NETWORKS[data][network]
    mapping = find_recipe(name).to_dict() | {key: value for key, value in changes.items() if "." not in key}
    settings = {key: value for key, value in changes.items() if "." in key}
    settings |= EVERYWHERE
    if options.epochs is not None:
        settings["training.epochs"] = options.epochs
    changed = with_settings(recipe_from(mapping), settings)
    longest = 0.0
    for split in splits_of(data, options) if options.only is None else options.only:
        begin = time.time()
        if begin + longest > options.until:
            print(f"{data} {network}: no time for split {split}", flush=True)
            break
        recipe = with_settings(changed, [*options.set, f"{SPLITS[data][0]}={split}"])
        try:
            fit(recipe, folder_of(data, network, split, options), folder=str(options.data), fabric=fabric, report=False)
        except (RuntimeError, ValueError, OSError):  # the other splits may fare better
            traceback.print_exc()
        gc.collect()  # the graphs of a split hold the memory of their steps
        longest = max(longest, time.time() - begin)
        write(data, network, options)


def folder_of(data: str, network: str, split: int, options: argparse.Namespace) -> Path:
    return options.runs / f"points-{data}-{network}-{split}"


def start(data: str, network: str, options: argparse.Namespace) -> None:
    begin = time.time()
    command = [sys.executable, __file__, "--job", data, network, "--data", str(options.data)]
    command += ["--runs", str(options.runs), "--results", str(options.results), "--until", str(options.until)]
    command += ["--workers", str(options.workers), "--splits", str(options.splits)]
    command += [] if options.epochs is None else ["--epochs", str(options.epochs)]
    command += [] if options.only is None else ["--only", *map(str, options.only)]
    command += [] if not options.set else ["--set", *options.set]
    options.runs.mkdir(parents=True, exist_ok=True)
    says = options.runs / f"points-{data}-{network}.txt"
    left = options.until - begin
    with says.open("w") as log:
        try:
            done = subprocess.run(
                command, stdout=log, stderr=log, check=False, timeout=left if left < FOREVER else None
            ).returncode
        except subprocess.TimeoutExpired:
            done = -1
    how = {0: "", -1: ", stopped at the limit"}.get(done, ", failed")
    print(f"{data} {network}: {time.time() - begin:.0f} s{how}", flush=True)
    if done:
        print(says.read_text()[-2000:], flush=True)


def write(data: str, network: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Write the results of a network so far, if there are any, and return them."""
    result = collect(data, network, options)
    if result is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        draft = options.results / f".{result['recipe']}.json"
        draft.write_text(json.dumps(result, indent=2) + "\n")
        draft.replace(options.results / f"{result['recipe']}.json")
    return result


def collect(data: str, network: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the mean of a network's results over the splits, as ``kernelfield reproduce`` would write one."""
    files = [folder_of(data, network, i, options) / "result.json" for i in splits_of(data, options)]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    if not found:
        return None
    metrics = {
        test: {name: statistics.fmean(run["metrics"][test][name] for run in found) for name in values}
        for test, values in found[0]["metrics"].items()
    }
    every = [run["metrics"]["test"]["accuracy"] for run in found]
    spread = statistics.stdev(every) if len(every) > 1 else 0.0
    names = {"pointnet2": "PointNet++", "pointnet2-256": "PointNet++, 256 points"}
    found[0].pop("data_folder", None)
    result = {**found[0], "metrics": metrics, "seconds": round(statistics.fmean(run["seconds"] for run in found), 2)}
    notes = f"{options.workers} at a time on one device"
    notes = (
        f"mean of {len(found)} splits, standard deviation {100 * spread:.2f}; {notes}"
        if len(found) > 1
        else f"one split; {notes}"
    )
    if network in names:
        kind = data.replace("_", "-")
        result |= {"recipe": f"ch04-{kind}-{network}", "title": f"{found[0]['title'].split(',')[0]}, {names[network]}"}
        notes += "; benchmarks/points_accuracy.py"
    changes = {**EVERYWHERE, **{k: v for k, v in NETWORKS[data][network][1].items() if "." in k}}
    changes |= {} if options.epochs is None else {"training.epochs": options.epochs}
    settings = [*(f"{key}={value}" for key, value in changes.items()), *options.set]
    return result | {"notes": notes, "accuracies": every, "settings": settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(".data"), help="folder of the two files")
    parser.add_argument("--sets", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS["furniture"]], default=[*NETWORKS["furniture"]])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="+", help="train only these splits, numbers from 0")
    parser.add_argument("--epochs", type=int, help="instead of the recipes'")
    parser.add_argument("--workers", type=int, default=7, help="networks at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    parser.add_argument("--limit", type=float, help="seconds after which to stop with the results so far")
    parser.add_argument("--until", type=float, default=FOREVER, help=argparse.SUPPRESS)
    parser.add_argument("--set", nargs="*", default=[], help="further settings of all recipes, such as data.points=64")
    parser.add_argument("--job", nargs=2, metavar=("SET", "NETWORK"), help="train this one only, here")
    options = parser.parse_args()
    if options.job is not None:
        job(*options.job, options)
        return
    if options.limit is not None:
        options.until = time.time() + options.limit
    chosen = [(data, network) for data in options.sets for network in NETWORKS[data] if network in options.networks]
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(lambda one: start(*one, options), chosen))
    for data, network in chosen:
        result = write(data, network, options)
        if result is not None:
            accuracies = ", ".join(f"{100 * a:.1f}" for a in result["accuracies"])
            print(f"{result['recipe']}: {result['metrics']['test']['accuracy']:.2%} ({accuracies})")


if __name__ == "__main__":
    main()

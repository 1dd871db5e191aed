"""Chapter 4's reconstruction experiment: random clouds through a grid and back, by resolution and by channels.

    python benchmarks/reconstruction.py                              # the published sizes; one H200, about a minute
    python benchmarks/reconstruction.py --quick                      # few small clouds, to see that it runs
    python benchmarks/reconstruction.py --points 100 --train 200 --test 50 --batch 8 --epochs 12       # for a CPU
    python benchmarks/reconstruction.py --json benchmarks/results/reconstruction.json \
        --markdown docs/chapters/ch04-gridifier.md

A thousand clouds (800 to train, 200 to test) have 1,000 random points with a random value at each. The network maps
them to a grid and back, with nothing in between, and predicts the values. The published numbers are only in a figure,
which claims that errors fall with resolution and with channels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from _measure import machine
from _tables import describe, number, replace_section, table

from kernelfield.data import load
from kernelfield.experiments import find_recipe, fit
from kernelfield.experiments.fitting import make_fabric

GRIDS, CHANNELS = (3, 5, 7, 9), (8, 32, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--points", type=int, default=1_000, help="in a cloud")
    parser.add_argument("--train", type=int, default=800, help="clouds to train on")
    parser.add_argument("--test", type=int, default=200, help="clouds to test on")
    parser.add_argument("--batch", type=int, help="instead of the recipe's")
    parser.add_argument("--grids", type=int, nargs="+", default=GRIDS, help="nodes along an axis")
    parser.add_argument("--channels", type=int, nargs="+", default=CHANNELS)
    parser.add_argument("--json", type=Path, help="where to write the errors")
    parser.add_argument("--from-json", type=Path, help="show saved errors instead of training")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    report = json.loads(options.from_json.read_text()) if options.from_json else measured(options)
    head = ["nodes", *(f"{channels} channels" for channels in report["channels"])]
    rows = [
        [f"{grid}³", *(number(e) for e in row)] for grid, row in zip(report["grids"], report["errors"], strict=False)
    ]
    sizes = report["sizes"]
    published = sizes == {"points": 1_000, "train": 800, "test": 200}
    text = (
        f"{describe(report['machine'])}. {sizes['train']} clouds of {sizes['points']:,} points to train on, "
        f"{sizes['test']} to test{'' if published else ': smaller than the published sizes, 800 and 200 of 1,000'}. "
        f"Mean squared error on unseen clouds after {report['epochs']} epochs; predicting zero gives a third."
        f"\n\n{table(head, rows)}"
    )
    if options.markdown is not None:
        replace_section(options.markdown, "reconstruction", text)
    print("\n" + text)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    grids, channels = (GRIDS[:2], CHANNELS[:2]) if options.quick else (options.grids, options.channels)
    epochs = 1 if options.quick else options.epochs
    sizes = {"points": options.points, "train": options.train, "test": options.test}
    sizes = {"points": 60, "train": 32, "test": 16} if options.quick else sizes
    data = load("random_clouds", **sizes)
    fabric = make_fabric(options.device)
    report: dict[str, Any] = {"machine": machine(torch.device(options.device), 0), "sizes": sizes, "epochs": epochs}
    report |= {"batch": options.batch, "grids": grids, "channels": channels, "errors": []}
    for grid in grids:
        report["errors"].append([])
        for width in channels:
            settings = {"model.grid": grid, "model.channels": width, "training.epochs": epochs}
            settings |= {} if options.batch is None else {"training.batch": options.batch}
            with tempfile.TemporaryDirectory() as folder:
                recipe = find_recipe("ch04-reconstruction")
                run = fit(recipe, Path(folder) / "run", settings=settings, data=data, fabric=fabric, report=False)
                report["errors"][-1].append(run.result()["metrics"]["test"]["mse"])
            print(f"{grid}³ nodes, {width} channels: {report['errors'][-1][-1]:.4f}", flush=True)
            if options.json is not None:  # keep the results, whatever ends the rest
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


if __name__ == "__main__":
    main()

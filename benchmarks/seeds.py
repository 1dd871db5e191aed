"""How many training steps a second do several seeds take side by side, against one after the other?

    python benchmarks/seeds.py --out benchmarks/results/seeds-h200.json
    python benchmarks/seeds.py --only sCIFAR --counts 1 3 --steps 400
    python benchmarks/seeds.py --quick --out seeds.json     # tiny networks, to see that it runs

Data is synthetic and lies on the device; batches are drawn and the loss is read every 50 steps, as in any training. A
rate counts the steps of all seeds together, from the step at which every seed replays its CUDA graph to the first end.
Masks keep their sizes, because each new size is a new graph; ``graphs`` is the largest number of graphs of a seed.
``host`` is the median time that the host needs to enqueue a step. ``difference`` is the largest relative difference
between the losses of a seed side by side and alone; ``alone`` is that of a seed trained alone twice.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import describe, number, table

from kernelfield.experiments.datasets import synthetic_data
from kernelfield.experiments.fitting import make_fabric
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.run import make_network, make_task
from kernelfield.experiments.side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Generator

    from lightning.fabric import Fabric

    from kernelfield.data.base import Data
    from kernelfield.experiments.loop import Progress
    from kernelfield.experiments.recipe import Recipe

#: recipe and settings, by name; the published batch sizes
CASES: dict[str, tuple[str, list[str]]] = {
    "CCNN_4,140 sCIFAR-10, batch 50": (
        "ch03-scifar10-ccnn-4-140",
        ["training.precision=bf16", "training.matmul=high", "training.batch=50", "optimizer.mask_lr=0"],
    ),
    "p4-CNN rotated MNIST, batch 128": ("ch08-rotmnist-p4cnn", ["training.matmul=high", "training.batch=128"]),
}
TINY = ["model.channels=4", "model.blocks=1", "model.hidden=8", "training.batch=4"]
QUICK = {"CCNN_1,4 digits, batch 4": ("digits", TINY)}
#: steps before a rate is measured: two eager ones, the capture, and some replays
WARM = 10
#: steps between two readings of the loss
LOG = 50


class Recorder:
    """When each training took its steps, how long the host needed for them, and the losses."""

    def __init__(self, count: int) -> None:
        self.times: list[list[float]] = [[] for _ in range(count)]
        self.host: list[float] = []
        self.losses: list[list[float]] = [[] for _ in range(count)]
        #: number of CUDA graphs of each training
        self.graphs = [0] * count

    def steps(self, index: int, recipe: Recipe, data: Data, fabric: Fabric) -> Generator[None, None, None]:
        """Train, and record every step."""

        def read(now: Progress) -> None:
            if not math.isnan(now.loss):  # reports between two readings of the loss have none
                self.losses[index].append(now.loss)

        task = make_task(recipe, make_network(recipe))
        loop = Loop(task, data.train, None, recipe.training, fabric=fabric, on_progress=read)
        steps = loop.steps()
        while True:
            begun, before = time.perf_counter(), loop.state.step
            if next(steps, "end") == "end":
                self.graphs[index] = 0 if loop.captured is None else loop.captured.graphs
                return
            now = time.perf_counter()
            if loop.state.step > before:  # not a batch of the evaluation at the end of the epoch
                self.times[index].append(now)
                self.host.append(now - begun)
            yield

    def rate(self) -> float:
        """Return the steps per second of all trainings, while all of them replay graphs."""
        begin = max(times[WARM] for times in self.times)
        end = min(times[-1] for times in self.times)
        return sum(begin < t <= end for times in self.times for t in times) / (end - begin)


def run(case: tuple[str, list[str]], seeds: list[int], steps: int, data: Data, fabric: Fabric) -> Recorder:
    """Train the given seeds side by side for a number of steps."""
    name, settings = case
    recorder = Recorder(len(seeds))
    fixed = ["training.epochs=1", f"training.log_every={LOG}"]
    recipes = [with_settings(find_recipe(name), [*settings, *fixed, f"training.seed={seed}"]) for seed in seeds]
    trainings = [
        lambda index=index, recipe=recipe: recorder.steps(index, recipe, data, fabric)
        for index, recipe in enumerate(recipes)
    ]
    for outcome in side_by_side(trainings, fabric.device):
        outcome.get()
    gc.collect()
    if fabric.device.type == "cuda":
        torch.cuda.empty_cache()
    assert all(len(times) == steps for times in recorder.times)
    return recorder


def difference(first: list[float], second: list[float]) -> float:
    """Return the largest relative difference between two curves of losses."""
    return max(abs(a - b) / abs(a) for a, b in zip(first, second, strict=True))


def measure(name: str, case: tuple[str, list[str]], options: argparse.Namespace, fabric: Fabric) -> dict[str, Any]:
    """Measure one case and print a line for each number of seeds."""
    recipe = with_settings(find_recipe(case[0]), case[1])
    synthetic = synthetic_data(recipe.shape, samples=options.steps * recipe.training.batch)
    on_device = synthetic.train.to(fabric.device)
    data = replace(synthetic, train=on_device)
    begun = time.perf_counter()
    warm = run(case, [0], options.steps, data, fabric)  # compiles
    found: dict[str, Any] = {"first_seconds": round(time.perf_counter() - begun, 2), "rows": {}}
    known = {0: run(case, [0], options.steps, data, fabric)}
    found["alone_twice"] = difference(known[0].losses[0], warm.losses[0])
    print(f"{name}: first run {found['first_seconds']} s, alone twice {found['alone_twice']:.1e}", flush=True)
    for count in options.counts:
        seeds = list(range(count))
        begun = time.perf_counter()
        both = known[0] if count == 1 else run(case, seeds, options.steps, data, fabric)
        seconds = time.perf_counter() - begun
        for seed in seeds[: options.compare]:
            known[seed] = known.get(seed) or run(case, [seed], options.steps, data, fabric)
        compared = [s for s in seeds if s in known]
        row = {
            "steps_per_second": round(both.rate(), 1),
            "host_ms": round(1e3 * statistics.median(both.host), 3),
            "difference": max(difference(known[s].losses[0], both.losses[s]) for s in compared),
            "seconds": round(seconds, 2),
            "graphs": max(both.graphs),
        }
        if fabric.device.type == "cuda":
            row["peak_mib"] = torch.cuda.max_memory_allocated(fabric.device) >> 20
        found["rows"][count] = row
        print(f"  {count} seeds: {row}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 2, 3, 4, 6], help="numbers of seeds")
    parser.add_argument("--steps", type=int, default=400, help="steps of each seed")
    parser.add_argument("--compare", type=int, default=2, help="seeds that are trained alone, to compare losses")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = {name: case for name, case in (QUICK if options.quick else CASES).items() if options.only in name}
    fabric = make_fabric(options.accelerator)
    report: dict[str, Any] = {"machine": machine(fabric.device, 0), "steps": options.steps, "cases": {}}
    for name, case in cases.items():
        report["cases"][name] = measure(name, case, options, fabric)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    header = ("training", "seeds", "steps/s", "× one after the other", "ms/step", "host ms", "difference")
    rows = []
    for name, found in report["cases"].items():
        single = found["rows"].get(1, {}).get("steps_per_second")
        for count, row in found["rows"].items():
            rate = row["steps_per_second"]
            gain = "–" if single is None else f"{rate / single:.2f}"
            cells = (number(rate), gain, number(1e3 / rate), number(row["host_ms"]), f"{row['difference']:.1e}")
            rows.append([name, str(count), *cells])
    print(f"\n{describe(report['machine'])}.\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()

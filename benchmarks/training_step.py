"""How long does a training step take, and an epoch of it, data loading included?

    python benchmarks/training_step.py [--accelerator cuda] [--seconds 5] [--out benchmarks/results/training_step.json]
    python benchmarks/training_step.py --only scifar --set training.precision=bf16 --profile profiles/

``--profile`` also writes the longest kernels of a step of each row.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kernelfield.experiments.bench import bench_step, synthetic_loop
from kernelfield.experiments.fitting import make_fabric

if TYPE_CHECKING:
    from lightning.fabric import Fabric

#: recipe, samples in its training split, what to change
CASES = (
    ("ch03-smnist-ccnn-4-140", 60_000, []),
    ("ch03-smnist-ccnn-4-140", 60_000, ["training.precision=bf16"]),
    ("ch03-smnist-ccnn-4-140", 60_000, ["training.compile=true"]),
    ("ch02-smnist-ckcnn-2-30", 60_000, []),
    ("ch05-smnist-flextcn-2", 60_000, []),
    ("ch03-scifar10-ccnn-4-140", 50_000, []),
    ("ch03-cifar10-ccnn-4-140", 50_000, []),
    ("ch05-cifar10-flexnet-16", 50_000, []),
)
#: profiled steps, and steps before them: eager ones, the capture and some replays
PROFILED, WARM = 5, 10


def write_profile(path: Path, name: str, settings: list[str], fabric: Fabric) -> None:
    """Write the kernels of a training step, the longest first, with their times and launches."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    steps, loop = synthetic_loop(name, settings, fabric)
    on_gpu = fabric.device.type == "cuda"
    for _ in range(WARM):
        next(steps)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(PROFILED):
            next(steps)
        if on_gpu:
            torch.cuda.synchronize(fabric.device)
    found = [
        (e.self_device_time_total if on_gpu else e.self_cpu_time_total, e.count, e.key) for e in seen.key_averages()
    ]
    lines = [
        f"{time / PROFILED:>10.1f} {count / PROFILED:>7.1f} {key[:150]}" for time, count, key in sorted(found)[::-1]
    ]
    total, launches = sum(time for time, _, _ in found), sum(count for _, count, _ in found)
    how = "" if loop.captured is None else f", {loop.captured.summary}"
    head = f"{name} {' '.join(settings)}{how}\nmicroseconds, launches, kernel\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}{total / PROFILED:>10.1f} {launches / PROFILED:>7.1f} all\n" + "\n".join(lines[:70]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="part of a recipe's name")
    parser.add_argument("--recipes", nargs="*", default=[], help="recipes to measure instead of the usual ones")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of all rows")
    parser.add_argument("--profile", type=Path, help="folder of the profiles")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    fabric = make_fabric(arguments.accelerator)
    found = []
    print(f"{'recipe':<28} {'changed':<26} {'batch':>5} {'ms/step':>8} {'samples/s':>10} {'s/epoch':>8}")
    for name, samples, changes in [(name, 0, []) for name in arguments.recipes] or CASES:
        if arguments.only not in name:
            continue
        settings = [*changes, *arguments.set]
        row = bench_step(name, seconds=arguments.seconds, samples=samples, settings=settings, fabric=fabric)
        found.append(row)
        changed = " ".join(settings) or "-"
        print(
            f"{name:<28} {changed:<26} {row['batch']:>5} {row['milliseconds']:>8.2f} "
            f"{row['samples_per_second']:>10,.0f} {row.get('epoch_seconds', float('nan')):>8.2f}",
            flush=True,
        )
        if arguments.profile is not None:
            write_profile(arguments.profile / f"{name}-{len(found)}.txt", name, settings, fabric)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How long does a training step take, and an epoch of it, data loading included?

python benchmarks/training_step.py [--accelerator cuda] [--seconds 5] [--out benchmarks/results/training_step.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kernelfield.experiments.bench import bench_step
from kernelfield.experiments.fitting import make_fabric

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="part of a recipe's name")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    fabric = make_fabric(arguments.accelerator)
    found = []
    print(f"{'recipe':<28} {'changed':<26} {'batch':>5} {'ms/step':>8} {'samples/s':>10} {'s/epoch':>8}")
    for name, samples, settings in CASES:
        if arguments.only not in name:
            continue
        row = bench_step(name, seconds=arguments.seconds, samples=samples, settings=settings, fabric=fabric)
        found.append(row)
        changed = " ".join(settings) or "-"
        print(
            f"{name:<28} {changed:<26} {row['batch']:>5} {row['milliseconds']:>8.2f} "
            f"{row['samples_per_second']:>10,.0f} {row['epoch_seconds']:>8.2f}",
            flush=True,
        )
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

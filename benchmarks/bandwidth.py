"""Which frequencies should a CCNN's kernels begin with: on the training grid, and at other resolutions?

    python benchmarks/bandwidth.py --tasks digits --seeds 3
    python benchmarks/bandwidth.py --cifar .data/cifar10 --mnist .data/mnist --out benchmarks/results/bandwidth-cpu.json
    python benchmarks/bandwidth.py --large --device cuda --cifar .data/cifar10 --mnist .data/mnist --out result.json

Trains small CCNNs with chapter 3's starting values and differently drawn sines:

- ``published``: the published frequency scale ω₀, times the envelope's γ, far above the grid's Nyquist frequency,
- ``nyquist``: every filter's sines uniform up to the Nyquist frequency, all of phase 0 at offset 0,
- ``half``: up to half of it, so that products of filters stay inside,
- ``sum``: up to a fifth of it: the sum of the filters of a typical unit is 0.4 of the Nyquist frequency,
- ``default``: what ``omega_0=None`` gives: up to half of it, with chapter 3's phases.

Each network is tested at the training step, at half of it (twice the resolution) and at twice that step. Images of
other resolutions are area averages of the originals; sequences are resampled in the frequency domain.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import save, table
from torch.nn import functional as F

from kernelfield import CCNN
from kernelfield.data.sets.images.cifar import read_batch
from kernelfield.data.sets.images.digits import digit_images
from kernelfield.data.sets.images.mnist import read_idx
from kernelfield.fields import FilterNetwork
from kernelfield.ops import resample

if TYPE_CHECKING:
    from torch import Tensor

#: published ω₀ of CCNN_4,140 on each task
PUBLISHED = {"smnist": 2976.49, "pmnist": 2985.63, "scifar10": 2386.49, "cifar10": 4231.57, "digits": 1435.77}
#: highest frequency of a sine in units of the Nyquist frequency
SHARES = {"nyquist": 1.0, "half": 0.5, "sum": 0.2}
RULES = ("published", *SHARES, "default")
STEPS = (1.0, 0.5, 2.0)


def read_images(task: str, options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, then test images and labels, at the largest resolution."""
    if task == "digits":
        return digit_images(16)
    if task.endswith("cifar10"):
        folder = options.cifar / "cifar-10-batches-py"
        train = [read_batch(folder / f"data_batch_{i}", "labels", 10) for i in range(1, 6)]
        x, y = (torch.cat(parts) for parts in zip(*train, strict=True))
        x_test, y_test = read_batch(folder / "test_batch", "labels", 10)
    else:
        raw = options.mnist / "MNIST" / "raw"
        x, x_test = (read_idx(raw / f"{part}-images-idx3-ubyte", 3).unsqueeze(1) for part in ("train", "t10k"))
        y, y_test = (read_idx(raw / f"{part}-labels-idx1-ubyte", 1) for part in ("train", "t10k"))
    scale = [t.float() / 255 for t in (x[: options.images], x_test[: options.test_images])]
    mean, std = scale[0].mean(dim=(0, 2, 3), keepdim=True), scale[0].std(dim=(0, 2, 3), keepdim=True)
    x, x_test = ((t - mean) / std for t in scale)
    return x, y[: options.images].long(), x_test, y_test[: options.test_images].long()


def signals(images: Tensor, task: str, step: float, shrink: int) -> Tensor:
    """Return the network's inputs for ``images`` at a step, in units of the training step."""
    if task in ("cifar10", "digits"):
        return F.avg_pool2d(images, round(shrink * step)) if shrink * step > 1 else images
    lines = (F.avg_pool2d(images, shrink) if shrink > 1 else images).flatten(2)
    if task == "pmnist":
        lines = lines[..., torch.randperm(lines.shape[-1], generator=torch.Generator().manual_seed(0))]
    return lines if step == 1 else resample(lines, round(lines.shape[-1] / step))


def build(task: str, rule: str, size: int, in_channels: int, options: argparse.Namespace) -> CCNN:
    """Return a CCNN with the sines of ``rule``."""
    dim = 2 if task in ("cifar10", "digits") else 1
    sigma = 0.375 if dim == 2 else 0.0375  # as published for CIFAR-10 and for sequences
    net = CCNN(
        in_channels,
        10,
        dim=dim,
        size=size,
        channels=options.channels,
        blocks=options.blocks,
        sigma=sigma,
        omega_0=PUBLISHED[task] if rule == "published" else None,
    )
    for field in net.modules():
        if rule in SHARES and isinstance(field, FilterNetwork):
            bound = SHARES[rule] * math.pi * size
            torch.nn.init.uniform_(field.frequency, -bound, bound)
            torch.nn.init.zeros_(field.phase)
    return net


def train(net: CCNN, x: Tensor, y: Tensor, options: argparse.Namespace) -> None:
    """Train by Adam with a warm-up and a cosine; masks at half the rate, as their widths are half of the authors'."""
    masks = [p for name, p in net.named_parameters() if ".mask." in name]
    others = [p for name, p in net.named_parameters() if ".mask." not in name]
    rates = [{"params": others, "lr": options.rate}, {"params": masks, "lr": options.rate / 2}]
    optimizer = torch.optim.Adam(rates)
    steps = options.epochs * (len(x) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in rates], total_steps=steps, pct_start=0.15, cycle_momentum=False
    )
    for _ in range(options.epochs):
        for index in torch.randperm(len(x), device=x.device).split(options.batch):
            if len(index) < options.batch:
                continue
            optimizer.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(net: CCNN, x: Tensor, y: Tensor, step: float) -> float:
    """Return the share of correct predictions, in percent."""
    right = [
        (net(part, step=step).argmax(1) == truth).sum() for part, truth in zip(x.split(250), y.split(250), strict=True)
    ]
    return 100 * float(sum(right)) / len(y)


def run(task: str, rules: list[str], options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Train every rule with every seed on one task, and save the results after each."""
    x, y, x_test, y_test = (t.to(options.device) for t in read_images(task, options))
    # Half of the resolution, so that there is a finer one to test at; sequences can be resampled at any.
    shrink = 1 if options.large and task not in ("cifar10", "digits") else 2
    inputs = signals(x, task, 1.0, shrink)
    tests = {step: signals(x_test, task, step, shrink) for step in STEPS}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for rule in rules:
            torch.manual_seed(seed)
            net = build(task, rule, inputs.shape[-1], inputs.shape[1], options).to(options.device)
            started = time.perf_counter()
            train(net, inputs, y, options)
            seconds = time.perf_counter() - started
            net.eval()
            found = {step: accuracy(net, tests[step], y_test, step) for step in STEPS}
            report["runs"].append({"task": task, "rule": rule, "seed": seed, "seconds": seconds, "accuracy": found})
            print(task, rule, seed, {k: round(v, 1) for k, v in found.items()}, f"{seconds:.0f} s", flush=True)
            save(report, options.out)


def summary(report: dict[str, Any]) -> str:
    """Return the mean accuracies as a table."""
    rows = []
    for task in dict.fromkeys(r["task"] for r in report["runs"]):
        for rule in dict.fromkeys(r["rule"] for r in report["runs"]):
            runs = [r for r in report["runs"] if (r["task"], r["rule"]) == (task, rule)]
            if not runs:
                continue
            found = [{float(step): value for step, value in r["accuracy"].items()} for r in runs]
            means = [statistics.mean(f[step] for f in found) for step in STEPS]
            rows.append([f"{task}, {rule}", str(len(runs)), *(f"{m:.1f}" for m in means)])
    return table(["task, sines", "seeds", *(f"step {s:g}" for s in STEPS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["digits"], choices=list(PUBLISHED))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cifar", type=Path, default=Path(".data/cifar10"))
    parser.add_argument("--mnist", type=Path, default=Path(".data/mnist"))
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--channels", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--large", action="store_true", help="CCNN_4,140 on all images, sequences of full length")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from-json", type=Path, help="print the table of an earlier run")
    options = parser.parse_args()
    if options.from_json:
        print(summary(json.loads(options.from_json.read_text())))
        return
    if options.large:
        options.channels, options.blocks, options.images, options.test_images = 140, 4, 50_000, 10_000
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    report: dict[str, Any] = {"machine": machine(torch.device(options.device), 0), "settings": settings, "runs": []}
    for task in options.tasks:
        run(task, options.rules, options, report)
    print(summary(report))


if __name__ == "__main__":
    main()

"""How many damped oscillations do trained kernels need, and what does it cost in accuracy?

    python benchmarks/distillation.py --fsdd fsdd_8k.npz --out benchmarks/results/distillation-cpu.json
    python benchmarks/distillation.py --smnist RUN --mnist FOLDER --out benchmarks/results/distillation-cpu.json

Distils two trained causal networks (``kf.distil``) at several tolerances, and reports for each layer the order, the
relative error of its kernels and the time, and for the network the accuracy on test samples before and after:

- sMNIST: the trained network of a run of the recipe ch05-smnist-flextcn-2 (FlexTCN-2: 2,730 kernels of MAGNets under
  Gaussian masks). RUN is its folder; of it only ``checkpoints`` is read.
- spoken digits: CCNNs of two blocks, trained here on spectrograms of the Free Spoken Digit Dataset (400 frames of 16
  bands), in the published split. Kernels that begin smooth stay so; those of SIRENs use all frequencies, and have no
  short recurrence.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _measure import machine
from _tables import save, table
from torch import Tensor, nn
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.data.sets.audio.fsdd import fsdd
from kernelfield.experiments import find_recipe
from kernelfield.experiments.checkpoint import latest_checkpoint, load_network, read_checkpoint
from kernelfield.experiments.datasets import recipe_data
from kernelfield.experiments.run import make_network

RECIPE = "ch05-smnist-flextcn-2"
#: samples of a clip at 8 kHz, of a window of the spectrogram, and between windows; bands of frequencies
CLIP, WINDOW, HOP, BANDS = 4_000, 128, 10, 16
#: kernels of the networks on spoken digits: MAGNets that begin smooth, as in chapter 5, and SIRENs as in chapter 2
FIELDS: dict[str, dict[str, Any]] = {
    "spoken digits": {"start": "flexconv", "omega_0": 1.0, "sigma": 0.4},
    "spoken digits, SIREN": {"field": kf.fields.SIREN, "sigma": None},
}
Batches = list[tuple[Tensor, Tensor]]


def trained_on_digits(run: Path, folder: str, samples: int) -> tuple[nn.Module, Batches]:
    """Return the network of a run on sequential MNIST, and test digits."""
    recipe = find_recipe(RECIPE)
    network = make_network(recipe)
    path = latest_checkpoint(run / "checkpoints", "best")
    if path is None:
        raise FileNotFoundError(f"--smnist must be a run with a best checkpoint, got {run}")
    load_network(network, read_checkpoint(path)[0], path)
    batch = recipe_data(recipe, folder=folder).test.batch(slice(0, samples))
    assert batch.target is not None
    return network.eval(), list(zip(batch.inputs.split(100), batch.target.split(100), strict=True))


def trained_on_speech(archive: str, epochs: int, seed: int, field: dict[str, Any]) -> tuple[nn.Module, Batches]:
    """Train a small causal network on spectrograms of spoken digits; return it, and the test clips."""
    data = fsdd(archive, length=CLIP, validation_share=0.0)

    def clips(split: Any) -> tuple[Tensor, Tensor]:
        batch = split.batch(slice(None))
        sound = F.pad(batch.inputs[:, 0] * batch.mask, (WINDOW - HOP, 0))  # a frame ends with its own samples
        window = torch.hann_window(WINDOW)
        power = torch.stft(sound, WINDOW, HOP, window=window, center=False, return_complex=True).abs()[:, 1:]
        return F.avg_pool1d(power.mT, WINDOW // 2 // BANDS).mT.add(0.1).log(), batch.target

    torch.manual_seed(seed)
    (x, target), test = clips(data.train), clips(data.test)
    network = kf.CCNN(BANDS, 10, size=CLIP // HOP, channels=24, blocks=2, dropout=0.1, **field)
    optimizer = torch.optim.AdamW(network.train().parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * -(-len(x) // 50))
    for epoch in range(epochs):
        losses = []
        for chosen in torch.randperm(len(x)).split(50):
            shifted = x[chosen].roll(int(torch.randint(-20, 20, ())), dims=-1)
            loss = F.cross_entropy(network(shifted), target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"spoken digits, epoch {epoch + 1} of {epochs}: loss {sum(losses) / len(losses):.3f}", flush=True)
    return network.eval(), list(zip(test[0].split(100), test[1].split(100), strict=True))


def distilled(title: str, network: nn.Module, data: Batches, tolerances: list[float]) -> dict[str, Any]:
    """Distil a network at each tolerance; return the reports."""
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in network.parameters()), "tolerances": {}}
    found["samples"] = sum(len(classes) for _, classes in data)
    for tolerance in tolerances:
        begin = time.process_time()
        result = kf.distil(network, tolerance=tolerance)
        seconds = time.process_time() - begin
        # Already distilled: this only measures the accuracy of both.
        measured = kf.distil(network, state=result.network.state_dict(), data=data)
        assert measured.accuracy is not None
        print(
            f"\n{title}, tolerance {tolerance:g}, {seconds:.0f} s\n{result}\naccuracy {measured.accuracy}", flush=True
        )
        found["tolerances"][f"{tolerance:g}"] = {
            "layers": [asdict(row) for row in result.layers],
            "accuracy_before": measured.accuracy[0],
            "accuracy_after": measured.accuracy[1],
            "points_changed": measured.change,
            "seconds": seconds,
        }
    return found


def shown(results: dict[str, Any]) -> str:
    """Return a table with a row per network and tolerance."""
    rows = []
    for title, found in results.items():
        for tolerance, one in found["tolerances"].items():
            fitted = [row for row in one["layers"] if not row["reason"]]
            orders = [row["order"] for row in fitted]
            kernels = sum(row["kernels"] for row in fitted)
            mean = sum(row["mean_order"] * row["kernels"] for row in fitted) / max(1, kernels)
            worst = max((row["worst"] for row in fitted), default=0.0)
            layers = f"{len(fitted)} of {len(one['layers'])}"
            accuracy = f"{100 * one['accuracy_before']:.2f} → {100 * one['accuracy_after']:.2f}"
            cells = [layers, str(max(orders, default=0)), f"{mean:.1f}", f"{worst:.1e}", accuracy]
            rows.append([f"{title}, {tolerance}", *cells, f"{one['seconds']:.0f} s"])
    header = ["network, tolerance", "layers", "order", "mean order", "worst error", "accuracy %", "time"]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smnist", type=Path, help="folder of a run of ch05-smnist-flextcn-2")
    parser.add_argument("--mnist", default=".data/mnist", help="folder of MNIST")
    parser.add_argument("--fsdd", help="archive or folder of the Free Spoken Digit Dataset")
    parser.add_argument("--samples", type=int, default=10_000, help="test digits of MNIST")
    parser.add_argument("--epochs", type=int, default=5, help="of training on spoken digits")
    parser.add_argument("--tolerances", type=float, nargs="+", default=[1e-2, 1e-3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.out and options.out.exists():  # networks that are not measured now stay as they are
        results = json.loads(options.out.read_text())["networks"]
    if options.fsdd:
        for title, field in FIELDS.items():
            network, data = trained_on_speech(options.fsdd, options.epochs, options.seed, field)
            results[title] = distilled(title, network, data, options.tolerances)
    if options.smnist:
        network, data = trained_on_digits(options.smnist, options.mnist, options.samples)
        results["sMNIST"] = distilled("sMNIST", network, data, options.tolerances)
    print("\n" + shown(results))
    if options.out:
        save({"machine": machine(torch.device("cpu"), options.seed), "networks": results}, options.out)


if __name__ == "__main__":
    main()

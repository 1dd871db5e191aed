"""Chapter 5's bandwidth experiment: MAGNets, SIRENs and N-Jets fitted to Gabor filters, noise and a small kernel.

    python benchmarks/field_bandwidth.py                    # five minutes on one core
    python benchmarks/field_bandwidth.py --quick            # one frequency, few steps
    python benchmarks/field_bandwidth.py --json benchmarks/results/field-bandwidth-cpu.json \
        --markdown docs/chapters/ch05-flexconv.md --figure docs/images/ch05_bandwidth.png

Targets: Gabor filters of angular frequency 1, 4, 16 and 64 per unit on 65×65 points of [-1, 1]², noise on 33×33 points,
and an 11×11 kernel. AlexNet's weights do not come with the library; the 11×11 kernel is an independent component of
patches of a photograph, which looks like those of AlexNet's first layer (``--kernel FILE.npy`` takes another).

An N-Jet is linear in its coefficients. They are solved for exactly at 60 scales, and the best scale counts: no training
could do better. The others are trained by Adam.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _measure import machine
from _tables import describe, replace_section, save, table

from kernelfield.fields import SIREN, MAGNet, NJet, fit_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: angular frequencies, powers of two as published
FREQUENCIES = (1.0, 4.0, 16.0, 64.0)
#: what is trained, and its learning rate
TRAINED: dict[str, tuple[Callable[..., Any], float]] = {
    "MAGNet": (partial(MAGNet, hidden=32, omega_0=2.0, start="flexconv"), 0.01),
    "MAGNet-S": (partial(MAGNet, hidden=2, omega_0=2.0, start="flexconv"), 0.01),
    "SIREN": (partial(SIREN, hidden=32, omega_0=30.0), 0.001),
}
ORDERS = (3, 5, 9)


def positions(count: int) -> Tensor:
    """Return (count², 2) positions on [-1, 1]²."""
    axis = torch.linspace(-1, 1, count)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(-1, 2)


def gabor(omega: float, count: int = 65, sigma: float = 0.33) -> Tensor:
    """Return a Gabor filter of an angular frequency, along a diagonal, on count × count points."""
    x = positions(count)
    wave = torch.cos(omega * (x[:, 0] + x[:, 1]) / math.sqrt(2))
    return (wave * torch.exp(-0.5 * x.square().sum(dim=1) / sigma**2)).view(count, count)


def small_kernel(path: Path | None) -> Tensor:
    """Return an 11×11 kernel: from a file, or an independent component of patches of a photograph."""
    if path is not None:
        kernel = np.load(path, allow_pickle=False)
    else:
        from sklearn.datasets import load_sample_image  # noqa: PLC0415
        from sklearn.decomposition import FastICA  # noqa: PLC0415

        photograph = load_sample_image("china.jpg").mean(axis=2)
        corners = np.random.default_rng(0).integers(0, np.array(photograph.shape) - 11, (4000, 2))
        patches = np.stack([photograph[i : i + 11, j : j + 11].ravel() for i, j in corners])
        parts = FastICA(25, random_state=0, whiten="unit-variance", max_iter=400, tol=1e-3)
        parts.fit(patches - patches.mean(axis=1, keepdims=True))
        filters = parts.mixing_.T
        # The component whose energy is spread the most evenly: a wave rather than a dot.
        kernel = filters[np.argmin((filters**4).sum(axis=1) / (filters**2).sum(axis=1) ** 2)].reshape(11, 11)
    if kernel.shape != (11, 11):
        raise ValueError(f"kernel must be 11 by 11 numbers, got {kernel.shape}")
    return torch.tensor(kernel / np.abs(kernel).max(), dtype=torch.float32)


def best_njet(order: int, target: Tensor, scales: int = 60) -> tuple[float, int, Tensor]:
    """Return the least error of an N-Jet over its scales, its number of parameters, and the fit."""
    count = len(target)
    x, y = positions(count).double(), target.double().view(-1, 1)
    best = (math.inf, 0, target)
    for sigma in torch.logspace(math.log10(0.7), math.log10(count), scales).tolist():
        field = NJet(2, 1, order=order, sigma=sigma, spacing=2 / (count - 1)).double()
        features = field.features(x).detach()
        features = features / features.norm(dim=0)
        fit = features @ torch.linalg.lstsq(features, y, driver="gelsd").solution
        error = float((fit - y).square().mean())
        if error < best[0]:
            best = error, sum(p.numel() for p in field.parameters()), fit.view(count, count).float()
    return best


def trained(name: str, target: Tensor, steps: int) -> tuple[float, int, Tensor]:
    """Return the error after training, the number of parameters, and the fit."""
    torch.manual_seed(0)
    make, lr = TRAINED[name]
    field, x = make(2, 1), positions(len(target))
    fit_field(field, x, target.view(-1, 1), steps=steps, lr=lr)
    fit_field(field, x, target.view(-1, 1), steps=max(1, steps // 4), lr=lr / 10)
    with torch.no_grad():
        fit = field(x).view(target.shape)
    return float((fit - target).square().mean()), sum(p.numel() for p in field.parameters()), fit


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    frequencies = FREQUENCIES[-1:] if options.quick else FREQUENCIES
    targets = {f"Gabor ω {omega:g}": gabor(omega) for omega in frequencies}
    if not options.quick:
        targets["noise"] = torch.rand(33, 33, generator=torch.Generator().manual_seed(0)) * 2 - 1
        targets["11×11 kernel"] = small_kernel(options.kernel)
    steps = 100 if options.quick else options.steps
    errors: dict[str, dict[str, float]] = {}
    sizes: dict[str, int] = {}
    fits: dict[str, dict[str, Tensor]] = {"target": targets}
    for field in (*TRAINED, *(f"N-Jet {order}" for order in ORDERS)):
        errors[field], fits[field] = {}, {}
        for what, target in targets.items():
            if field in TRAINED:
                found = trained(field, target, steps)
            else:
                found = best_njet(int(field.removeprefix("N-Jet ")), target)
            errors[field][what], sizes[field], fits[field][what] = found
            print(f"{field:10} {what:14} {found[0]:.2e}", flush=True)
    power = {what: float(target.square().mean()) for what, target in targets.items()}
    report = {"machine": machine(torch.device("cpu"), 0), "steps": steps, "errors": errors, "sizes": sizes}
    return {**report, "power": power}, fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=2_000, help="of Adam; a quarter more at a tenth of the rate")
    parser.add_argument("--kernel", type=Path, help="an 11×11 array of numbers in a file .npy")
    parser.add_argument("--json", type=Path, help="where to write the errors")
    parser.add_argument("--from-json", type=Path, help="show saved errors instead of fitting")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    parser.add_argument("--figure", type=Path, help="where to save the figure")
    options = parser.parse_args()
    fits: dict[str, dict[str, Tensor]] = {}
    if options.from_json:
        report = json.loads(options.from_json.read_text())
    else:
        report, fits = measured(options)
        save(report, options.json)
    targets = list(report["power"])
    rows = [
        [field, f"{report['sizes'][field]:,}", *(f"{report['errors'][field][what]:.1e}" for what in targets)]
        for field in report["errors"]
    ]
    rows.append(["zero", "0", *(f"{report['power'][what]:.1e}" for what in targets)])
    text = (
        f"{describe(report['machine'])}. Mean squared errors; {report['steps']:,} steps of Adam for networks, the "
        f"exact best coefficients and scale for N-Jets.\n\n{table(['field', 'parameters', *targets], rows)}"
    )
    if options.markdown is not None:
        replace_section(options.markdown, "field bandwidth", text)
    if options.figure is not None:
        from kernelfield.viz.fits import plot_bandwidth  # noqa: PLC0415

        by_frequency = {
            field: {
                float(what.removeprefix("Gabor ω ")) / (2 * math.pi): error
                for what, error in values.items()
                if what.startswith("Gabor")
            }
            for field, values in report["errors"].items()
        }
        plot_bandwidth(by_frequency, options.figure, kernels=fits)
    print("\n" + text)


if __name__ == "__main__":
    main()

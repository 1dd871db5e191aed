"""Make the pictures of the README and the documentation that no example or benchmark draws.

python scripts/pictures.py            # all of them, into docs/images/
python scripts/pictures.py idea       # one
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure

from kernelfield import CKConv
from kernelfield.data.sets.images.digits import digit_sequences
from kernelfield.experiments import find_recipe, fit
from kernelfield.fields import MLP, SIREN, Field
from kernelfield.streaming.exponentials import Oscillations, fit_kernels

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def idea() -> Figure:
    """One network, trained on digits read as sequences of 256, tested at other sampling steps."""
    with tempfile.TemporaryDirectory() as folder:
        net = fit(find_recipe("digits"), Path(folder) / "digits").network().eval()
    figure = Figure(figsize=(11, 3.1), layout="constrained")
    field, kernel, result = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    layer = net.blocks[0].conv.depthwise
    with torch.no_grad():
        fine = layer.kernel(1 / 16, measured=False)[3, 0]
    draw_samples(field, fine, step=1, title="a kernel is a field …")
    draw_samples(kernel, fine, step=4, title="… sampled where the data lives")
    draw_accuracy(result, net)
    return figure


def draw_samples(axes, fine: torch.Tensor, step: int, title: str) -> None:
    offsets = torch.arange(len(fine)) / 16
    axes.plot(offsets, fine, color="0.6", linewidth=1)
    axes.vlines(offsets[:: 16 * step], 0, fine[:: 16 * step], color="C0", linewidth=1)
    axes.plot(offsets[:: 16 * step], fine[:: 16 * step], "o", color="C0", markersize=3)
    axes.axhline(0, color="0.85", linewidth=0.8, zorder=0)
    axes.set(title=title, xlabel=f"offset, in training steps; one sample every {step}", yticks=[], xlim=(-1, 48))


@torch.no_grad()
def draw_accuracy(axes, net: torch.nn.Module) -> None:
    steps = (1, 2, 3, 4)
    _, _, x, y = digit_sequences(16)
    for label, style, color in (("with step=n", "o-", "C0"), ("without", "o--", "C3")):
        answers = [net(x[..., ::n], step=n if "=" in label else 1).argmax(1) for n in steps]
        axes.plot(steps, [(answer == y).float().mean() for answer in answers], style, label=label, color=color)
    axes.set(
        title="same weights, fewer samples",
        xlabel="every n-th sample of each sequence",
        ylabel="test accuracy",
        ylim=(0, 1.02),
        xticks=steps,
    )
    axes.legend(frameon=False)


def fitting() -> Figure:
    """Chapter 2: fits of a sine network and of a ReLU network of 1,153 parameters each."""
    t = torch.linspace(-1, 1, 200).unsqueeze(-1)
    targets = {
        "sawtooth": (t * 10) % 2 - 1,
        "step": torch.where((t * 3).floor() % 2 == 0, 1.0, -1.0),
        "noise": torch.randn(t.shape, generator=torch.Generator().manual_seed(0)),
    }
    fields = {"SIREN": lambda: SIREN(1, 1, omega_0=30.0), "ReLU": lambda: MLP(1, 1, activation="relu")}
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    grid = figure.subplots(len(fields), len(targets), sharex=True, sharey=True)
    for row, (name, make) in zip(grid, fields.items(), strict=True):
        for axes, (title, target) in zip(row, targets.items(), strict=True):
            torch.manual_seed(0)
            values = fitted(make(), t, target)
            axes.plot(t, target, color="0.75", linewidth=2)
            axes.plot(t, values, color="C0", linewidth=0.9)
            axes.set_title(f"{name}, {title}: error {(values - target).square().mean():.4f}", fontsize=9)
            axes.set(xticks=[], yticks=[])
    return figure


def fitted(field: Field, t: torch.Tensor, target: torch.Tensor, steps: int = 2000) -> torch.Tensor:
    optimizer = torch.optim.Adam(field.parameters(), lr=2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (field(t) - target).square().mean().backward()
        optimizer.step()
    return field(t).detach()


@torch.no_grad()
def streaming(order: int = 24) -> Figure:
    """A kernel of 784 lags, the strongest of its damped oscillations, and the error of sums of several orders."""
    torch.manual_seed(3)
    kernel = CKConv(1, 1, size=784, causal=True).kernel().double().flatten(0, 1)
    fit, _, _ = fit_kernels(kernel, order=order)
    terms = [Oscillations(*(t[:, i : i + 1] for t in fit.tensors())).values(784)[0] for i in range(order)]
    strongest = sorted(terms, key=lambda term: -float(term.norm()))[:5]
    figure = Figure(figsize=(11, 3.1), layout="constrained")
    sums, parts, errors = figure.subplots(1, 3)
    sums.plot(kernel[0], color="0.7", linewidth=3, label="kernel")
    sums.plot(fit.values(784)[0], color="C0", linewidth=1, label=f"{order} oscillations")
    sums.set(title="a long kernel …", xlabel="lag", yticks=[])
    sums.legend(frameon=False)
    for term in strongest:
        parts.plot(term, linewidth=1)
    parts.set(title="… is a sum of damped oscillations", xlabel="lag", yticks=[])
    orders = (2, 4, 8, 12, 16, 20, 24)
    for label, steps in (("closed form", 0), ("with Gauss-Newton steps", 20)):
        found = [float(fit_kernels(kernel, order=n, refine=steps)[2]) for n in orders]
        errors.semilogy(orders, found, "o-", label=label)
    errors.set(title="relative error", xlabel="number of oscillations")
    errors.grid(alpha=0.3)
    errors.legend(frameon=False)
    return figure


PICTURES = {"idea": idea, "fitting": fitting, "streaming": streaming}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="names of pictures; all by default")
    for name in parser.parse_args().names or PICTURES:
        IMAGES.mkdir(exist_ok=True)
        PICTURES[name]().savefig(IMAGES / f"{name}.png", dpi=110)
        print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()

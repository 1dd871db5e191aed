"""The report of a run: one self-contained HTML page with curves, confusion matrix, kernels, spectra and robustness."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._files import write_text
from .._kinds import ListOf
from .._object_kinds import DICT
from ..groups import Distribution
from ..layers import ContinuousConv
from .architecture import draw_history
from .figures import render_figure
from .groups import draw_subset_history
from .kernels import plot_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["embedded_figure", "heading", "number_table", "page", "section", "shown_score", "write_report"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; }
img { max-width: 100%; } pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; }
"""


@checked(rows=ListOf(DICT, least=0), masks=ListOf(DICT, least=0))
def write_report(
    folder: str | Path,
    network: nn.Module,
    result: dict[str, Any],
    rows: list[dict[str, float]],
    masks: list[dict[str, float]],
) -> Path:
    """Write ``report.html``, which needs no other file, and ``kernels.png``; return the path of the page.

    Args:
        folder: folder of the run; ``recipe.yaml``, ``confusion.json``, ``worst.png``, ``attention.png`` and
            ``card.png`` are included if they exist.
        network: the trained network, on the CPU.
        result: the result of the run.
        rows: metrics per epoch.
        masks: mask widths per epoch.
    """
    folder = Path(folder)
    parts = [heading(result), number_table(result)]
    if any(isinstance(m, ContinuousConv) for m in network.modules()):
        plot_kernels(network, folder / "kernels.png")
    drawings: list[tuple[str, Callable[..., None] | None]] = [
        ("Curves", (lambda figure: _curves(figure, rows)) if rows else None),
        ("Robustness", (lambda figure: _robustness(figure, result)) if _changes(result) else None),
        ("Accuracy by received share of the input", _heard(folder)),
        ("Confusion", _confusion(folder)),
    ]
    parts += [section(title, embedded_figure(draw)) for title, draw in drawings if draw is not None]
    if (folder / "worst.png").exists():
        parts.append(section("Test samples with the largest errors", _image((folder / "worst.png").read_bytes())))
    if (folder / "kernels.png").exists():
        parts.append(section("Kernels", _image((folder / "kernels.png").read_bytes())))
        parts.append(section("Spectra of the kernels", embedded_figure(lambda figure: _spectra(figure, network))))
    if (folder / "attention.png").exists():
        parts.append(section("Attention maps", _image((folder / "attention.png").read_bytes())))
    if (folder / "card.png").exists():
        parts.append(section("Efficiency", _image((folder / "card.png").read_bytes())))
    if masks and "complexity" in masks[0]:
        parts.append(section("Architecture", embedded_figure(lambda figure: draw_history(figure, masks))))
    elif any("distribution" in name for row in masks for name in row):
        parts.append(
            section("Subsets over training", embedded_figure(lambda figure: draw_subset_history(figure, masks)))
        )
    elif masks:
        parts.append(section("Mask widths", embedded_figure(lambda figure: _mask_curves(figure, masks))))
    learned = {name: m for name, m in network.named_modules() if isinstance(m, Distribution)}
    if any(True for m in learned.values() for _ in m.parameters()):
        parts.append(section("Learned subsets", embedded_figure(lambda figure: _subsets(figure, learned))))
    if (folder / "recipe.yaml").exists():
        text = html.escape((folder / "recipe.yaml").read_text(encoding="utf-8"))
        parts.append(section("Recipe", f"<pre>{text}</pre>"))
    return write_text(folder / "report.html", page(str(result.get("recipe", "run")), parts))


def page(title: str, parts: list[str]) -> str:
    """Return a self-contained HTML page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{''.join(parts)}</body></html>\n"
    )


def heading(result: dict[str, Any]) -> str:
    """Return the title of a result as HTML."""
    title = html.escape(result.get("title") or result.get("recipe", ""))
    return f"<h1>{title}</h1>\n"


def number_table(result: dict[str, Any]) -> str:
    """Return the scores, the size and the cost of a result as an HTML table."""
    metric = result["metric"]
    rows = [(name, f"{metric} {shown_score(metric, values[metric])}") for name, values in result["metrics"].items()]
    rows += [(f"published {name}", str(value)) for name, value in result.get("published", {}).items()]
    machine = result.get("machine", {})
    rows += [
        ("parameters", f"{result['parameters']:,}"),
        ("epochs", str(result["epochs"])),
        ("time", f"{result['seconds']:.0f} s on {machine.get('device', '?')}, torch {machine.get('torch', '?')}"),
        ("seed", str(result["seed"])),
    ]
    body = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{body}</table>\n"


#: metrics between 0 and 1 that are shown in percent
PERCENT = ("accuracy", "iou", "part_iou", "part_iou_kinds", "auc", "auc_clip", "map", "map_clip")


def shown_score(metric: str, value: float, digits: int = 2) -> str:
    """Return a score as text, shares in percent with this number of digits.

    >>> shown_score("accuracy", 0.9876), shown_score("auc", 0.9876, digits=1), shown_score("mse", 0.12345)
    ('98.76%', '98.8%', '0.1235')
    """
    return f"{value:.{digits}%}" if metric in PERCENT else f"{value:.4g}"


def section(title: str, body: str) -> str:
    """Return a heading and the HTML below it."""
    return f"<h2>{html.escape(title)}</h2>\n{body}\n"


def embedded_figure(draw: Callable[..., None]) -> str:
    """Return a figure, drawn by a function of it, as an HTML image that needs no other file."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    draw(figure)
    buffer = io.BytesIO()
    render_figure(figure, buffer, format="png", dpi=110)
    return _image(buffer.getvalue())


def _image(png: bytes) -> str:
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _curves(figure: Any, rows: list[dict[str, float]]) -> None:
    """Plot the losses in one panel, and each metric, in its own unit, in another."""
    names = dict.fromkeys(key for row in rows for key in row)
    losses = [n for n in names if n.endswith("loss")]
    metrics = [[n] for n in names if n.startswith("val_") and n not in losses]
    panels = [group for group in (losses, *metrics) if group]
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure.set_size_inches(9, 3.2 * lines)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, group in zip(grid, panels, strict=False):
        for name in group:
            pairs = [(row["epoch"], row[name]) for row in rows if name in row]
            axes.plot(*zip(*pairs, strict=True), label=name.removesuffix("_loss").replace("val", "validation"))
        if group is losses:
            axes.legend(frameon=False)
        axes.set_ylabel("loss" if group is losses else group[0].replace("val_", "validation ").replace("_", " "))
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()


#: kinds of changed test samples: the value that changes nothing, and the label of an axis
_KINDS = {
    "step": (1.0, "sampling step"),
    "drop": (0.0, "share of missing positions"),
    "turn": (0.0, "rotation in degrees"),
    "speed": (1.0, "speed"),
}
_CHANGE = re.compile(rf"({'|'.join(_KINDS)}) (-?[0-9.]+(?:e[-+]?[0-9]+)?)")


def _changes(result: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return (value, metric) pairs by kind, from names such as "step 2.0"; tests on other data have other names."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for name, values in result["metrics"].items():
        if found := _CHANGE.fullmatch(name):
            kinds.setdefault(found[1], []).append((float(found[2]), values[result["metric"]]))
    return kinds


def _robustness(figure: Any, result: dict[str, Any]) -> None:
    metric, found = result["metric"], result["metrics"]
    kinds = _changes(result)
    for axes, (kind, pairs) in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds.items(), strict=True):
        unchanged, label = _KINDS[kind]
        points = sorted([*pairs, (unchanged, found["test"][metric])])
        axes.plot(*zip(*points, strict=True), "o-")
        axes.set_xlabel(label)
        axes.set_ylabel(metric)
        axes.grid(alpha=0.3)


def _heard(folder: Path) -> Callable[..., None] | None:
    """Return a function that plots the accuracy of a causal network while its input arrives."""
    if not (folder / "heard.json").exists():
        return None
    found = json.loads((folder / "heard.json").read_text(encoding="utf-8"))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot([100 * share for share in found["heard"]], [100 * share for share in found["accuracy"]], marker=".")
        axes.set(xlabel="received share of the input, percent", ylabel="accuracy, percent", xlim=(0, 100))
        axes.grid(alpha=0.3)

    return draw


def _confusion(folder: Path) -> Callable[..., None] | None:
    path = folder / "confusion.json"
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    counts = torch.tensor(stored["counts"], dtype=torch.float64)
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)

    def draw(figure: Any) -> None:
        figure.set_size_inches(5, 4.2)
        axes = figure.subplots()
        picture = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        if 0 < len(stored["classes"]) <= 30:
            axes.set_xticks(range(len(shares)), stored["classes"], rotation=90, fontsize=7)
            axes.set_yticks(range(len(shares)), stored["classes"], fontsize=7)
        figure.colorbar(picture, label="share of the true class")

    return draw


@torch.no_grad()
def _spectra(figure: Any, network: nn.Module) -> None:
    axes = figure.subplots()
    for name, layer in network.named_modules():
        if not isinstance(layer, ContinuousConv):
            continue
        # Two samples per training step show frequencies beyond the Nyquist frequency of the training grid.
        kernel = layer.kernel(0.5).flatten(0, 1)
        while kernel.dim() > 2:
            kernel = kernel[:, kernel.shape[1] // 2]
        power = torch.fft.rfft(kernel, n=max(256, kernel.shape[-1])).abs().square().mean(dim=0)
        frequencies = torch.linspace(0, 1, len(power))
        axes.semilogy(frequencies.numpy(), (power / power.max()).clamp(min=1e-12).numpy(), linewidth=1, label=name)
    axes.axvline(0.5, color="0.4", linestyle=":", linewidth=1)
    axes.set_xlabel("cycles per training step (dotted: Nyquist frequency of the training grid)")
    axes.set_ylabel("relative power")
    axes.legend(frameon=False, fontsize=6, ncols=2)


def _mask_curves(figure: Any, masks: list[dict[str, float]]) -> None:
    axes = figure.subplots()
    for name in masks[0]:
        if name != "epoch":
            axes.plot([row["epoch"] for row in masks], [row.get(name, float("nan")) for row in masks], label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("σ, where 1 is the input's length")
    axes.legend(frameon=False, fontsize=6, ncols=2)
    axes.grid(alpha=0.3)


@torch.no_grad()
def _subsets(figure: Any, learned: dict[str, Distribution]) -> None:
    axes = figure.subplots()
    for i, distribution in enumerate(learned.values()):
        for j, share in enumerate(distribution.limits().flatten().tolist()):
            axes.barh(i + 0.3 * j, share, height=0.28, color=f"C{j}")
    axes.set_yticks(range(len(learned)), list(learned), fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_xlabel("kept share of the group")

"""Measure the efficiency cards of all pretrained weights, and write the page that shows them.

    python scripts/cards.py measure [--accelerator cuda] [--seconds 0.3]   # benchmarks/results/cards.json
    python scripts/cards.py page                                           # docs/guides/cards.md and its picture

A weight that was measured is kept unless ``--again`` is given, so that an interrupted measurement continues.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kernelfield.experiments.card import measure_weight_card
from kernelfield.experiments.card_text import card_rows, format_count, format_score, format_time
from kernelfield.models.pretrained import list_weights

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "cards.json"
HEAD = """# Efficiency cards

What each pretrained weight costs, on the four axes of chapter 1: parameters; compute, as operations, time and energy;
data; and design, as what was set by hand and what was learned. Operations are counted, time and energy are measured
on {machine} with torch {torch}, on {date}, in float32. `kernelfield card WEIGHT` measures the same on your machine,
and `kernelfield card RUN --shares 0.05,0.1,0.25,0.5` adds the accuracy on shares of the training data for a run of your
own. This page is written by `python scripts/cards.py page` from `benchmarks/results/cards.json`.

![Score, parameters and operations of all weights](../images/cards.png)

| weight | metric | score | parameters | operations | one sample | in a batch | energy in a batch | training |
|---|---|---:|---:|---:|---:|---:|---:|---:|
"""


def measure(accelerator: str, seconds: float, again: bool) -> None:
    """Measure the cards that are missing, each written as it ends."""
    cards: dict[str, Any] = {} if again or not FILE.exists() else json.loads(FILE.read_text(encoding="utf-8"))
    for name in list_weights():
        if name not in cards:
            cards[name] = measure_weight_card(name, seconds=seconds, device=accelerator)
            print(name, cards[name]["compute"], flush=True)
            FILE.write_text(json.dumps(cards, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def page(cards: dict[str, Any]) -> str:
    """Return the page: one table of all weights, then the card of each."""
    machine = next(iter(cards.values()))["machine"]
    text = HEAD.format(machine=machine["device"], torch=machine["torch"], date=machine["date"])
    for name, card in sorted(cards.items()):
        compute, joules = card["compute"], card["compute"]["batch"]["joules"]
        cells = (
            f"[`{name}`](#{name.replace('.', '-').replace('_', '-')})",
            card["metric"],
            format_score(card["metric"], card["score"]),
            f"{card['parameters']['total']:,}",
            format_count(compute["operations"]),
            format_time(compute["single"]["seconds"]),
            format_time(compute["batch"]["seconds"]),
            "" if joules is None else f"{1e3 * joules:.3g} mJ",
            format_time(compute["training"]["seconds"]),
        )
        text += f"| {' | '.join(cells)} |\n"
    for name, card in sorted(cards.items()):
        text += f"\n({name.replace('.', '-').replace('_', '-')})=\n## {name}\n\n"
        text += (
            f"{card['title'].partition(': ')[2]}. Trained on {card['trained_on']['device']}.\n\n| axis | |\n|---|---|\n"
        )
        text += "".join(f"| {axis} | {value} |\n" for axis, value in card_rows(card).items())
    return text


def draw(cards: dict[str, Any], path: Path) -> None:
    """Draw all weights by parameters and operations."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for name, card in sorted(cards.items()):
        x, y = card["parameters"]["total"], card["compute"]["operations"]
        axes.scatter(x, y, color="C0", s=18)
        axes.annotate(name, (x, y), fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="operations of a prediction")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("measure", "page"))
    parser.add_argument("--accelerator", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to measure a prediction")
    parser.add_argument("--again", action="store_true", help="measure weights again that have a card")
    options = parser.parse_args()
    if options.action == "measure":
        measure(options.accelerator, options.seconds, options.again)
        return
    cards = json.loads(FILE.read_text(encoding="utf-8"))
    draw(cards, ROOT / "docs" / "images" / "cards.png")
    (ROOT / "docs" / "guides" / "cards.md").write_text(page(cards), encoding="utf-8")


if __name__ == "__main__":
    main()

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
on one {machine} with torch {torch}, on {date}, in float32. `kernelfield card WEIGHT` measures the same on your
machine, and `kernelfield card RUN --shares 0.05,0.1,0.25,0.5` adds the accuracy on shares of the training data for a
run of your own. This page is written by `python scripts/cards.py page` from `benchmarks/results/cards.json`.

![Parameters, operations and time of all weights](../images/cards.png)

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
            f"`{name}`",
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
        text += f"\n## {name}\n\n"
        text += (
            f"{card['title'].partition(': ')[2]}. Trained on {card['trained_on']['device']}.\n\n| axis | |\n|---|---|\n"
        )
        text += "".join(f"| {axis} | {value} |\n" for axis, value in card_rows(card).items())
    return text


def draw(cards: dict[str, Any], path: Path) -> None:
    """Draw parameters, operations and time of all weights, the smallest network first."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = sorted(cards.values(), key=lambda card: -card["parameters"]["total"])
    columns = {
        "parameters": [card["parameters"]["total"] for card in shown],
        "operations of a prediction": [card["compute"]["operations"] for card in shown],
        "µs of a sample in a batch": [1e6 * card["compute"]["batch"]["seconds"] for card in shown],
    }
    figure = Figure(figsize=(10, 5), layout="constrained")
    for number, (axes, (title, values)) in enumerate(
        zip(figure.subplots(1, 3, sharey=True), columns.items(), strict=True)
    ):
        axes.barh([card["weight"] for card in shown], values, color=f"C{number}")
        axes.set(xscale="linear" if number == 2 else "log", title=title)
        axes.tick_params(axis="y", labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=100)


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

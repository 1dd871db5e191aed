"""Measure the efficiency cards of all pretrained weights, and write the page that shows them.

    python scripts/cards.py measure [--accelerator cuda] [--seconds 0.3]          # writes cards.json
    python scripts/cards.py count                            # counts the operations of all cards again, on the CPU
    python scripts/cards.py shares [--accelerator cuda] [--weights A,B] [--limit 120]  # writes card-shares.json
    python scripts/cards.py add FILE...                      # adds scores that shares --out has written elsewhere
    python scripts/cards.py page                             # writes docs/guides/cards.md and its pictures

The JSON files are in benchmarks/results.

``shares`` trains the recipe of each weight on 5, 10, 25, 50 and 100 % of its training data, with a short budget of
steps (``STEPS``), the same for every share. Measured weights are skipped unless ``--again`` is given, so an interrupted
measurement continues. With ``--limit`` it stops after that many seconds and writes checkpoints.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from kernelfield.experiments.card import count_weight_operations, measure_weight_card
from kernelfield.experiments.card_text import card_rows, format_count, format_energy, format_score, format_time
from kernelfield.experiments.shares import DATA_SHARES, measure_shares
from kernelfield.experiments.weight import weight_recipe
from kernelfield.models.pretrained import describe_weight, list_weights

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "cards.json"
SHARES_FILE = ROOT / "benchmarks" / "results" / "card-shares.json"
#: steps of each training on a share of the data; the last nine networks need a GPU
STEPS = {
    "ccnn_4_140.digits": 120,
    "gridified_modelnet40.chair_monitor_small": 60,
    "dnarch_4_140.darcy_small": 200,
    "unet_p4m.darcy_short": 800,
    "ccnn_4_140_global.darcy": 60,
    "gsanet_rotmnist_r4.rotdigits_small": 600,
    "dren.rotdigits_small": 80,
    "p4cnn.rotdigits_small": 120,
    "w5.transients_small": 120,
    "ckcnn_copy.copy_100": 1000,
    "ckcnn_adding.adding_100": 1562,
    "full_gcnn_t2.rotmnist": 78,
    "flextcn_2.smnist": 170,
    "ckcnn_copy.copy_200": 1000,
    "full_gcnn_se2.rotmnist": 120,
    "partial_gcnn_se2.rotmnist": 120,
    "full_gcnn_e2.rotmnist": 120,
    "ckcnn_adding.adding_200": 1562,
    "ckcnn_copy.copy_1000": 1000,
    "ckcnn_adding.adding_1000": 6000,
    "z2cnn.rotmnist": 300,
    "p4cnn.rotmnist_attentive": 200,
    "ccnn_4_140.fsdd": 250,
    "ccnn_4_140.pmnist": 1000,
    "ccnn_4_140.scifar10": 1500,
}
#: largest number of validation and of test samples for the scores on shares
SCORED = 2000
HEAD = """# Efficiency cards

What does a trained network cost? A card answers on the four axes of chapter 1: parameters; compute (operations, time
and energy); data (scores after training on shares of it); and design (settings chosen by hand, and learned sizes).
Measure your own network or a weight on your own machine:

    kernelfield card runs/digits --shares 0.05,0.1,0.25,0.5
    kernelfield card flextcn_2.smnist

## All weights

![Parameters, operations and time of all weights](../images/cards.png)

Operations are counted on the CPU, with the methods that the library chooses there. The time of a prediction is measured
in float32, for one sample alone and for a sample in a batch; energy is that of a sample in a batch. Compare times only
between rows of the same machine. Times on a CPU are CPU seconds of one thread. Training is the recorded time, on the
machine that the card names.

| weight | score | parameters | operations | machine | one sample | in a batch | energy | training |
|---|---:|---:|---:|---|---:|---:|---:|---:|
{rows}
Machines: {machines}.

## Shares of the training data

![Scores against the share of the training data](../images/card_shares.png)

The recipe of a weight is trained on 5 to 100 % of its training samples. Shares are nested, and each has the same
proportion of every class. Every share gets the same number of steps, rounded to full epochs and fewer than the weight
had ({shares}), so these scores are below those of the table. Shares with more samples than
these steps use once have the same score. In so few steps the copy and adding problems of length 1,000 are not learned
from any share: a constant answer scores 0.990 and 0.167.

`python scripts/cards.py page` writes this page from `benchmarks/results/cards.json` and `card-shares.json`. `python
scripts/cards.py shares --accelerator cuda --data FOLDER` measures shares of new weights. {missing}
"""


def measure(accelerator: str, seconds: float, again: bool) -> None:
    """Measure the missing cards and write each one when it is done."""
    cards: dict[str, Any] = {} if again or not FILE.exists() else json.loads(FILE.read_text(encoding="utf-8"))
    for name in list_weights():
        if name not in cards:
            cards[name] = measure_weight_card(name, seconds=seconds, device=accelerator)
            print(name, cards[name]["compute"], flush=True)
            FILE.write_text(json.dumps(cards, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def count() -> None:
    """Count the operations of all cards again; the times and energies stay."""
    cards = json.loads(FILE.read_text(encoding="utf-8"))
    for name, card in cards.items():
        found, compute = count_weight_operations(name), card["compute"]
        print(name, compute["operations"], "->", found["prediction"], flush=True)
        compute["operations"], compute["training_operations"] = found["prediction"], found["training_sample"]
        compute["training"]["operations"] = found["training"]
        FILE.write_text(json.dumps(cards, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def shares(
    names: list[str], accelerator: str, runs: Path, data: Path | None, limit: float, steps: int | None, path: Path
) -> None:
    """Train the recipes of weights on shares of their data; write each score to ``path`` when it is done."""
    from kernelfield.experiments.fitting import make_fabric  # noqa: PLC0415
    from kernelfield.experiments.run import machine  # noqa: PLC0415

    unknown = sorted(set(names) - set(STEPS))
    if unknown:
        raise SystemExit(f"--weights must be among {', '.join(STEPS)}, got {', '.join(unknown)}")
    fabric, end = make_fabric(accelerator), time.monotonic() + limit
    for name in names:
        budget = steps or STEPS[name]
        points = {point["share"]: point for point in read_shares_file(path).get(name, {}).get("points", [])}
        if len(points) > len(DATA_SHARES) or time.monotonic() > end:
            continue

        def keep(share: float, point: dict[str, Any], name: str = name, points: dict[float, Any] = points) -> None:
            points[share] = point
            entry = {"machine": machine(fabric.device), "points": [points[key] for key in sorted(points)]}
            found = read_shares_file(path)  # another process may measure other weights
            found[name] = {"steps": steps or STEPS[name], "scored": SCORED, **entry}
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(name, point, flush=True)

        recipe = weight_recipe(name)
        folder = (
            None if data is None else next((str(f) for f in (data / recipe.data["name"],) if f.exists()), str(data))
        )
        try:
            measure_shares(
                recipe,
                runs / name,
                steps=budget,
                test_samples=SCORED,
                fabric=fabric,
                folder=folder,
                on_result=keep,
                should_stop=lambda: time.monotonic() > end,
            )
        except (OSError, ValueError) as error:  # mostly files that are not here
            print(f"{name}: not measured: {error}", flush=True)


def add(files: list[Path]) -> None:
    """Add the scores in other files to ``card-shares.json``, those of weights with all shares only."""
    found = read_shares_file()
    for path in files:
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            complete = len(entry["points"]) > len(DATA_SHARES)
            found |= {name: entry} if complete else {}
            print(name, "added" if complete else f"left out: {len(entry['points'])} shares")
    SHARES_FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_shares_file(path: Path = SHARES_FILE) -> dict[str, Any]:
    """Return the measured scores on shares of the data, by weight."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def page(cards: dict[str, Any]) -> str:
    """Return the page: one table of all weights, then the card of each."""
    steps = [card["share_steps"] for card in cards.values() if "share_steps" in card]
    left = len(cards) - len(steps)
    rows = ""
    for name, card in sorted(cards.items()):
        compute, joules = card["compute"], card["compute"]["batch"]["joules"]
        cells = (
            f"`{name}`",
            f"{'' if card['metric'] == 'accuracy' else card['metric']} {format_score(card['metric'], card['score'])}",
            f"{card['parameters']['total']:,}",
            format_count(compute["operations"]),
            card["machine"]["device"].removeprefix("NVIDIA ").removeprefix("AMD "),
            format_time(compute["single"]["seconds"]),
            format_time(compute["batch"]["seconds"]),
            "" if joules is None else format_energy(joules),
            format_time(compute["training"]["seconds"]),
        )
        rows += f"| {' | '.join(cell.strip() for cell in cells)} |\n"
    head = HEAD.format(
        rows=rows,
        machines="; ".join(machines(cards)),
        shares=f"at most {max(steps):,}, stated on each card" if steps else "none yet",
        missing=f"Scores on shares are missing for {left} of {len(cards)} weights, whose cards say so." if left else "",
    )
    text = head.replace(" \n", "\n")
    for name, card in sorted(cards.items()):
        text += f"\n## {name}\n\n"
        text += (
            f"{card['title'].partition(': ')[2]}. Trained on {card['trained_on']['device']}; measured on "
            f"{card['machine']['device']}.\n\n| axis | |\n|---|---|\n"
        )
        text += "".join(f"| {axis} | {value} |\n" for axis, value in card_rows(card).items())
    return text


def machines(cards: dict[str, Any]) -> list[str]:
    """Return the machines that cards were measured on, each with its version of torch, the date and the count."""
    found: dict[str, int] = {}
    for card in cards.values():
        machine = card["machine"]
        name = f"one {machine['device']} with torch {machine['torch']} on {machine['date']}"
        found[name] = found.get(name, 0) + 1
    return [
        f"{name} ({count} weight{'s' * (count > 1)})"
        for name, count in sorted(found.items(), key=lambda item: -item[1])
    ]


def with_shares(cards: dict[str, Any]) -> dict[str, Any]:
    """Return cards with the scores on shares of the data, of the weights that have any."""
    found = dict(cards)
    for name, entry in read_shares_file().items():
        if name in cards and len(entry["points"]) > 1:
            steps = describe_weight(name)["training"]["steps"]
            found[name] = {**cards[name], "data": entry["points"], "share_steps": entry["steps"], "steps": steps}
    return found


def draw_shares(cards: dict[str, Any], path: Path) -> None:
    """Draw scores against the share of the training data: shares of right answers, and errors."""
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogLocator, StrMethodFormatter  # noqa: PLC0415

    shown = [card for _, card in sorted(cards.items()) if "share_steps" in card]
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    for axes, right in zip(figure.subplots(1, 2), (True, False), strict=True):
        lines = [card for card in shown if (card["metric"] == "accuracy") == right]
        axes.set_prop_cycle(color=colormaps["tab20"].colors if len(lines) > 10 else colormaps["tab10"].colors)
        for card in lines:
            places = [100 * point["share"] for point in card["data"]]
            axes.plot(places, [point["score"] for point in card["data"]], "o-", label=card["weight"])
        axes.set(xscale="log", xlabel="% of the training data", ylabel="accuracy" if right else "error")
        axes.set_xticks([5, 10, 25, 50, 100], ["5", "10", "25", "50", "100"])
        if not right:  # errors of one task may all lie within one power of ten
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.minorticks_off()
        if axes.lines:
            axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))  # below the lines
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw(cards: dict[str, Any], path: Path) -> None:
    """Draw parameters, operations and time of all weights, the smallest network first."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = sorted(cards.values(), key=lambda card: -card["parameters"]["total"])
    columns = {
        "parameters": [card["parameters"]["total"] for card in shown],
        "operations of a prediction": [card["compute"]["operations"] for card in shown],
        "µs of a sample in a batch": [1e6 * card["compute"]["batch"]["seconds"] for card in shown],
    }
    kinds = sorted({card["machine"]["device"] for card in shown}, reverse=True)
    figure = Figure(figsize=(10, 6), layout="constrained")
    for number, (axes, (title, values)) in enumerate(
        zip(figure.subplots(1, 3, sharey=True), columns.items(), strict=True)
    ):
        timed = number == 2
        for place, kind in enumerate(kinds if timed else [None]):
            some = [i for i, card in enumerate(shown) if kind in (None, card["machine"]["device"])]
            axes.barh(some, [values[i] for i in some], color=f"C{number + place}", label=kind)
        axes.set_yticks(range(len(shown)), [card["weight"] for card in shown])
        axes.set(xscale="log", title=title)
        if timed:
            axes.legend(fontsize=7)
        axes.tick_params(axis="y", labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("measure", "count", "shares", "add", "page"))
    parser.add_argument("files", nargs="*", type=Path, help="add: files to read")
    parser.add_argument("--accelerator", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to measure a prediction")
    parser.add_argument("--again", action="store_true", help="measure all weights again, also those that have a card")
    parser.add_argument("--weights", default=",".join(STEPS), help="shares: which weights")
    parser.add_argument("--steps", type=int, help="shares: steps of each training; STEPS by default")
    parser.add_argument("--limit", type=float, default=float("inf"), help="shares: seconds after which to stop")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "card-shares", help="shares: folder of trainings")
    parser.add_argument("--data", type=Path, help="shares: folder of the data's files, or of folders by data set")
    parser.add_argument("--out", type=Path, default=SHARES_FILE, help="shares: file of the scores")
    options = parser.parse_args()
    if options.action == "measure":
        measure(options.accelerator, options.seconds, options.again)
        return
    if options.action == "count":
        count()
        return
    if options.action == "add":
        add(options.files)
        return
    if options.action == "shares":
        names = options.weights.split(",")
        shares(names, options.accelerator, options.runs, options.data, options.limit, options.steps, options.out)
        return
    cards = with_shares(json.loads(FILE.read_text(encoding="utf-8")))
    draw_shares(cards, ROOT / "docs" / "images" / "card_shares.png")
    draw(cards, ROOT / "docs" / "images" / "cards.png")
    (ROOT / "docs" / "guides" / "cards.md").write_text(page(cards), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Efficiency cards as Markdown."""

from __future__ import annotations

from typing import Any

from .results import SHARES

__all__ = ["card_text"]


def card_text(card: dict[str, Any]) -> str:
    """Return a card as Markdown."""
    compute, parameters = card["compute"], card["parameters"]
    percent = card["metric"] in SHARES

    def score(value: float) -> str:
        return f"{100 * value:.2f} %" if percent else f"{value:.4g}"

    trained = compute["training"]
    operations = (compute["operations"], compute["training_operations"], trained["operations"])
    one, each, whole = (_time(of["seconds"]) for of in (compute["single"], compute["batch"], trained))
    kinds = ", ".join(f"{name} {parameters[name]:,}" for name in ("kernels", "masks", "symmetry", "other"))
    machines = [str(card[key].get("device", "an unknown machine")) for key in ("machine", "trained_on")]
    shares = ", ".join(f"{100 * point['share']:g} %: {score(point['score'])}" for point in card["data"])
    if len(card["data"]) == 1:
        shares = f"{score(card['score'])} with all; other shares are not measured (`--shares`)"
    rows = {
        "parameters": f"{parameters['total']:,} in {parameters['bytes'] / 1024:,.0f} KiB: {kinds}",
        "operations": "{} for a prediction, {} for a training sample, {} to train".format(*map(_si, operations)),
        "time": f"{one} for one sample, {each} each in a batch of {compute['batch']['samples']}, {whole} to train",
        "energy": _energy(compute),
        "data": shares,
    }
    design = card["design"]
    by_hand = ", ".join(f"{key} {value}" for key, value in design["by_hand"].items())
    learned = ", ".join(f"{key} {a:.3g} → {b:.3g}" for key, (a, b) in design["learned"].items()) or "nothing"
    rows |= {"set by hand": by_hand, "learned beside weights": learned}
    head = [
        f"# {card['title'] or card['recipe']}",
        "",
        f"Test {card['metric']}: {score(card['score'])}. Measured on {machines[0]}; trained on {machines[1]}.",
        "",
        "![The four axes of the card](card.png)",
        "",
        "| axis | |",
        "|---|---|",
    ]
    return "\n".join([*head, *(f"| {axis} | {text} |" for axis, text in rows.items()), ""])


def _si(value: float) -> str:
    """Return a count with a prefix.

    >>> _si(1_234_000), _si(17)
    ('1.23 M', '17')
    """
    for power, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.3g} {prefix}"
    return f"{value:.3g}"


def _time(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return (
        f"{seconds:.3g} s"
        if seconds >= 1
        else f"{1e3 * seconds:.3g} ms"
        if seconds >= 1e-3
        else f"{1e6 * seconds:.3g} µs"
    )


def _energy(compute: dict[str, Any]) -> str:
    one, many = compute["single"]["joules"], compute["batch"]["joules"]
    if one is None or many is None:
        return "not measured: this machine does not say what it uses"
    return f"{1e3 * one:.3g} mJ for one sample, {1e3 * many:.3g} mJ each in a batch"

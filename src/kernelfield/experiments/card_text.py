"""Efficiency cards as Markdown."""

from __future__ import annotations

from typing import Any

from ..viz.report import PERCENT

__all__ = ["card_rows", "card_text", "format_count", "format_energy", "format_score", "format_time"]


def card_text(card: dict[str, Any]) -> str:
    """Return a card as a page of Markdown.

    Args:
        card: result of :func:`~kernelfield.experiments.card.measure_card`.
    """
    score = format_score(card["metric"], card["score"])
    machines = [str(card[key].get("device", "an unknown machine")) for key in ("machine", "trained_on")]
    head = [
        f"# {card['title'] or card['recipe']}",
        "",
        f"Test {card['metric']}: {score}. Measured on {machines[0]}; trained on {machines[1]}.",
        "",
        "![The four axes of the card](card.png)",
        "",
        "| axis | |",
        "|---|---|",
    ]
    return "\n".join([*head, *(f"| {axis} | {text} |" for axis, text in card_rows(card).items()), ""])


def card_rows(card: dict[str, Any]) -> dict[str, str]:
    """Return the text of each axis of a card."""
    compute, parameters = card["compute"], card["parameters"]
    trained = compute["training"]
    operations = (compute["operations"], compute["training_operations"], trained["operations"])
    kinds = ", ".join(f"{name} {parameters[name]:,}" for name in ("kernels", "masks", "symmetry", "other"))
    design = card["design"]
    return {
        "parameters": f"{parameters['total']:,} in {parameters['bytes'] / 1024:,.0f} KiB: {kinds}",
        "operations": "{} for a prediction, {} for a training sample, {} to train".format(
            *map(format_count, operations)
        ),
        "time": _time(card),
        "energy": _energy(card),
        "data": _shares(card),
        "set by hand": ", ".join(f"{key} {value}" for key, value in design["by_hand"].items()),
        "learned besides weights": ", ".join(f"{key} {a:.3g} → {b:.3g}" for key, (a, b) in design["learned"].items())
        or "nothing",
    }


def format_score(metric: str, value: float) -> str:
    """Return a score as text, in percent if its metric is a share.

    >>> format_score("accuracy", 0.9876), format_score("l2", 0.0857)
    ('98.76 %', '0.0857')
    """
    return f"{100 * value:.2f} %" if metric in PERCENT else f"{value:.4g}"


def format_count(value: float) -> str:
    """Return a count as text with a prefix for its magnitude.

    >>> format_count(1_234_000), format_count(17)
    ('1.23 M', '17')
    """
    for power, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.3g} {prefix}"
    return f"{value:.3g}"


def format_time(seconds: float) -> str:
    """Return a time as text in a suitable unit.

    >>> format_time(9000), format_time(600), format_time(1.5), format_time(0.0123), format_time(4.2e-5)
    ('2.5 h', '10.0 min', '1.5 s', '12.3 ms', '42 µs')
    """
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{1e6 * seconds:.3g} µs"


def format_energy(joules: float) -> str:
    """Return an energy as text in a suitable unit.

    >>> format_energy(5400), format_energy(1.5), format_energy(0.0123), format_energy(4.2e-5)
    ('5.4 kJ', '1.5 J', '12.3 mJ', '0.042 mJ')
    """
    for unit, name in ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J")):
        if joules >= unit:
            return f"{joules / unit:.3g} {name}"
    return f"{1e3 * joules:.3g} mJ"


def _shares(card: dict[str, Any]) -> str:
    """Return the scores by share of the training data, and the number of steps if they come from shorter trainings."""
    metric, points = card["metric"], card["data"]
    if len(points) == 1:
        return f"{format_score(metric, card['score'])} with all data; not measured for other shares (`--shares`)"
    text = ", ".join(f"{100 * p['share']:g} %: {format_score(metric, p['score'])}" for p in points)
    steps = card.get("share_steps")
    return text if steps is None else f"{text}, after {steps:,} steps each; the full training has {card['steps']:,}"


def _time(card: dict[str, Any]) -> str:
    """Return the times of a prediction and of the training, as recorded and as estimated for this machine."""
    compute, trained = card["compute"], card["compute"]["training"]
    one, each = (format_time(compute[key]["seconds"]) for key in ("single", "batch"))
    text = f"{one} for one sample, {each} each in a batch of {compute['batch']['samples']}"
    if trained["seconds"] is not None:
        text += f", {format_time(trained['seconds'])} to train on {card['trained_on'].get('device', 'another machine')}"
    here = trained.get("seconds_here")
    return text if here is None else f"{text}, {format_time(here)} here, estimated from one step"


def _energy(card: dict[str, Any]) -> str:
    """Return the energy of a prediction and of the training."""
    compute = card["compute"]
    one, many = compute["single"]["joules"], compute["batch"]["joules"]
    if one is None or many is None:
        return "not measured: this machine does not report its energy"
    return f"{format_energy(one)} for one sample, {format_energy(many)} each in a batch, {_training_energy(card)}"


def _training_energy(card: dict[str, Any]) -> str:
    """Return the energy of the training, estimated from one step or from the power of predictions on this device."""
    compute, trained = card["compute"], card["compute"]["training"]
    if trained.get("joules_here") is not None:
        return f"{format_energy(trained['joules_here'])} to train, estimated from one step"
    same = card["machine"].get("device") == card["trained_on"].get("device")
    if not same or trained["seconds"] is None:
        return "not measured for the training"
    watts = compute["batch"]["joules"] / compute["batch"]["seconds"]
    return f"about {format_energy(watts * trained['seconds'])} to train at the power of predictions, {watts:.0f} W"

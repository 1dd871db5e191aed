"""Efficiency cards: what a trained network costs, on the four axes of chapter 1.

Parameters; compute, as operations, time and energy per sample and to the trained accuracy; data, as accuracy against
the share of the training data; design, as what was set by hand and what was learned. Everything is measured on the
machine at hand; what cannot be is said to be missing.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import POSITIVE, TEXT
from ..fields import Field
from ..groups import Distribution
from ..masks import Mask
from .energy import EnergyMeter
from .finished_run import run_metadata
from .operations import count_operations
from .plain_json import write_json
from .recipe import with_settings
from .results import SHARES
from .run import Run, machine, make_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from .recipe import Recipe
    from .task import Task

__all__ = ["card_text", "make_card", "measure_card"]

#: shares of the training data that a card shows by default
DATA_SHARES = (0.05, 0.1, 0.25, 0.5)


@checked(seconds=POSITIVE, device=TEXT)
def measure_card(folder: str | Path, *, seconds: float = 2.0, device: str = "cpu") -> dict[str, Any]:
    """Return the card of a finished run as plain values.

    Args:
        folder: of the run.
        seconds: how long to measure time and energy, each for one sample and for a batch.
        device: where to measure.
    """
    run = Run(Path(folder))
    result = run.result()
    if result.get("status") != "done":
        raise ValueError(f"folder must be that of a finished run, got {folder}, which is {result.get('status')}")
    recipe = run.recipe()
    network = run.network(recipe).eval()
    task = make_task(recipe, network, run_metadata(run, recipe))
    metric = result["metric"]
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "metric": metric,
        "score": result["metrics"]["test"][metric],
        "parameters": _parameters(network),
        "compute": _compute(task, recipe, result, seconds, torch.device(device)),
        "data": _data(run, result, metric),
        "design": _design(run, recipe, network),
        "trained_on": result["machine"],
        "machine": machine(torch.device(device)),
    }


def _parameters(network: nn.Module) -> dict[str, int]:
    """Return the number of parameters by what they describe."""
    kinds: dict[str, tuple[type[Any], ...]] = {"kernels": (Field,), "masks": (Mask,), "symmetry": (Distribution,)}
    seen: set[int] = set()
    found = {}
    for name, types in kinds.items():
        own = {id(p): p for m in network.modules() if isinstance(m, types) for p in m.parameters()}
        found[name] = sum(p.numel() for key, p in own.items() if key not in seen)
        seen |= set(own)
    total = sum(p.numel() for p in network.parameters())
    size = sum(p.numel() * p.element_size() for p in network.parameters())
    return {"total": total, **found, "other": total - sum(found.values()), "bytes": size}


def _compute(
    task: Task, recipe: Recipe, result: dict[str, Any], seconds: float, device: torch.device
) -> dict[str, Any]:
    """Return operations, time and energy per sample and for the whole training."""
    from .bench import points_of  # noqa: PLC0415
    from .datasets import synthetic_data  # noqa: PLC0415

    batch = recipe.training.batch
    points = points_of(recipe)
    one, many = (synthetic_data(recipe.shape, samples=n, points=points).train.batch(slice(None)) for n in (1, batch))

    def forward(of: Any) -> None:
        with torch.no_grad():
            task(of)

    def step() -> None:
        task.train()
        task.training_step(many).backward()
        task.eval()

    operations = count_operations(lambda: forward(one))
    training = count_operations(step) / batch
    task.zero_grad(set_to_none=True)
    task.to(device)
    samples = result["steps"] * result["batch"]
    found: dict[str, Any] = {"operations": operations, "training_operations": round(training)}
    for name, inputs, count in (("single", one.to(device), 1), ("batch", many.to(device), batch)):
        taken, joules = _timed(lambda inputs=inputs: forward(inputs), seconds, device)  # type: ignore[misc]
        found[name] = {"samples": count, "seconds": taken / count, "joules": None if joules is None else joules / count}
    return found | {
        "training": {
            "samples": samples,
            "seconds": result["seconds"],
            "operations": round(training * samples),
        }
    }


def _timed(work: Callable[[], None], seconds: float, device: torch.device) -> tuple[float, float | None]:
    """Return the median seconds of a call and the joules of one, if the machine tells."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(2):
        work()
    wait()
    times: list[float] = []
    with EnergyMeter(device) as meter:
        begun = time.perf_counter()
        while not times or time.perf_counter() - begun < seconds:
            start = time.perf_counter()
            work()
            wait()
            times.append(time.perf_counter() - start)
    return statistics.median(times), None if meter.joules is None else meter.joules / len(times)


def _data(run: Run, result: dict[str, Any], metric: str) -> list[dict[str, float]]:
    """Return the test scores by share of the training data, as far as they were trained."""
    found = [{"share": 1.0, "score": result["metrics"]["test"][metric]}]
    for path in (run.folder / "card").glob("share-*/result.json"):
        part = Run(path.parent)
        if part.finished:
            share = float(path.parent.name.partition("-")[2])
            found.append({"share": share, "score": part.result()["metrics"]["test"][metric]})
    return sorted(found, key=lambda point: point["share"])


def _design(run: Run, recipe: Recipe, network: nn.Module) -> dict[str, Any]:
    """Return what was set by hand in the recipe, and what was learned, with its values before and after."""
    by_hand = {
        **{f"model.{key}": value for key, value in recipe.model.items() if key != "name"},
        "optimizer.lr": recipe.optimizer.lr,
        "optimizer.weight_decay": recipe.optimizer.weight_decay,
        "schedule.name": recipe.schedule.name,
        "training.epochs": recipe.training.epochs,
        "training.batch": recipe.training.batch,
        **{f"regularizers.{key}": value for key, value in recipe.regularizers.items() if value},
    }
    rows = run.read_rows("masks.csv") if (run.folder / "masks.csv").exists() else []
    learned = {}
    if rows:
        for key in rows[0]:
            if key not in ("epoch", "step") and rows[0][key] != rows[-1].get(key):
                learned[key] = [rows[0][key], rows[-1][key]]
    masks = sum(isinstance(module, Mask) for module in network.modules())
    return {"by_hand": by_hand, "learned": learned, "masks": masks}


def train_on_shares(
    run_folder: str | Path,
    shares: Sequence[float] = DATA_SHARES,
    *,
    on_result: Callable[[float, dict[str, Any]], None] | None = None,
    **options: Any,
) -> None:
    """Train a run's recipe on shares of its training data, for the same number of steps; finished ones are kept.

    Args:
        run_folder: of the run; the trainings go to ``card/share-S`` in it.
        shares: of the training data, between 0 and 1.
        on_result: called with each share and the result.
        options: further arguments of :func:`~.fitting.fit`, such as ``folder`` of the data.
    """
    from .fitting import fit  # noqa: PLC0415

    run = Run(Path(run_folder))
    recipe = run.recipe()
    wrong = [share for share in shares if not 0 < share < 1]
    if wrong:
        raise ValueError(f"shares must be above 0 and below 1, got {wrong[0]}")
    for share in shares:
        # As many steps as the whole data had: fewer samples are seen more often.
        epochs = max(1, round(recipe.training.epochs / share))
        settings = [
            f"data.share={share}",
            f"training.epochs={epochs}",
            f"training.evaluate_every={max(1, round(1 / share))}",
        ]
        out = run.folder / "card" / f"share-{share:g}"
        part = fit(with_settings(recipe, settings), out, report=False, **options)
        if on_result is not None:
            on_result(share, part.result())


def make_card(folder: str | Path, *, seconds: float = 2.0, device: str = "cpu") -> Path:
    """Measure the card of a run, write ``card.json``, ``card.png`` and ``card.md`` into it, and return the last one."""
    from .._atomic import write_text  # noqa: PLC0415
    from ..viz.card import plot_card  # noqa: PLC0415

    run = Run(Path(folder))
    card = measure_card(folder, seconds=seconds, device=device)
    write_json(run.path("card.json"), card)
    plot_card(card, run.path("card.png"))
    return write_text(run.path("card.md"), card_text(card))


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

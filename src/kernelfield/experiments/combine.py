"""The mean of several results over seeds, folds or photographs, as one result."""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING, Any

from .loop import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["combine_results", "pool_progress"]

#: entries of a result that are kept for each run
_EACH = (
    *("metrics", "outputs", "constant", "skipped", "architecture"),
    *("chosen", "best", "last", "best_step", "epochs", "seconds", "seconds_per_epoch"),
)


def combine_results(each: Mapping[int, dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the mean of several results as one result, with their standard deviation and the numbers of each.

    Numbers of epochs and steps, the errors of each predicted value and the scores of a constant prediction are means
    too. ``deviation`` is the sample standard deviation over seeds, and the population standard deviation over folds or
    photographs, which are complete sets. ``skipped`` holds each test that a run has skipped. If a run failed, its
    result is returned.

    Args:
        each: results of finished runs, by seed, fold or photograph.
        kind: "seeds", "folds" or "photographs", the key of the single results.

    >>> runs = {seed: {"status": "done", "metrics": {"test": {"accuracy": a}}, "seconds": 1.0}
    ...         for seed, a in enumerate((0.5, 0.7))}
    >>> found = combine_results(runs, "seeds")
    >>> round(found["metrics"]["test"]["accuracy"], 3), round(found["deviation"]["test"]["accuracy"], 3)
    (0.6, 0.141)
    """
    failed = next((result for result in each.values() if result["status"] != "done"), None)
    if failed is not None:
        return failed
    results = list(each.values())
    spread = functools.partial(
        _deviation, statistics.stdev if kind == "seeds" and len(results) > 1 else statistics.pstdev
    )
    combined = {
        **{name: value for name, value in results[0].items() if name != "architecture"},  # each run has its own
        "metrics": _over([r["metrics"] for r in results], statistics.fmean),
        "deviation": _over([r["metrics"] for r in results], spread),
        "seconds": round(sum(r["seconds"] for r in results), 2),
        kind: {str(key): {name: r[name] for name in _EACH if name in r} for key, r in each.items()},
    }
    for name in ("epochs", "steps", "best_step", "seconds_per_epoch"):
        if all(name in r for r in results):  # runs that stop early differ in length
            mean = statistics.fmean(r[name] for r in results)
            combined[name] = round(mean, 2) if name == "seconds_per_epoch" else round(mean)
    for name in ("chosen", "best", "last"):
        if all(name in r for r in results):
            combined[name] = _over([{k: v for k, v in r[name].items() if k != "epoch"} for r in results])
    for name in ("outputs", "constant"):
        if all(name in r for r in results):
            combined[name] = _mean([r[name] for r in results])
    skipped = {name: reason for r in reversed(results) for name, reason in r.get("skipped", {}).items()}
    if skipped:
        combined["skipped"] = skipped
    if all("peak_bytes" in r for r in results):
        combined["peak_bytes"] = max(r["peak_bytes"] for r in results)
    notes = [part for r in results for part in r.get("notes", "").split("; ") if part]
    if notes:
        combined["notes"] = "; ".join(dict.fromkeys(notes))
    if kind == "seeds":
        combined["seed"] = list(each)
    return combined


def _over(
    tables: list[dict[str, dict[str, float]]], summary: Callable[[list[float]], float] = statistics.fmean
) -> dict[str, dict[str, float]]:
    """Apply a summary to each number that all tables have; a test that one run has skipped is left out."""
    found: dict[str, dict[str, float]] = {}
    for name, values in tables[0].items():
        if not all(name in table for table in tables):
            continue
        keys = [key for key in values if all(key in table[name] for table in tables)]
        found[name] = {key: summary([_number(table[name][key]) for table in tables]) for key in keys}
    return found


def _mean(values: list[Any]) -> Any:
    """Return the means of nested mappings and lists of numbers, without the keys that one of them lacks."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _mean([v[key] for v in values]) for key in first if all(key in v for v in values)}
    if isinstance(first, list):
        return [_mean(list(parts)) for parts in zip(*values, strict=True)]
    return statistics.fmean(map(_number, values))


def _deviation(of: Callable[[list[float]], float], values: list[float]) -> float:
    """Return a standard deviation, or NaN if a value is NaN, which the functions of ``statistics`` refuse."""
    return math.nan if any(map(math.isnan, values)) else of(values)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def pool_progress(count: int, on_progress: Callable[[Progress], None] | None) -> list[Callable[[Progress], None]]:
    """Return one callback for each of ``count`` trainings; together they report to ``on_progress`` as one training.

    Steps are summed, and rates of the trainings that run. Losses and metrics are means over the trainings that have
    reported. The time left counts trainings that wait for their turn.
    """
    latest: dict[int, Progress] = {}

    def report(index: int, now: Progress) -> None:
        latest[index] = now
        if on_progress is None:
            return
        seen = list(latest.values())
        running = [p for p in seen if p.step < p.steps] or [now]
        waiting = count - len(seen)
        whole = now.seconds_left * now.steps / max(1, now.steps - now.step)
        metrics = {
            key: statistics.fmean(p.metrics[key] for p in seen if key in p.metrics)
            for key in dict.fromkeys(key for p in seen for key in p.metrics)
        }
        on_progress(
            Progress(
                step=sum(p.step for p in seen),
                steps=sum(p.steps for p in seen) + waiting * now.steps,
                epoch=min(p.epoch for p in seen),
                loss=statistics.fmean(p.loss for p in seen),
                lr=now.lr,
                rate=sum(p.rate for p in running),
                seconds_left=max(p.seconds_left for p in running) + whole * waiting / len(running),
                metrics=metrics,
            )
        )

    return [functools.partial(report, index) for index in range(count)]

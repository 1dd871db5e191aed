"""Training speed of a recipe: the time per step on synthetic data of its shape."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import ANY, POSITIVE, TEXT, Int, ListOf
from .._object_kinds import Instance
from ..data.registry import describe
from .datasets import synthetic_data
from .loop import Loop
from .recipe import Recipe, find_recipe, with_settings
from .run import machine, make_network, make_task
from .side_by_side import matmul_precision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning.fabric import Fabric

__all__ = ["bench_step", "points_of", "synthetic_loop"]

#: largest number of steps before the measurement
MOST_FIRST = 12


@checked(
    recipe=Instance("kernelfield.experiments.Recipe") | TEXT,
    seconds=POSITIVE,
    samples=Int(0),
    settings=ListOf(TEXT, least=0) | None,
    fabric=ANY,
)
def bench_step(
    recipe: Recipe | str,
    *,
    seconds: float = 5.0,
    samples: int = 0,
    settings: list[str] | None = None,
    fabric: Fabric | None = None,
) -> dict[str, Any]:
    """Return the time of a training step, including the loading of the batch.

    Args:
        recipe: a recipe or its name.
        seconds: duration of the measurement, including the first steps, which compile, allocate and capture. If these
            take longer, steps are measured for a third of this time after them. At least two steps run.
        samples: number of samples in an epoch; if above zero, the time of an epoch is returned too.
        settings: values to replace in the recipe.
        fabric: device; by default the CPU.
    """
    recipe = with_settings(recipe if isinstance(recipe, Recipe) else find_recipe(recipe), settings or [])
    steps, loop = synthetic_loop(recipe, fabric=fabric)
    batch, device, points = recipe.training.batch, loop.fabric.device, points_of(recipe)
    begun = time.perf_counter()

    def timed(count: int) -> float:
        """Return the mean seconds of ``count`` steps, with one wait for the device at the end."""
        start = time.perf_counter()
        for _ in range(count):
            next(steps)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / count

    # The first steps compile, allocate and capture a CUDA graph. They take a third of the time, or what they need.
    least = 1 if loop.captured is None else loop.captured.warmup + 2
    taken, pace = 1, timed(1)
    while taken < least or (taken < MOST_FIRST and time.perf_counter() - begun + pace <= seconds / 3):
        taken, pace = taken + 1, timed(1)
    begun = max(begun, time.perf_counter() - 2 / 3 * seconds)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times: list[float] = []
    while not times or time.perf_counter() - begun + pace < seconds:
        left = seconds - (time.perf_counter() - begun)
        pace = timed(max(1, min(200, int(left / (5 - min(4, len(times))) / pace))))
        times.append(pace)
    step = statistics.median(times)
    found: dict[str, Any] = {
        "recipe": recipe.name,
        "batch": batch,
        "milliseconds": round(1e3 * step, 3),
        "samples_per_second": round(batch / step, 1),
        "spread": round((max(times) - min(times)) / step, 3),
        "settings": settings or [],
        **({"points": points or loop.train.inputs.shape[-1]} if recipe.shape.irregular else {}),
        "machine": machine(device),
    }
    if samples:
        found["epoch_seconds"] = round(step * (samples // batch), 2)
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def synthetic_loop(
    recipe: Recipe | str, settings: list[str] | None = None, fabric: Fabric | None = None
) -> tuple[Iterator[None], Loop]:
    """Return an iterator that trains on synthetic data, one step at a time and without an end, and its loop."""
    recipe = with_settings(recipe if isinstance(recipe, Recipe) else find_recipe(recipe), settings or [])
    # Enough batches to exceed the cache, but few enough to generate quickly.
    data = synthetic_data(recipe.shape, samples=4 * recipe.training.batch, points=points_of(recipe))
    loop = Loop(make_task(recipe, make_network(recipe)), data.train, None, recipe.training, fabric=fabric)
    loop.task.train()
    return _endless_steps(loop), loop


def points_of(recipe: Recipe) -> int | None:
    """Return the number of points per sample if the data set has an option for it, else None."""
    points = recipe.data.get("points", describe(recipe.data["name"]).options.get("points"))
    return points if recipe.shape.irregular and isinstance(points, int) and points > 0 else None


def _endless_steps(loop: Loop) -> Iterator[None]:
    """Train, and yield after each step."""
    with matmul_precision(loop.settings.matmul, loop.fabric.device):
        while True:
            loop.state.position = 0
            for item in loop._epoch():  # noqa: SLF001
                loop._step(item)  # noqa: SLF001
                yield

"""Tests of a trained network on changed data: other resolutions and speeds, missing positions, rotated images."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._checks import check_choice
from .._kinds import FINITE, POSITIVE, RATE
from ..data.base import Batch
from ..data.transforms.resize import resize
from ..data.transforms.rotate import rotate
from ..ops import resample
from .datasets import recipe_data
from .evaluation import evaluate
from .recipe import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ..data.base import Data, Split
    from .recipe import Recipe
    from .task import Task

__all__ = ["at_speed", "at_step", "other_data_tests", "run_tests", "with_dropped", "with_rotation"]


@dataclass(frozen=True)
class Thinned(Batch):
    """A batch in which only a share of the positions is observed.

    Args:
        density: observed positions per unit of space.
    """

    density: float = 1.0

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the keyword arguments of a network besides the inputs."""
        assert self.mask is not None
        density = torch.full(self.mask.shape, self.density, device=self.inputs.device)
        return {**super().sampling, "density": density}

    def to(self, *args: Any, **kwargs: Any) -> Thinned:
        """Return the batch with its tensors moved."""
        given: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in given.items():
            given[name] = value.to(*args, **kwargs) if isinstance(value, torch.Tensor) else value
        return Thinned(**given)


def run_tests(
    task: Task,
    data: Data,
    wanted: dict[str, Any],
    *,
    batch: int = 256,
    device: torch.device | str = "cpu",
    skipped: dict[str, str] | None = None,
) -> dict[str, dict[str, float]]:
    """Return metrics on changed test samples, by name of the change, such as ``"step 2.0"``.

    Args:
        task: the trained task.
        data: data with the test split to change.
        wanted: values by kind: ``step``, ``drop``, ``turn`` and ``speed``, each a number or a list of them.
        batch: samples per batch.
        device: device on which to run.
        skipped: if given, tests that the network cannot run are skipped, and the reasons are written here; otherwise
            they raise.
    """
    found = {}
    split = data.test.to(device)
    for kind, values in wanted.items():
        if check_choice("test", kind, TESTS) == "data":
            continue  # other_data_tests loads these
        changes: dict[str, Any] = {"step": at_step, "drop": with_dropped, "turn": with_rotation, "speed": at_speed}
        change = changes[kind]
        for value in values if isinstance(values, (list, tuple)) else [values]:
            name = f"{kind} {float(value)}"
            with _skipping(name, skipped):
                found[name] = evaluate(task, change(split, float(value)), batch).compute()
    return found


@contextlib.contextmanager
def _skipping(name: str, skipped: dict[str, str] | None) -> Iterator[None]:
    """Record in ``skipped`` why a test cannot run; raise the error if ``skipped`` is None."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        if skipped is None:
            if isinstance(error, ValueError) and not str(error).startswith(name.partition(" ")[0]):
                raise ValueError(f"{name}: {error}") from error  # names the test among several
            raise
        skipped[name] = f"{error}".splitlines()[0] if str(error) else type(error).__name__


def other_data_tests(
    task: Task,
    recipe: Recipe,
    data: Data,
    *,
    batch: int = 256,
    device: torch.device | str = "cpu",
    skipped: dict[str, str] | None = None,
    **where: Any,
) -> dict[str, dict[str, float]]:
    """Return metrics on test splits loaded with other options, by the names in ``test.data``.

    The step follows from the size: twice as many samples along an axis lie half as far apart. With ``subsample`` it is
    the ratio of the two values.

    Args:
        task: the trained task.
        recipe: recipe with ``test.data``.
        data: data of the training.
        batch: samples per batch.
        device: device on which to run.
        skipped: see :func:`run_tests`.
        where: ``folder`` and ``download`` for :func:`recipe_data`.
    """
    found = {}
    for name, options in recipe.test.get("data", {}).items():
        with _skipping(name, skipped):
            other = recipe_data(replace(recipe, data={**recipe.data, **options}), check=False, **where)
            steps = tuple(n / m for n, m in zip(data.size, other.size, strict=True))
            if "subsample" in options:  # exact, while lengths are rounded
                steps = (options["subsample"] / recipe.data.get("subsample", 1),)
            # A loader that trains and tests at different resolutions sets the step itself.
            known = other.test.step != 1.0
            split = other.test if known else replace(other.test, step=steps if len(set(steps)) > 1 else steps[0])
            found[name] = evaluate(task, split.to(device), batch).compute()
    return found


@checked(step=POSITIVE)
def at_step(split: Split, step: float) -> Split:
    """Resample a split at ``step`` times its current step: 2 halves the resolution, 0.5 doubles it.

    A sequence at an integer step keeps every ``step``-th sample, without a low-pass filter; at other steps it is
    resampled through its spectrum. Images and volumes are resized with a low-pass filter. Data at points have no grid
    and are refused.
    """
    if split.coords is not None:
        raise ValueError(f"step must be 1 for data at points, which have no grid (use drop instead), got {step}")

    def change(batch: Batch) -> Batch:
        space = batch.inputs.shape[2:]
        old = batch.step if isinstance(batch.step, tuple) else (batch.step,) * len(space)
        if step == round(step) and len(space) == 1:
            keep = slice(None, None, round(step))
            mask = None if batch.mask is None else batch.mask[..., keep]
            return replace(batch, inputs=batch.inputs[..., keep], mask=mask, step=old[0] * step)
        sizes = tuple(max(1, round(n / step)) for n in space)
        inputs = resample(batch.inputs, sizes) if len(space) == 1 else resize(batch.inputs, sizes)
        mask = None
        if batch.mask is not None:
            index = [torch.arange(n, device=inputs.device) * old // n for n, old in zip(sizes, space, strict=True)]
            places: Any = (slice(None), *torch.meshgrid(*index, indexing="ij"))
            mask = batch.mask[places]
        steps = tuple(s * n / m for s, n, m in zip(old, space, inputs.shape[2:], strict=True))
        return replace(batch, inputs=inputs, mask=mask, step=steps if len(set(steps)) > 1 else steps[0])

    return _with_change(split, change)


@checked(speed=POSITIVE)
def at_speed(split: Split, speed: float) -> Split:
    """Return the split with its series played at another speed, as on a tape: 0.5 is half as fast and twice as long.

    Unlike with :func:`at_step`, the network does not get the new step. Series are resampled through their spectrum;
    above speed 1, frequencies beyond the Nyquist frequency are lost.
    """
    if split.coords is not None or split.inputs.dim() != 3:
        raise ValueError(f"speed must be 1 for data other than series on a grid, got {speed}")

    def change(batch: Batch) -> Batch:
        old = batch.inputs.shape[-1]
        new = max(1, round(old / speed))
        mask = batch.mask
        if mask is not None:
            mask = mask[:, torch.arange(new, device=mask.device) * old // new]
        return replace(batch, inputs=resample(batch.inputs, new), mask=mask)

    return _with_change(split, change)


@checked(share=RATE)
def with_dropped(split: Split, share: float, seed: int = 0) -> Split:
    """Return the split with a random share of the positions of each sample masked."""
    if not 0 <= share < 1:
        raise ValueError(f"drop must be a share of at least 0 and below 1, got {share}")
    generator = torch.Generator().manual_seed(seed)

    def change(batch: Batch) -> Batch:
        shape = (len(batch), *batch.inputs.shape[2:])
        kept = (torch.rand(shape, generator=generator) >= share).to(batch.inputs.device)
        mask = kept if batch.mask is None else kept & batch.mask
        # Observed positions also stand for dropped ones, so that sums over positions keep their magnitude.
        given = {f.name: getattr(batch, f.name) for f in fields(batch)}
        axes = batch.inputs.dim() - 2 if batch.coords is None else batch.coords.shape[-1]
        cell = math.prod(batch.step) if isinstance(batch.step, tuple) else batch.step**axes
        return Thinned(**{**given, "mask": mask}, density=(1 - share) / cell)

    return _with_change(split, change)


@checked(degrees=FINITE)
def with_rotation(split: Split, degrees: float) -> Split:
    """Return the split with its images rotated counterclockwise.

    With a class per pixel, the classes and the mask rotate too, which is exact for multiples of 90 degrees; other
    angles are refused. Values per pixel are refused, since they may be components of vectors.
    """
    if split.inputs.dim() != 4 or split.coords is not None:
        raise ValueError(f"turn must be 0 for data other than images, got {degrees}")
    if split.target.dim() == 3 and not split.target.is_floating_point():
        if degrees % 90:
            raise ValueError(f"turn must be a multiple of 90 for images with a class per pixel, got {degrees}")
        return _with_change(split, lambda batch: _rotated_on_the_grid(batch, round(degrees / 90) % 4))
    if split.target.dim() > 2:
        raise ValueError(f"turn must be 0 for images with values per pixel, which may be vectors, got {degrees}")

    def change(batch: Batch) -> Batch:
        if batch.mask is not None:
            raise ValueError(f"turn must be 0 for images with missing pixels, got {degrees}")
        angles: Tensor = torch.full((len(batch),), math.radians(degrees), device=batch.inputs.device)
        return replace(batch, inputs=rotate(batch.inputs, angles))

    return _with_change(split, change)


def _rotated_on_the_grid(batch: Batch, quarters: int) -> Batch:
    """Return a batch of images with its targets and mask rotated by quarters of a full rotation."""
    inputs, target, mask = (
        None if t is None else t.rot90(quarters, (-2, -1)).contiguous()
        for t in (batch.inputs, batch.target, batch.mask)
    )
    assert inputs is not None
    step = batch.step[::-1] if isinstance(batch.step, tuple) and quarters % 2 else batch.step
    return replace(batch, inputs=inputs, target=target, mask=mask, step=step)


def _with_change(split: Split, change: Any) -> Split:
    """Return the split with ``change`` applied to each prepared batch."""
    prepare = split.prepare
    return replace(
        split, prepare=lambda batch, training: change(batch if prepare is None else prepare(batch, training))
    )

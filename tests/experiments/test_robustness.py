"""Changed test samples: what the network is given, and that a change of nothing changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CCNN
from kernelfield.data.base import Split
from kernelfield.experiments.robustness import at_speed, at_step, with_dropped, with_rotation
from kernelfield.experiments.task import Task

if TYPE_CHECKING:
    from kernelfield.data.base import Batch


def series(length: int = 48, step: float = 1.0) -> Split:
    """Return a sine of 4 periods and a cosine of 2, with the end of the second sample missing."""
    turns = 2 * torch.pi * torch.arange(length) / length
    values = torch.stack([torch.sin(4 * turns), torch.cos(2 * turns)]).unsqueeze(1)
    mask = torch.arange(length) < torch.tensor([[length], [length // 2]])
    return Split(values, torch.tensor([0, 1]), mask=mask, step=step)


def images(step: float | tuple[float, ...] = 1.0) -> Split:
    return Split(torch.rand(3, 1, 8, 12), torch.tensor([0, 1, 1]), step=step)


def everything(split: Split) -> Batch:
    return split.batch(slice(None))


@pytest.mark.parametrize("step", [1.0, 0.5])
def test_every_second_sample_lies_twice_as_far_apart(step: float) -> None:
    split = series(step=step)
    batch = everything(at_step(split, 2.0))
    assert torch.equal(batch.inputs, split.inputs[..., ::2])
    assert torch.equal(batch.mask, split.mask[:, ::2])
    assert batch.step == 2 * step


@pytest.mark.parametrize("step", [0.5, 1.5])
def test_resampled_series_are_the_same_function_of_time(step: float) -> None:
    batch = everything(at_step(series(48), step))
    wanted = series(round(48 / step))
    torch.testing.assert_close(batch.inputs, wanted.inputs, rtol=0, atol=1e-5)
    assert torch.equal(batch.mask, wanted.mask)
    assert batch.step == step


def test_steps_of_images_are_exact_where_sizes_are_rounded() -> None:
    batch = everything(at_step(images(0.5), 3.0))
    assert batch.inputs.shape == (3, 1, 3, 4)
    assert batch.step == pytest.approx((0.5 * 8 / 3, 0.5 * 3))
    assert everything(at_step(images(), 0.5)).step == 0.5


def test_another_speed_changes_the_samples_and_not_the_step() -> None:
    batch = everything(at_speed(series(48), 0.5))
    torch.testing.assert_close(batch.inputs, series(96).inputs, rtol=0, atol=1e-5)
    assert torch.equal(batch.mask, series(96).mask)
    assert batch.step == 1.0
    assert everything(at_speed(series(48), 2.0)).inputs.shape[-1] == 24


def test_a_quarter_turn_is_counterclockwise() -> None:
    x = torch.rand(2, 1, 9, 9)
    batch = everything(with_rotation(Split(x, torch.zeros(2)), 90))
    torch.testing.assert_close(batch.inputs, torch.rot90(x, 1, (2, 3)), rtol=0, atol=1e-5)


def test_a_share_of_the_observed_positions_is_masked() -> None:
    split = series(1000)
    batch = everything(with_dropped(split, 0.3))
    assert torch.equal(batch.inputs, split.inputs)
    assert not bool((batch.mask & ~split.mask).any())
    assert float(batch.mask[0].double().mean()) == pytest.approx(0.7, abs=0.05)
    assert torch.equal(batch.mask, everything(with_dropped(split, 0.3)).mask)
    assert not torch.equal(batch.mask, everything(with_dropped(split, 0.3, seed=1)).mask)
    assert batch.sampling["density"].unique().tolist() == pytest.approx([0.7])


@pytest.mark.parametrize("step", [1.0, 0.5, (0.5, 1.5)])
def test_nothing_dropped_changes_nothing(step: float | tuple[float, ...]) -> None:
    split = images(step)
    task = Task(CCNN(1, 2, dim=2, size=8, channels=4, blocks=1).eval(), out_channels=2).eval()
    with torch.no_grad():
        plain = task(everything(replace(split, mask=torch.ones(3, 8, 12, dtype=torch.bool))))
        torch.testing.assert_close(task(everything(with_dropped(split, 0.0))), plain)

"""Tests of a trained network at other resolutions: images are resized with a low-pass filter, never decimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from kernelfield.data.base import Data, Split
from kernelfield.data.transforms.resize import resize
from kernelfield.experiments import fit, with_settings
from kernelfield.experiments.finished_run import run_test
from kernelfield.experiments.robustness import at_step, run_tests, with_rotation
from kernelfield.experiments.task import Task

from .helpers import small_recipe

if TYPE_CHECKING:
    from pathlib import Path


class _Recorder(nn.Module):
    """A network that keeps its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.seen: list[tuple[Tensor, Any]] = []

    def forward(self, x: Tensor, *, step: Any = 1.0) -> Tensor:
        self.seen.append((x, step))
        return self.weight.expand(len(x), 2)


def _images(size: tuple[int, ...] = (16, 12)) -> Split:
    generator = torch.Generator().manual_seed(0)
    return Split(torch.randn(6, 1, *size, generator=generator), torch.arange(6) % 2)


@pytest.mark.parametrize("size", [(16, 12), (8, 8, 4)])
@pytest.mark.parametrize("step", [2.0, 1.5])
def test_images_and_volumes_are_resized_with_a_low_pass_filter(size: tuple[int, ...], step: float) -> None:
    split = _images(size)
    changed = at_step(split, step).batch(slice(None))
    wanted = tuple(round(n / step) for n in size)
    torch.testing.assert_close(changed.inputs, resize(split.inputs, wanted))


def test_frequencies_beyond_the_new_grid_vanish() -> None:
    fast = torch.cos(2.8 * torch.arange(32)).expand(1, 1, 32, 32)
    coarse = at_step(Split(fast, torch.zeros(1)), 2.0).batch(slice(None)).inputs
    assert fast[..., ::2, ::2].abs().max() > 0.9
    assert coarse[..., 2:-2, 2:-2].abs().max() < 0.1


def test_report_and_test_command_feed_networks_resized_images() -> None:
    split, network = _images(), _Recorder()
    data = Data.from_splits("drawn", [split, None, split], classes=("a", "b"))
    run_tests(Task(network, out_channels=2), data, {"step": [2.0]})
    (seen, step), *_ = network.seen
    torch.testing.assert_close(seen, resize(split.inputs, (8, 6)))
    assert step == 2.0


def test_report_and_test_command_agree_on_images(tmp_path: Path) -> None:
    settings = {
        "shape.size": [8, 8],
        "shape.out_channels": 10,
        "training.epochs": 1,
        "training.batch": 120,
        "test.step": [2.0],
    }
    recipe = with_settings(small_recipe(), {"data.resolution": 8, **settings})
    run = fit(recipe, tmp_path / "run", report=False)
    reported = run.result()["metrics"]["step 2.0"]["accuracy"]
    tested = run_test(tmp_path / "run", {"step": [2.0]}, split="test")
    assert next(iter(v for k, v in _flat(tested).items() if "step 2.0" in k and "accuracy" in k)) == reported


def _flat(values: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {name: values}
    return {k: v for key, value in values.items() for k, v in _flat(value, f"{name} {key}").items()}


def test_rotations_are_refused_if_the_targets_or_masks_would_not_turn() -> None:
    images = torch.randn(2, 1, 6, 6)
    turned = with_rotation(Split(images, torch.zeros(2).long()), 90).batch(slice(None))
    torch.testing.assert_close(turned.inputs, images.rot90(1, (-2, -1)), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="turn must be 0"):
        with_rotation(Split(images, torch.zeros(2, 1, 6, 6)), 90)
    with pytest.raises(ValueError, match="turn must be a multiple of 90"):
        with_rotation(Split(images, torch.zeros(2, 6, 6).long()), 45)
    seen = torch.rand(2, 6, 6) > 0.5
    with pytest.raises(ValueError, match="turn must be 0"):
        with_rotation(Split(images, torch.zeros(2).long(), mask=seen), 90).batch(slice(None))


@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 7])
def test_classes_and_masks_of_pixels_rotate_with_their_images(quarters: int) -> None:
    images, classes, seen = torch.randn(2, 1, 4, 6), torch.randint(3, (2, 4, 6)), torch.rand(2, 4, 6) > 0.5
    split = Split(images, classes, mask=seen, step=(1.0, 2.0))
    turned = with_rotation(split, 90 * quarters).batch(slice(None))
    for found, given in ((turned.inputs, images), (turned.target, classes), (turned.mask, seen)):
        assert found is not None
        assert torch.equal(found, given.rot90(quarters, (-2, -1)))
    assert turned.step == ((2.0, 1.0) if quarters % 2 else (1.0, 2.0))

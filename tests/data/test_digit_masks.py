"""Rotated digits to masks: what the pixels and their classes have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernelfield.data.metadata import same_samples, samples_record
from kernelfield.data.registry import data_shape, load
from kernelfield.data.sets.images.digit_masks import INK, _places, _shift, digit_masks
from kernelfield.data.sets.images.digits import digits


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_noise_the_bright_pixels_are_those_of_digits(count: int) -> None:
    split = digit_masks(16, digits=count, noise=0.0).train
    assert torch.equal(split.target > 0, split.inputs[:, 0] > INK)
    shown = torch.stack([(split.target == c).flatten(1).any(dim=1) for c in range(1, 10)])
    assert int(shown.sum(dim=0).max()) == count
    assert bool((shown.sum(dim=0) >= 1).all())


def test_the_first_digit_of_each_canvas_is_the_one_in_its_place() -> None:
    labels = digits(8).train.target
    target = digit_masks(16, digits=1, copies=2).train.target.flatten(1)
    assert torch.equal(target.amax(dim=1) - 1, labels[labels != 9].repeat(2))


def test_noise_is_added_to_the_same_canvas() -> None:
    plain, noisy = digit_masks(16, noise=0.0).test, digit_masks(16, noise=0.3).test
    assert torch.equal(plain.target, noisy.target)
    difference = noisy.inputs - plain.inputs
    assert float(difference.std()) == pytest.approx(0.3, rel=0.02)
    assert float(difference.mean()) == pytest.approx(0, abs=0.01)


def test_no_orientation_is_preferred() -> None:
    """Second moments of the ink of ones, which are long and thin, are those of a disc on average."""
    split = digit_masks(32, digits=1, noise=0.0, copies=4).train
    ones = split.inputs[split.target.flatten(1).amax(dim=1) == 2, 0].double()
    axis = torch.arange(32, dtype=torch.double)
    total = ones.sum(dim=(1, 2))
    row, column = ((ones.sum(dim=d) * axis).sum(dim=1) / total for d in (2, 1))
    rows, columns = axis - row[:, None], axis - column[:, None]
    spread = [(ones.sum(dim=d) * places.square()).sum(dim=1) / total for d, places in ((2, rows), (1, columns))]
    mixed = torch.einsum("nij,ni,nj->n", ones, rows, columns) / total
    gap, size = (spread[0] - spread[1]).mean(), (spread[0] + spread[1]).mean()
    assert abs(float(gap / size)) < 0.1
    assert abs(float(mixed.mean() / size)) < 0.05
    assert float((spread[0] - spread[1]).abs().mean() / size) > 0.3  # each of them has an orientation


def test_shifts_lose_what_leaves_the_canvas() -> None:
    x = torch.arange(1.0, 13).view(1, 3, 4).repeat(2, 1, 1)
    down, left = _shift(x, torch.tensor([[1, 0], [0, -2]]))
    assert torch.equal(down, torch.cat([torch.zeros(1, 4), x[0, :2]]))
    assert torch.equal(left, torch.cat([x[0, :, 2:], torch.zeros(3, 2)], dim=1))


def test_digits_stay_apart_within_the_canvas() -> None:
    generator = torch.Generator().manual_seed(0)
    places = _places(500, 2, 16, generator).double()
    assert (float(places.min()), float(places.max())) == (0, 16)
    distance = (places[:, 0] - places[:, 1]).norm(dim=1)
    assert float(distance.mean()) > 12  # of two random positions: 8.3


def test_splits_and_shape() -> None:
    data = digit_masks(16, validation=0)
    assert data.validation is None
    assert data.classes == ("background", *"012345678")
    shape = data_shape("digit_masks", resolution=16)
    assert shape is not None
    assert (shape.task, shape.out_channels, shape.size) == ("segmentation", 10, [16, 16])
    batch = data.train.batch(slice(None)).inputs
    assert float(batch.mean()) == pytest.approx(0, abs=1e-4)
    assert float(batch.std()) == pytest.approx(1, rel=1e-4)


def test_the_record_of_the_samples_sees_every_pixel() -> None:
    data = load("digit_masks", resolution=16)
    record, other = samples_record(data), samples_record(load("digit_masks", resolution=16, seed=1))
    assert same_samples(record, samples_record(load("digit_masks", resolution=16)))
    assert not same_samples(record, other)
    target = data.test.target.clone()
    target[3, 8, 8] = (target[3, 8, 8] + 1) % 10
    assert not same_samples(record, samples_record(replace(data, test=replace(data.test, target=target))))
    earlier = {name: value for name, value in record.items() if name != "classes"}
    assert same_samples(earlier, record)

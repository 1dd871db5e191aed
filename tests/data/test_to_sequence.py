"""Splits, prepared batches, and other forms of a data set."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield.data import Batch, Data, Split, as_sequence, drop_samples, drop_split, noise_padded, permuted
from kernelfield.data.sets.synthetic.chirps import chirps
from kernelfield.data.sets.synthetic.memory import copy_memory
from kernelfield.data.sets.synthetic.shapes import shapes
from kernelfield.data.sets.text.listops import listops
from kernelfield.data.transforms.batch import CropFlip, Observed, ResizeRotateCrop, Standardize
from kernelfield.data.transforms.series import Series, build
from kernelfield.data.transforms.split import class_index, divide, hold_out, moments
from kernelfield.layers import CKConv

FEW = {"train": 6, "validation": 2, "test": 3}


@given(st.integers(3, 200), st.integers(1, 7), st.integers(0, 5))
def test_divide_is_a_stratified_partition(n: int, classes: int, seed: int) -> None:
    labels = torch.arange(n) % classes
    parts = divide(labels, (0.6, 0.2, 0.2), seed)
    assert torch.cat(parts).sort().values.tolist() == list(range(n))
    for part, share in zip(parts, (0.6, 0.2, 0.2), strict=True):
        assert abs(len(part) - share * n) <= 1.5
        for c in range(classes):
            assert abs(int((labels[part] == c).sum()) - share * int((labels == c).sum())) <= 2
    assert all(torch.equal(a, b) for a, b in zip(parts, divide(labels, (0.6, 0.2, 0.2), seed), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_every_class_has_a_training_sample(seed: int) -> None:
    labels = torch.tensor([*range(5), *[5] * 30])
    train, held, test = divide(labels, seed=seed)
    assert (len(train), len(held), len(test)) == (25, 5, 5)
    assert set(labels[train].tolist()) == set(range(6))
    assert sorted(torch.cat([train, held, test]).tolist()) == list(range(35))


def test_classes_have_one_order() -> None:
    assert class_index(["10", "9", "1e0"])[1] == ("1e0", "9", "10")
    assert class_index(["nan", "2", "10"])[1] == ("10", "2", "nan")


@pytest.mark.parametrize("other", ["1.0", "01", "1e0"])
def test_one_number_has_one_name(other: str) -> None:
    with pytest.raises(ValueError, match=rf"labels must write a number in one way, found .*'{re.escape(other)}'"):
        class_index(["1", other, "2"])


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.6, -0.1), (0.5, 0.2, 0.2), (0.0, 0.5, 0.5)])
def test_shares_are_checked(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"\bshares must"):
        divide(torch.zeros(4, dtype=torch.long), shares)


def test_empty_training_split_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\bshares must"):
        divide(torch.zeros(2, dtype=torch.long), (0.1, 0.45, 0.45))
    assert len(hold_out(torch.zeros(5, dtype=torch.long), 0)[1]) == 0


def test_moments_ignore_missing_values() -> None:
    x = torch.randn(50, 3, 40) * 4 + 2
    holes = torch.where(torch.rand(x.shape) < 0.5, x, torch.nan)
    mean, std = moments(holes)
    for c in range(3):
        seen = holes[:, c][~holes[:, c].isnan()]
        assert float(mean[0, c]) == pytest.approx(float(seen.mean()), rel=1e-4)
        assert float(std[0, c]) == pytest.approx(float(seen.std(unbiased=False)), rel=1e-4)
    mean, std = moments(torch.full((2, 1, 3), torch.nan))
    assert (float(mean), float(std)) == (0.0, 1.0)


def test_standardize_by_channel() -> None:
    x = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    prepare = Standardize((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))
    for _ in range(2):  # the second time from what was kept
        out = prepare(Batch(x), True).inputs
        torch.testing.assert_close(out[:, 2], (x[:, 2] / 255 - 0.3) / 4)


def test_observed_adds_a_channel_and_zeroes_missing_values() -> None:
    batch = Batch(torch.ones(1, 2, 3), mask=torch.tensor([[True, False, True]]))
    assert Observed()(batch, True).inputs.tolist() == [[[1, 0, 1]] * 3]
    assert Observed()(Batch(torch.ones(1, 2, 3)), True).inputs.shape == (1, 3, 3)


@pytest.mark.parametrize("flip", [True, False])
def test_half_of_the_images_are_mirrored_from_left_to_right(flip: bool) -> None:
    torch.manual_seed(0)
    x = torch.rand(300, 2, 3, 5)
    changed = CropFlip(0, flip=flip)(Batch(x), True).inputs
    mirrored, same = ((changed == y).flatten(1).all(dim=1) for y in (x.flip(3), x))
    assert bool((same ^ mirrored).all())
    assert float(mirrored.double().mean()) == pytest.approx(0.5 if flip else 0.0, abs=0.1)


def test_images_are_shifted_up_to_the_padding_either_way() -> None:
    torch.manual_seed(0)
    x = torch.zeros(400, 1, 9, 9)
    x[:, :, 4, 4] = 1.0
    changed = CropFlip(2, flip=False)(Batch(x), True).inputs
    for places in changed.nonzero()[:, 2:].T:
        assert places.unique().tolist() == [2, 3, 4, 5, 6]


def test_images_are_turned_either_way_and_half_of_them_mirrored() -> None:
    torch.manual_seed(0)
    x = torch.zeros(300, 2, 65, 65)
    x[:, 0, 12, 32], x[:, 1, 32, 52] = 1.0, 1.0  # above the middle, and to its right
    changed = ResizeRotateCrop(65, 65, 30.0)(Batch(x), True).inputs
    axis = torch.arange(65.0) - 32
    mass = changed.sum(dim=(2, 3))
    across, down = ((changed * weight).sum(dim=(2, 3)) / mass for weight in (axis, axis.unsqueeze(1)))
    mirrored = across[:, 1] < 0
    assert float(mirrored.double().mean()) == pytest.approx(0.5, abs=0.1)
    for some in (mirrored, ~mirrored):
        turned = torch.rad2deg(torch.atan2(across[some, 0], -down[some, 0]))
        assert (float(turned.min()), float(turned.max())) == pytest.approx((-30, 30), abs=3)


def test_the_unit_of_time_is_the_median_gap() -> None:
    times = [np.array([0.0, 0.5, 1.0, 1.5, 9.0]), np.array([3.0, 3.5, 4.1])]
    series = [Series(np.arange(len(t))[None].astype(float), label, t) for t, label in zip(times, "ab", strict=True)]
    data = build("gaps", [series] * 3)
    assert data.unit == 0.5
    torch.testing.assert_close(data.train.coords[..., 0], torch.tensor([[0, 1, 2, 3, 18], [0, 1, 2.2, 2.2, 2.2]]))
    assert data.train.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]


def test_sequence_forms_need_images() -> None:
    data = chirps(128, **FEW)
    for change in (as_sequence, noise_padded):
        with pytest.raises(ValueError, match=r"\bdata must"):
            change(data)
    assert permuted(data).size == (128,)
    with pytest.raises(ValueError, match=r"\bnoise must"):
        noise_padded(shapes(8, **FEW), 100, noise="none")
    with pytest.raises(ValueError, match=r"\blength must"):
        noise_padded(shapes(8, **FEW), 7)


@pytest.mark.parametrize("form", ["images", "sequences", "augmented"])
def test_one_order_of_pixels_for_all_splits_and_their_masks(form: str) -> None:
    numbers = torch.arange(12.0).view(1, 1, 3, 4)
    mask = (numbers[:, 0] % 3 != 0).expand(2, 3, 4)
    split = Split(numbers.expand(2, 1, 3, 4), torch.zeros(2), mask=mask, prepare=CropFlip(0, flip=False))
    split = split if form == "augmented" else replace(split, prepare=None)
    data = Data.from_splits("numbers", [split] * 3, classes=("a", "b"))
    mixed = permuted(as_sequence(data) if form == "sequences" else data, seed=3)
    assert mixed.size == (12,)
    orders = set()
    for part in (mixed.train, mixed.validation, mixed.test):
        for training in (False, True):
            batch = part.batch(slice(None), training=training)
            assert torch.equal(batch.mask, batch.inputs[:, 0] % 3 != 0)
            orders |= {tuple(row) for row in batch.inputs[:, 0].tolist()}
    (order,) = orders
    assert sorted(order) == list(range(12)) != list(order)


@given(st.floats(0, 0.95), st.integers(0, 3))
def test_a_share_is_dropped(share: float, seed: int) -> None:
    x = torch.randn(4, 2, 40)
    split = Split(x, torch.zeros(4))
    masked = drop_split(split, share, seed=seed)
    assert masked.mask.sum(dim=1).tolist() == [40 - int(40 * share + 1e-6)] * 4
    assert masked.coords is None
    points = drop_split(split, share, form="points", seed=seed)
    for i in range(4):
        places = torch.nonzero(masked.mask[i]).flatten()
        assert torch.equal(points.coords[i, :, 0], places.float())
        assert torch.equal(points.inputs[i], x[i, :, places])
    assert points.mask is None


def test_only_observed_samples_are_dropped() -> None:
    mask = torch.arange(10) < torch.tensor([[10], [4]])
    split = Split(torch.randn(2, 1, 10), torch.zeros(2), mask=mask)
    dropped = drop_split(split, 0.5)
    assert dropped.mask.sum(dim=1).tolist() == [5, 2]
    assert not (dropped.mask & ~mask).any()
    points = drop_split(split, 0.5, form="points")
    assert points.inputs.shape == (2, 1, 5)
    assert points.mask.tolist() == [[True] * 5, [True, True, False, False, False]]


def test_points_of_points_and_of_images_and_of_steps() -> None:
    coords = torch.rand(2, 10, 3)
    points = drop_split(Split(torch.randn(2, 1, 10), torch.zeros(2), coords=coords), 0.5, form="points")
    assert points.coords.shape == (2, 5, 3)
    assert all(row.tolist() in coords[0].tolist() for row in points.coords[0])
    image = torch.arange(12.0).view(1, 1, 3, 4)
    points = drop_split(Split(image, torch.zeros(1), step=(2.0, 0.5)), 0.5, form="points")
    row, column = points.coords[0].T
    assert torch.equal(points.inputs[0, 0], 4 * (row / 2) + column / 0.5)
    assert points.step == 1.0


def test_dropping_for_all_splits() -> None:
    data = drop_samples(shapes(8, **FEW), 0.25, observed=True)
    assert data.in_channels == 2
    batch = data.test.batch(slice(None))
    assert batch.inputs.shape == (3, 2, 8, 8)
    assert torch.equal(batch.inputs[:, 1] == 1, batch.mask)
    assert (batch.inputs[:, 0][~batch.mask] == 0).all()
    assert not torch.equal(data.train.mask[:2], data.validation.mask)


def test_dropping_is_refused_where_it_has_no_meaning() -> None:
    split = Split(torch.randn(2, 1, 10), torch.zeros(2))
    with pytest.raises(ValueError, match=r"\bshare must"):
        drop_split(split, 1)
    with pytest.raises(ValueError, match=r"\bform must"):
        drop_split(split, 0.5, form="coords")
    dense = copy_memory(5, **FEW)
    with pytest.raises(ValueError, match=r"\bform must"):
        drop_samples(dense, 0.5, form="points")
    assert drop_samples(dense, 0.5).train.mask.shape == (6, 25)
    tokens = listops(min_length=4, max_length=30, max_depth=4, max_args=4, **FEW)
    with pytest.raises(ValueError, match=r"\bobserved must"):
        drop_samples(tokens, 0.5, observed=True)
    assert drop_samples(tokens, 0.5, form="points").train.coords.shape[2] == 1


def test_masked_samples_and_points_give_a_layer_the_same_output() -> None:
    data: Data = chirps(128, **FEW)
    layer = CKConv(1, 3, size=128).double()
    masked, points = (drop_samples(data, 0.4, form=form).train.batch(slice(None)) for form in ("mask", "points"))
    on_grid = layer(masked.inputs.double(), **masked.sampling)
    kept = on_grid.transpose(1, 2)[masked.mask].view(6, -1, 3).transpose(1, 2)
    torch.testing.assert_close(layer(points.inputs.double(), **points.sampling), kept, atol=1e-6, rtol=1e-5)

"""The density of samples: by definition, where samples share a place, and where there are few."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield.ops import sample_density


def line(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64).view(1, -1, 1)


@given(times=st.lists(st.integers(0, 8), min_size=1, max_size=10), causal=st.booleans(), seed=st.integers(0, 99))
def test_samples_at_one_time_share_its_interval(times: list[int], causal: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    t = line(*map(float, times))[:, torch.randperm(len(times), generator=generator)]
    mask = torch.rand(1, len(times), generator=generator) < 0.8
    found = sample_density(t, mask, causal=causal)
    different = sorted(set(t[mask].flatten().tolist()))
    for time, seen, density in zip(
        t.flatten().tolist(), mask.flatten().tolist(), found.flatten().tolist(), strict=True
    ):
        if not seen:
            assert density == 1
            continue
        i = different.index(time)
        before = time - different[i - 1] if i else None
        after = different[i + 1] - time if i + 1 < len(different) else None
        sides = [side for side in ((before,) if causal else (before, after)) if side is not None]
        interval = sum(sides) / len(sides) if sides else 1.0
        count = int((t[mask] == time).sum())
        assert density == pytest.approx(count / interval)


@pytest.mark.parametrize("dim", [2, 3])
def test_a_ball_around_each_point(dim: int) -> None:
    coords = torch.rand(2, 30, dim, dtype=torch.float64)
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, 4:] = False  # fewer points than neighbours
    found = sample_density(coords, mask, 8)
    volume = {2: math.pi, 3: 4 * math.pi / 3}[dim]
    for sample, k in ((0, 8), (1, 3)):
        points = coords[sample, mask[sample]]
        radius = (points.unsqueeze(1) - points).norm(dim=-1).sort(dim=1).values[:, k]
        torch.testing.assert_close(found[sample, mask[sample]], k / (volume * radius**dim))
    assert (found[~mask] == 1).all()


def test_points_at_one_place() -> None:
    assert sample_density(torch.rand(1, 1, 3)).item() == 1
    assert (sample_density(torch.ones(2, 20, 3)) == 20).all()
    # More points at one place than neighbours: the ball reaches the next place.
    coords = torch.zeros(1, 21, 2, dtype=torch.float64)
    coords[0, 20] = 2.0
    found = sample_density(coords, neighbors=4)
    assert found[0, 0].item() == pytest.approx(20 / (math.pi * 8))
    assert found.isfinite().all()
    # A hundred points: distances by a matrix product would not be zero.
    many = 100 + torch.rand(1, 10, 2).repeat(1, 20, 1)
    assert sample_density(many, neighbors=4).isfinite().all()


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_points_share_the_weight_of_one(dim: int, dtype: torch.dtype) -> None:
    places = torch.rand(2, 12, dim, dtype=dtype)
    single = sample_density(places, neighbors=4)
    index = torch.tensor([*range(12), *[3] * 7, *range(6), 11])[torch.randperm(26)]
    unseen = torch.rand(2, 5, dim, dtype=dtype)
    mask = torch.cat([torch.ones(2, 26), torch.zeros(2, 5)], dim=1).bool()
    found = sample_density(torch.cat([places[:, index], unseen], dim=1), mask, neighbors=4)
    torch.testing.assert_close(found[:, :26], single[:, index] * index.bincount()[index])
    unchanged = torch.zeros(2, 12, dtype=dtype).index_add(1, index, 1 / found[:, :26])
    torch.testing.assert_close(unchanged, 1 / single)


@pytest.mark.parametrize("dim", [1, 2])
def test_gradients_are_finite(dim: int) -> None:
    coords = torch.rand(2, 12, dim, dtype=torch.float64)
    coords[:, 3] = coords[:, 4]
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    coords[1, 9:] = torch.nan
    coords.requires_grad_()
    sample_density(coords, mask).log().sum().backward()
    assert coords.grad is not None
    assert coords.grad[mask].isfinite().all()
    assert coords.grad[mask].abs().max() > 0


def test_bad_coordinates_are_refused() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"\bcoords must be finite"):
            sample_density(line(0.0, value, 1.0))
    with pytest.raises(ValueError, match=r"\bcoords must"):
        sample_density(torch.zeros(1, 0, 1))
    assert sample_density(torch.zeros(1, 4, 2), torch.zeros(1, 4, dtype=torch.bool)).tolist() == [[1.0] * 4]

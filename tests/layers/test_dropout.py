"""Dropout by random bits."""

from __future__ import annotations

import pytest
import torch

from kernelfield.layers.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_how_many_are_dropped_and_the_mean_is_kept(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(200_000)
    y = Dropout(p)(x)
    assert abs((y == 0).double().mean() - p) < 5e-3
    assert abs(y.double().mean() - 1) < 1e-2
    assert len(y.unique()) == 2


def test_neighbours_do_not_share_a_fate() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(100_000)) > 0).double() - 0.5
    for lag in range(1, 9):  # four values come of one word
        assert abs((kept[lag:] * kept[:-lag]).mean()) < 3e-3


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4, 6), (1, 1)])
def test_layouts_and_gradients(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).transpose(0, -1).requires_grad_()
    torch.manual_seed(1)
    y = Dropout(0.4)(x)
    assert y.shape == x.shape
    assert y.stride() == torch.empty_like(x).stride()
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * grad)


def test_parts_of_a_tensor() -> None:
    x = torch.randn(6, 8)[:, ::2]
    y = Dropout(0.4)(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - round(0.4 * 65536) / 65536))


def test_nothing_is_dropped_in_evaluation_or_with_probability_zero() -> None:
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))


def test_a_seed_decides() -> None:
    x, drop = torch.ones(1000), Dropout(0.3)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(drop(x))
    assert torch.equal(*found)

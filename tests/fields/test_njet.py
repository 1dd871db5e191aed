"""N-Jets: the contract, and the derivatives they are made of."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from kernelfield.fields import NJet
from tests.contracts.fields import FieldContract


class TestNJet(FieldContract):
    traced = "exports"
    field = NJet
    counts: ClassVar = {(1, 2): 2 * 5 + 1, (2, 3): 3 * 15 + 1, (3, 2): 2 * 35 + 1}
    bad_arguments: ClassVar = [
        ("order", -1, ValueError, "order .*got -1"),
        ("order", 1.5, TypeError, r"order .*got 1\.5"),
        ("sigma", 0.0, ValueError, r"sigma .*got 0\.0"),
        ("spacing", -1.0, ValueError, r"spacing .*got -1\.0"),
    ]


@pytest.mark.parametrize("orders", [(0, 0), (1, 0), (0, 2), (3, 1), (2, 3)], ids=str)
def test_features_are_derivatives_of_a_gaussian(orders):
    sigma, spacing = 1.7, (0.25, 0.5)
    field = NJet(2, 1, order=5, sigma=sigma, spacing=spacing).double()
    u = (4 * torch.rand(20, 2, dtype=torch.float64) - 2).requires_grad_()
    derivative = torch.exp(-u.square().sum(dim=1) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
    for axis, count in enumerate(orders):
        for _ in range(count):
            derivative = torch.autograd.grad(derivative.sum(), u, create_graph=True)[0][:, axis]
    factor = sigma ** sum(orders) / math.sqrt(math.prod(math.factorial(n) for n in orders))
    column = field.orders.tolist().index(list(orders))
    found = field.features(u * torch.tensor(spacing, dtype=torch.float64))[:, column]
    torch.testing.assert_close(found, factor * derivative, atol=1e-7, rtol=1e-5)


def test_a_field_of_order_0_has_integral_w_in_grid_steps():
    field = NJet(1, 1, order=0, sigma=2.0, spacing=0.1).double()
    steps = torch.arange(-40, 41, dtype=torch.float64)
    total = field(0.1 * steps[:, None]).sum()
    torch.testing.assert_close(total, field.coefficients.detach()[0, 0], atol=1e-12, rtol=0)


def test_far_points_of_high_orders_are_zero():
    assert (NJet(1, 2, order=60, spacing=1e-3)(torch.tensor([[1.0], [-1.0]])) == 0).all()


def test_the_spectrum_ends_where_the_highest_frequency_says():
    field = NJet(1, 1, order=9, sigma=3.0, spacing=1.0).double()
    with torch.no_grad():
        field.coefficients.zero_()[0, -1] = 1.0
    values = field(torch.arange(-256.0, 256.0, dtype=torch.float64)[:, None])[:, 0].detach()
    energy = torch.fft.rfft(values).abs().square()
    beyond = torch.fft.rfftfreq(512, dtype=torch.float64) > field.max_frequency().detach()
    assert energy[beyond].sum() < 0.01 * energy.sum()

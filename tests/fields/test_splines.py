"""Splines and tables: the contract, the basis, dilation, and interpolation."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import torch

from kernelfield.fields import BSpline, Table, cardinal_bspline
from kernelfield.grids import local_grid
from tests.contracts.fields import FieldContract

BAD_SIZES = [
    ("size", 0, ValueError, "size .*got 0"),
    ("size", (3, 3, 3), ValueError, r"size .*got \(3, 3, 3\)"),
    ("size", 2.5, TypeError, r"size .*got 2\.5"),
]


class TestBSpline(FieldContract):
    traced = "exports"
    field = BSpline
    counts: ClassVar = {(1, 3): 7 * 3, (2, 1): 49, (3, 2): 343 * 2}
    bad_arguments: ClassVar = [
        *BAD_SIZES,
        ("order", -1, ValueError, "order .*got -1"),
        ("spacing", 0.0, ValueError, r"spacing .*got 0\.0"),
        ("spacing", -1.0, ValueError, r"spacing .*got -1\.0"),
    ]


class TestCubicBSpline(FieldContract):
    traced = False
    field = BSpline
    arguments: ClassVar = {"order": 3, "size": 5, "spacing": 0.6}
    counts: ClassVar = {(1, 3): 15, (2, 1): 25}
    bad_arguments: ClassVar = [("order", 1.0, TypeError, r"order .*got 1\.0")]


class TestTable(FieldContract):
    traced = "compiles"
    field = Table
    counts: ClassVar = {(1, 3): 9, (2, 1): 9, (3, 2): 27 * 2}
    bad_arguments: ClassVar = BAD_SIZES


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_a_spline_is_the_spline_of_one_degree_less_convolved_with_a_box(order: int) -> None:
    x = torch.linspace(-4, 4, 161, dtype=torch.float64)
    offsets = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000 - 0.5
    expected = cardinal_bspline(x[:, None] - offsets, order - 1).mean(dim=1)
    torch.testing.assert_close(cardinal_bspline(x, order), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_a_spline_follows_the_recursion_in_its_degree(order: int) -> None:
    x = torch.linspace(-4, 4, 161, dtype=torch.float64)
    half = (order + 1) / 2
    left, right = cardinal_bspline(x + 0.5, order - 1), cardinal_bspline(x - 0.5, order - 1)
    expected = ((half + x) * left + (half - x) * right) / order
    torch.testing.assert_close(cardinal_bspline(x, order), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_shifted_splines_sum_to_one(order: int) -> None:
    x = torch.linspace(-0.5, 0.5, 101, dtype=torch.float64)
    total = sum(cardinal_bspline(x - k, order) for k in range(-4, 5))
    torch.testing.assert_close(total, torch.ones_like(x))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_spline_is_exactly_zero_outside_its_support(order: int) -> None:
    edge = (order + 1) / 2
    x = edge + torch.tensor([0.0, 1e-3, 1.0, 100.0])
    assert (cardinal_bspline(torch.cat([x, -x]), order) == 0).all()
    assert (cardinal_bspline(torch.tensor([-0.99 * edge, 0.99 * edge]), order) > 0).all()


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [(5,), (4,), (1,), (3, 4), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("spacing", [None, 0.3])
def test_nearby_coefficients_suffice(order: int, size: tuple[int, ...], spacing: float | None) -> None:
    dim = len(size)
    field = BSpline(dim, 2, size=size, order=order, spacing=spacing).double()
    coords = torch.rand(200, dim, dtype=torch.float64) * 4 - 2
    expected = torch.zeros(200, 2, dtype=torch.float64)
    for index, centre in enumerate(itertools.product(*map(range, size))):
        weight = torch.ones(200, dtype=torch.float64)
        for d, (k, n) in enumerate(zip(centre, size, strict=True)):
            h = spacing or (2 / (n - 1) if n > 1 else 1.0)
            weight = weight * cardinal_bspline((coords[:, d] - (k - (n - 1) / 2) * h) / h, order)
        expected = expected + weight[:, None] * field.coefficients[index]
    torch.testing.assert_close(field(coords), expected)


@pytest.mark.parametrize("scale", [0.37, 0.5, 2.0, 3.0, 2**0.5])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("dim", [1, 2])
def test_a_wider_lattice_is_the_dilated_field(dim: int, order: int, scale: float) -> None:
    field = BSpline(dim, 3, size=5, order=order, spacing=0.4).double()
    wider = BSpline(dim, 3, size=5, order=order, spacing=0.4 * scale).double()
    wider.load_state_dict(field.state_dict())
    coords = (torch.rand(300, dim, dtype=torch.float64) * 4 - 2) * scale
    values = wider(coords)
    assert (values != 0).any()
    torch.testing.assert_close(values, field(coords / scale), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, (3, 4), (2, 5), (3, 2, 3)], ids=str)
def test_a_table_holds_its_weights_on_its_grid(size: Any, dtype: torch.dtype) -> None:
    dim = len(size) if isinstance(size, tuple) else 1
    table = Table(dim, 3, size=size).to(dtype)
    values = table(local_grid(size, dim=dim, dtype=dtype))
    torch.testing.assert_close(values.flatten(0, -2), table.coefficients.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [3, 5, 9, 17])
def test_a_table_is_exact_where_its_grid_is(size: int) -> None:
    table = Table(2, 3, size=size)
    assert table(local_grid(size, dim=2)).flatten(0, 1).equal(table.coefficients)


def test_a_table_is_multilinear_between() -> None:
    table = Table(2, 3, size=(3, 5)).double()
    weights = table.coefficients.unflatten(0, (3, 5))
    for i, j, u, v in [(0, 0, 0.25, 0.5), (1, 3, 0.9, 0.1), (0, 2, 0.0, 0.7)]:
        coords = torch.tensor([-1 + (i + u), -1 + (j + v) / 2], dtype=torch.float64)
        low, high = weights[i, j : j + 2], weights[i + 1, j : j + 2]
        near, far = (1 - u) * low + u * high
        torch.testing.assert_close(table(coords), (1 - v) * near + v * far)


def test_a_table_falls_to_zero_within_one_step_outside() -> None:
    table = Table(1, 1, size=3)
    last = table.coefficients[-1].item()
    assert table(torch.tensor([1.5])).item() == pytest.approx(0.5 * last)
    assert (table(torch.tensor([[2.0], [-2.0], [1e6], [-1e6]])) == 0).all()


@pytest.mark.parametrize("order", [8, 21, 100])
def test_splines_of_high_degree_sum_to_one_in_single_precision(order: int) -> None:
    x = torch.linspace(-0.5, 0.5, 7)
    reach = order // 2 + 2
    total = sum(cardinal_bspline(x - k, order) for k in range(-reach, reach + 1))
    torch.testing.assert_close(total, torch.ones(7), atol=1e-5, rtol=0)


def test_both_formulas_of_a_spline_agree() -> None:
    x = torch.linspace(-5, 5, 41, dtype=torch.float64)
    half = 4.5
    left, right = cardinal_bspline(x + 0.5, 7), cardinal_bspline(x - 0.5, 7)
    expected = ((half + x) * left + (half - x) * right) / 8
    torch.testing.assert_close(cardinal_bspline(x, 8), expected, atol=1e-12, rtol=0)

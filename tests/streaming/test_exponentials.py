"""Fits of kernels by damped oscillations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelfield as kf
from kernelfield.streaming.exponentials import Oscillations, fit_kernels


def oscillations(kernels: int, order: int, points: int) -> Oscillations:
    """Return sums of well separated oscillations that decay within the kernel."""
    shape = (kernels, order)
    damping = torch.empty(shape, dtype=torch.float64).uniform_(2, 12) / points
    frequency = torch.stack([torch.randperm(order) for _ in range(kernels)]).double()
    frequency = (frequency + 0.2 + 0.6 * torch.rand(shape, dtype=torch.float64)) * (2.5 / order)
    return Oscillations(damping, frequency, *(1 + torch.rand(shape, dtype=torch.float64) for _ in range(2)))


@settings(max_examples=10)
@given(order=st.sampled_from([1, 2, 3, 4, 6]), points=st.integers(150, 400), seed=st.integers(0, 99))
def test_sums_of_oscillations_are_found_again(order: int, points: int, seed: int) -> None:
    torch.manual_seed(seed)
    kernels = oscillations(3, order, points).values(points)
    fit, orders, errors = fit_kernels(kernels, tolerance=1e-6)
    assert orders.tolist() == [order] * 3
    assert float(errors.max()) < 1e-6
    torch.testing.assert_close(fit.values(points), kernels, rtol=0, atol=1e-5)


def siren_kernels(points: int = 200) -> torch.Tensor:
    torch.manual_seed(0)
    return kf.CKConv(1, 3, size=points, causal=True).kernel().detach().flatten(0, 1)


def test_tolerance_is_kept_and_errors_are_those_of_the_kernels() -> None:
    kernels = siren_kernels()
    fit, orders, errors = fit_kernels(kernels, tolerance=1e-3)
    wanted = (fit.values(200) - kernels.double()).norm(dim=1) / kernels.double().norm(dim=1)
    torch.testing.assert_close(errors, wanted, rtol=1e-3, atol=1e-9)
    assert float(errors.max()) < 1e-3
    assert int(orders.max()) <= 32


@pytest.mark.parametrize("frequency", [0.02, 2.5], ids=["smooth", "beyond the coarse grid"])
def test_long_kernels(frequency: float) -> None:
    t = torch.arange(3000, dtype=torch.float64)
    kernels = torch.exp(-t / 500) * torch.stack([torch.cos(frequency * t), torch.sin(0.01 * t) + torch.cos(0.03 * t)])
    fit, orders, errors = fit_kernels(kernels, tolerance=1e-5)
    assert orders.tolist() == [1, 2]
    torch.testing.assert_close(errors, (fit.values(3000) - kernels).norm(dim=1) / kernels.norm(dim=1))
    assert float(errors.max()) < 1e-5


def test_kernels_that_are_cut_above_zero_take_few_oscillations() -> None:
    t = torch.linspace(0, 1, 300, dtype=torch.float64)
    waves = torch.stack([torch.cos(2 * torch.pi * n * t + n) for n in (3, 8, 13)])
    kernels = torch.exp(-2.3 * t**2) * torch.stack([waves[0] + waves[1], waves[1] + waves[2]])
    _, orders, errors = fit_kernels(kernels, tolerance=1e-3)
    assert float(errors.max()) < 1e-3
    assert int(orders.max()) <= 16


def test_a_hopeless_search_stops() -> None:
    torch.manual_seed(0)
    fit, _, errors = fit_kernels(torch.randn(400, 200), tolerance=1e-3, max_order=2, refine=0, stop=True)
    assert len(errors) == len(fit.damping) < 400
    assert float(errors.max()) > 1e-3


def test_a_looser_tolerance_needs_fewer_oscillations() -> None:
    kernels = siren_kernels()
    loose, tight = (fit_kernels(kernels, tolerance=t)[1] for t in (1e-1, 1e-3))
    assert (loose < tight).all()


def test_refinement_lowers_the_error() -> None:
    kernels = siren_kernels()
    plain, refined = (fit_kernels(kernels, order=8, refine=n)[2] for n in (0, 20))
    assert (refined <= plain * 1.0001).all()
    assert float(refined.mean()) < 0.7 * float(plain.mean())


def test_poles_are_stable_though_kernels_grow() -> None:
    t = torch.arange(150, dtype=torch.float64)
    fit, _, errors = fit_kernels((0.01 * t).exp().unsqueeze(0) * torch.cos(0.2 * t), tolerance=1e-3)
    assert (fit.damping > 0).all()
    assert float(errors.max()) < 1e-3


@pytest.mark.parametrize("kernel", [torch.zeros(1, 100), torch.ones(1, 100), torch.eye(100)[:1]])
def test_kernels_of_little_content(kernel: torch.Tensor) -> None:
    fit, _, errors = fit_kernels(kernel, tolerance=1e-3, max_order=4)
    assert all(tensor.isfinite().all() for tensor in fit.tensors())
    assert float(errors.max()) < 0.05

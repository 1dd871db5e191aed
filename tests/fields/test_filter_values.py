"""Filters of a CPU against their reference: values, gradients of both orders, stacked networks."""

from __future__ import annotations

import pytest
import torch

from kernelfield.fields import MAGNet
from kernelfield.fields._maps import filter_values, filter_values_reference

CASES = [(2, True, ()), (2, False, ()), (3, True, (2,)), (3, False, (2,)), (3, None, ()), (2, None, (2,))]


def draw(dim: int, isotropic: bool | None, stack: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list:
    """Return coordinates and leaves: frequencies, phases and, with envelopes, inverse widths and centres."""
    torch.manual_seed(0)
    shapes = [(*stack, 5, dim), (*stack, 5)]
    if isotropic is not None:
        shapes += [(*stack, 5, 1 if isotropic else dim), (*stack, 5, dim)]
    leaves = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return [2 * torch.rand(9, dim, dtype=dtype) - 1, *leaves, *[None] * (4 - len(leaves))]


@pytest.mark.parametrize(("dim", "isotropic", "stack"), CASES)
def test_values_and_gradients_equal_the_reference(dim: int, isotropic: bool | None, stack: tuple[int, ...]) -> None:
    inputs = draw(dim, isotropic, stack)
    leaves = [t for t in inputs[1:] if t is not None]
    values, wanted = filter_values(*inputs), filter_values_reference(*inputs)
    assert type(values.grad_fn).__name__ == "_FilterValuesBackward"
    torch.testing.assert_close(values, wanted)
    weight = torch.randn_like(values)
    ours, theirs = (torch.autograd.grad((v * weight).sum(), leaves) for v in (values, wanted))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("dim", "isotropic", "stack"), CASES)
def test_second_derivatives(dim: int, isotropic: bool | None, stack: tuple[int, ...]) -> None:
    coords, *leaves = draw(dim, isotropic, stack)
    leaves = [t for t in leaves if t is not None]
    assert torch.autograd.gradgradcheck(lambda *t: filter_values(coords, *t), leaves)


def test_coordinates_that_need_a_gradient_get_one() -> None:
    coords, *leaves = draw(2, False, ())
    coords.requires_grad_()
    assert torch.autograd.gradcheck(lambda c: filter_values(c, *leaves), coords)


def test_narrow_envelopes_keep_their_gradients_in_single_precision() -> None:
    """Sums of squares are expanded around 0; a narrow envelope far from 0 must not lose its digits to that."""
    coords, frequency, phase, gamma, mean = draw(3, False, (), torch.float32)
    inputs = [coords, frequency, phase, (15 + gamma).detach().requires_grad_(), mean.detach().sign().requires_grad_()]
    # Points around the centres, where the envelopes are not zero.
    inputs[0] = (inputs[4][torch.randint(5, (4000,))] + 0.05 * torch.randn(4000, 3)).detach()
    wanted = [None if t is None else t.detach().double().requires_grad_() for t in inputs]
    wanted[0] = wanted[0].detach()
    weight = torch.randn(4000, 5)
    ours = torch.autograd.grad((filter_values(*inputs) * weight).sum(), inputs[1:])
    theirs = torch.autograd.grad((filter_values_reference(*wanted) * weight).sum(), wanted[1:])
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() < 1e-4 * b.norm()


def test_a_subclass_keeps_its_own_envelope() -> None:
    class Twice(MAGNet):
        def envelope(self, coords: torch.Tensor, *shape: torch.Tensor) -> torch.Tensor:
            return 2 * super().envelope(coords, *shape)

    torch.manual_seed(0)
    plain = MAGNet(2, 3, layers=1)
    torch.manual_seed(0)
    twice = Twice(2, 3, layers=1)
    coords = torch.rand(5, 2)
    assert not torch.allclose(plain(coords), twice(coords))

"""The sum of norms equals torch's own, with derivatives of every order."""

from __future__ import annotations

import pytest
import torch

from kernelfield.ops.sum_of_norms import sum_of_norms, sum_of_norms_reference


def some(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(3, 2, 5), (4,), (1, 1), ()]
    return [torch.randn(shape, generator=numbers, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_value_and_gradients_are_those_of_torch(dtype: torch.dtype) -> None:
    tensors = some(dtype)
    value, expected = sum_of_norms(tensors), sum_of_norms_reference(*tensors)
    torch.testing.assert_close(value, expected)
    found = torch.autograd.grad(3 * value, tensors)
    torch.testing.assert_close(found, torch.autograd.grad(3 * expected, tensors))
    assert [g.dtype for g in found] == [dtype] * len(tensors)


def test_derivatives_of_second_order() -> None:
    assert torch.autograd.gradcheck(lambda *t: sum_of_norms(t), some())
    assert torch.autograd.gradgradcheck(lambda *t: sum_of_norms(t), some())


def test_zeros_have_no_gradient_and_nan_is_kept() -> None:
    zeros, bad = torch.zeros(3, requires_grad=True), torch.tensor([1.0, float("nan")], requires_grad=True)
    (first,) = torch.autograd.grad(sum_of_norms([zeros, torch.ones(2)]), zeros)
    assert first.tolist() == [0, 0, 0]
    (second,) = torch.autograd.grad(sum_of_norms([zeros, bad]), bad)
    assert bool(second.isnan().all())


def test_several_dtypes_and_frozen_tensors() -> None:
    wide, narrow = torch.ones(4, requires_grad=True), torch.ones(9, dtype=torch.bfloat16)
    value = sum_of_norms([wide, narrow])
    assert value.item() == 5
    value.backward()
    assert wide.grad is not None
    assert wide.grad.tolist() == [0.5] * 4


def test_per_sample_gradients() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    grads = torch.func.vmap(torch.func.grad(lambda t: sum_of_norms([t, torch.ones(2)])))(rows)
    torch.testing.assert_close(grads, torch.tensor([[0.6, 0.8], [0.6, 0.8]]))

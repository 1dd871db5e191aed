"""Batch normalisation of planes with a group among their channels, channels last in memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernelfield.layers.group import GroupBatchNorm
from kernelfield.ops.fused.folded_norm import folded_batch_norm, is_folded


def signal(
    batch: int = 3, channels: int = 4, group: int = 2, size: int = 5, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    x = 2 * torch.randn(batch, channels * group, size, size + 1, dtype=dtype) + 3
    return x.contiguous(memory_format=torch.channels_last).unflatten(1, (channels, group))


def test_only_whole_channels_last_signals_are_folded() -> None:
    assert is_folded(signal())
    assert not is_folded(signal().contiguous())
    assert not is_folded(signal()[:, :, :, 1:])
    assert not is_folded(signal()[:, 1:])
    assert not is_folded(torch.randn(2, 3, 4, 5))
    assert not is_folded(torch.randn(0, 3, 4, 5, 5))


@pytest.mark.parametrize("channels", [1, 4])
def test_values_gradients_and_averages_agree_with_torch(channels: int) -> None:
    x = signal(channels=channels).requires_grad_()
    weight, bias = (torch.randn(channels, dtype=torch.float64, requires_grad=True) for _ in range(2))
    seed = torch.randn(x.shape, dtype=torch.float64)
    found = []
    for norm in (folded_batch_norm, None):
        averages = torch.zeros(channels, dtype=torch.float64), torch.ones(channels, dtype=torch.float64)
        if norm is None:
            y = F.batch_norm(x.contiguous(), *averages, weight, bias, True, 0.3, 1e-3)
        else:
            y = norm(x, weight, bias, *averages, training=True, momentum=0.3, eps=1e-3)
            assert is_folded(y)
        grads = torch.autograd.grad((y * seed).sum(), (x, weight, bias))
        assert norm is None or is_folded(grads[0])
        found.append((y, *grads, *averages))
    torch.testing.assert_close(found[0], found[1])


def test_averages_in_evaluation() -> None:
    x, weight, bias = signal(), torch.rand(4).double().requires_grad_(), torch.rand(4).double()
    mean, variance = torch.rand(4).double(), 1 + torch.rand(4).double()
    y = folded_batch_norm(x, weight, bias, mean, variance, training=False, momentum=0.1, eps=1e-5)
    torch.testing.assert_close(y, F.batch_norm(x.contiguous(), mean, variance, weight, bias, False))
    assert is_folded(y)
    assert y.requires_grad


def test_gradients() -> None:
    x = signal(2, 2, 3, 2).requires_grad_()
    weight, bias = (torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return folded_batch_norm(x, weight, bias, None, None, training=True, momentum=0.1, eps=1e-3)

    # Perturbed values are laid out anew.
    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
        return norm(flat.unflatten(1, x.shape[1:3]), weight, bias)

    assert torch.autograd.gradcheck(run, (x, weight, bias))
    assert torch.autograd.gradgradcheck(run, (x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_layer_takes_either_layout(dtype: torch.dtype) -> None:
    norm, other = GroupBatchNorm(4), GroupBatchNorm(4)
    x = signal(dtype=torch.float32).to(dtype)
    assert is_folded(x)
    for _ in range(2):
        y, wanted = norm(x), other(x.contiguous())
        assert y.dtype == dtype
        torch.testing.assert_close(y, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=2e-2)
    torch.testing.assert_close(norm.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-4)
    norm.eval(), other.eval()
    torch.testing.assert_close(norm(x), other(x.contiguous()), rtol=2e-2, atol=2e-2)


def test_a_norm_used_twice_has_the_same_gradients_for_second_derivatives() -> None:
    x = signal(2, 2, 3, 2)
    weight, bias = (torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def norm(x: torch.Tensor) -> torch.Tensor:
        return folded_batch_norm(x, weight, bias, None, None, training=True, momentum=0.1, eps=1e-3)

    found = [
        torch.autograd.grad(norm(norm(x).exp()).pow(3).sum(), (weight, bias), create_graph=again)
        for again in (False, True)
    ]
    torch.testing.assert_close(found[0], found[1])


def test_second_derivatives_with_fixed_scales() -> None:
    x, fixed = signal(2, 2, 3, 2).requires_grad_(), torch.ones(2, dtype=torch.float64)
    y = folded_batch_norm(x, fixed, fixed, None, None, training=True, momentum=0.1, eps=1e-3)
    (slope,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    assert torch.autograd.grad(slope.square().sum(), x)[0].isfinite().all()

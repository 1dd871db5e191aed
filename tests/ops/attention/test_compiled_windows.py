"""Windows in code that is compiled for a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernelfield.ops.attention.windows import windows


@pytest.mark.slow
@pytest.mark.parametrize(("points", "length", "dilation"), [(2, 2, 1), (3, 3, 1), (3, 5, 2), (3, 4, 1)])
def test_gradients_where_a_kernel_covers_the_signal(points: int, length: int, dilation: int) -> None:
    """Torch 2.13 compiles the gradient of ``unfold`` with one position to wrong numbers, or to a crash."""
    torch.compiler.reset()
    x = torch.randn(2, 10, length, length, requires_grad=True)
    weight = torch.randn(points * points)

    def loss(x: Tensor) -> Tensor:
        return (windows(x, [points] * 2, [0] * 2, dilation).flatten(-2) * weight).sum(dim=-1).square().sum()

    (found,) = torch.autograd.grad(torch.compile(loss)(x), x)
    (wanted,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_window_of_the_whole_signal_is_the_signal(dilation: int) -> None:
    x = torch.randn(2, 5, 5)
    found = windows(x, [1 + 4 // dilation] * 2, [0, 0], dilation)
    torch.testing.assert_close(found, x[:, None, None, ::dilation, ::dilation])

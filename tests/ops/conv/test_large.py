"""Kernels index signals of more than 2³¹ elements correctly. Only the memory pages in use are allocated."""

from __future__ import annotations

import pytest
import torch

from kernelfield.ops import conv
from tests.ops.interpreted import DEVICE, interpreter, launch, lines, outer, toeplitz, transform

__all__ = ["interpreter"]

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="a GPU allocates what it is asked for")
FAR = 1 << 31


@pytest.fixture
def far() -> torch.Tensor:
    """Return a signal whose second batch entry begins after 2³¹ elements."""
    return torch.empty(FAR + 4096, dtype=torch.bfloat16)


def filled(far: torch.Tensor, count: int) -> torch.Tensor:
    """Fill the first samples of both batch entries, and return them."""
    near = torch.randn(2, count).bfloat16()
    far[:count], far[FAR : FAR + count] = near
    return near.float()


def taken(far: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first samples of both batch entries."""
    return torch.stack([far[:count], far[FAR : FAR + count]]).float()


def gradients(x: torch.Tensor, kernel: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the first samples of a causal convolution."""
    x, kernel = x.requires_grad_(), kernel.requires_grad_()
    return torch.autograd.grad(conv(x, kernel, causal=True, groups=x.shape[1], method="direct"), (x, kernel), weights)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got.view(expected.shape) - expected).norm() <= 1e-2 * expected.norm()


def test_toeplitz_products(far: torch.Tensor) -> None:
    x, kernel, y = filled(far, 64), torch.randn(1, 1, 64), torch.empty_like(far)
    taps, numbers, how = lines._arguments(x[:, None], kernel, True, lines.ToeplitzTile(outputs=64))
    batch, _, *rest = numbers
    toeplitz.toeplitz_kernel[(1, 1, 1)](far, taps, y, batch, FAR // 64, *rest, **how)
    assert_near(taken(y, 64), conv(x[:, None], kernel, causal=True, method="direct"))


def test_gradients_of_toeplitz_products(far: torch.Tensor) -> None:
    x, kernel, grad_x = filled(far, 64), torch.randn(1, 1, 64), torch.empty_like(far)
    grad, grad_kernel = torch.empty_like(far), torch.empty(64)
    weights = filled(grad, 64)
    tile = lines.ToeplitzTile(outputs=64)
    taps, (batch, _, *rest), how = lines._arguments(x[:, None], kernel, True, tile)
    blocks = 64 // (width := tile.window - lines.SIDE)
    toeplitz.toeplitz_grads_kernel[(1, blocks + 1)](
        *(grad, far, taps, grad_x, grad_kernel, batch, FAR // 64, *rest, 0, blocks, 1),
        TJ=lines.SIDE,
        W=width,
        ROUNDS=1,
        **how,
    )
    for_x, for_kernel = gradients(x[:, None], kernel, weights[:, None])
    assert_near(taken(grad_x, 64), for_x)
    assert_near(grad_kernel, for_kernel)


def test_transform(far: torch.Tensor) -> None:
    x, kernel, y = filled(far, 4 * 256).view(2, 4, 256), torch.randn(4, 1, 256), torch.empty_like(far)
    call = launch.Call((2, 4, 256), (256,), torch.bfloat16, torch.device("cpu"), True, (False,))
    plan = call.plan
    none = call.tables[:0]
    transform.conv_kernel[(1, 1)](
        *(far, kernel, y, call.tables, none, none),
        *(2, FAR // 256, call.hop, plan.rows, plan.cols, plan.length, *call.sizes),
        READY=False,
        HOLD=True,
        CONJUGATE=False,
        EACH=2,
        TILES=1,
        **call.sides,
        **call.kind,
    )
    assert_near(taken(y, 4 * 256), conv(x, kernel, causal=True, groups=4, method="direct"))


@pytest.mark.parametrize("each", [1, 2])
def test_gradients_of_the_transform(far: torch.Tensor, each: int) -> None:
    x, kernel, grad_x = filled(far, 4 * 256).view(2, 4, 256), torch.randn(4, 1, 256), torch.empty_like(far)
    grad = torch.empty_like(far)
    weights = filled(grad, 4 * 256).view(2, 4, 256)
    call = launch.Call((2, 4, 256), (256,), torch.bfloat16, torch.device("cpu"), True, (False,))
    plan = call.plan
    none = call.tables[:0]
    sums = torch.empty(FAR + 4096)  # of two parts of the batch, as far from each other
    transform.grads_kernel[(1, 2 // each, 1)](
        *(grad, far, kernel, grad_x, sums, call.tables, none, none, none, none),
        *(2, FAR // 256, call.hop, plan.rows, plan.cols, plan.length, *call.sizes),
        READY=False,
        HOLD=True,
        SPECTRAL=False,
        NEED_X=True,
        EACH=each,
        TILES=1,
        C=call.sides["K2"],
        **call.sides,
        **call.kind,
    )
    for_x, for_kernel = gradients(x, kernel, weights)
    assert_near(taken(grad_x, 4 * 256), for_x)
    assert_near(taken(sums, 4 * 256)[: 2 // each].sum(0), for_kernel)


def test_outer_transform(far: torch.Tensor) -> None:
    x = filled(far, 2 * 96)
    call = launch.Call((2, 1, 2, 96), (3, 191), torch.bfloat16, torch.device("cpu"), False, (False, False))
    none, size = call.tables[:0], {"R": call.r, "Q": call.q, "EACH": 2}
    parts = torch.empty(2, 2, 2, 96)
    numbers = (2, 1, FAR, 0, 2, 2, 96, 192)
    outer.split_kernel[(1, 1, 1)](
        *(far, parts, call.outer_tables[0], none, *numbers), BLOCK_Q=call.q, **size, **call.outer_kind
    )
    y = torch.empty_like(far)
    outer.merge_kernel[(1, 1, 1)](
        *(parts, y, call.outer_tables[1], none, none, *numbers), BLOCK_R=call.r, **size, **call.outer_kind
    )
    torch.testing.assert_close(taken(y, 192), x, rtol=1e-2, atol=1e-2)

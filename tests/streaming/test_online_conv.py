"""Convolutions of signals that arrive in pieces equal those of the signals as a whole."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield import ops
from kernelfield.streaming import OnlineConv
from kernelfield.streaming.online_conv import BLOCK


@st.composite
def partitions(draw: st.DrawFn, total: int) -> list[int]:
    """Draw sizes of blocks that sum to ``total``, zero and one among them."""
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=12)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def pushed(online: OnlineConv, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.cat([online(piece) for piece in x.split(sizes, dim=2) if piece.shape[2]], dim=2)


@given(data=st.data(), points=st.integers(1, 600), length=st.integers(1, 1500), groups=st.sampled_from([1, 3]))
def test_any_partition_gives_the_convolution(data: st.DataObject, points: int, length: int, groups: int) -> None:
    x = torch.randn(2, 3, length, dtype=torch.float64)
    kernel = torch.randn(3 if groups == 3 else 4, 3 // groups, points, dtype=torch.float64)
    y = pushed(OnlineConv(kernel, groups=groups, batch=2), x, data.draw(partitions(length)))
    wanted = ops.conv(x, kernel[..., : 2 * length], causal=True, groups=groups)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-10 * math.sqrt(points))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("points", [1, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 7 * BLOCK])
def test_single_samples_give_the_convolution(groups: int, points: int, dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 9 * BLOCK + 5, dtype=dtype)
    kernel = torch.randn(2, 2 // groups, points, dtype=dtype) / math.sqrt(points)
    y = pushed(OnlineConv(kernel, groups=groups), x, [1] * x.shape[2])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(y, ops.conv(x, kernel, causal=True, groups=groups), rtol=0, atol=tolerance)


def test_zeros_at_the_end_of_a_kernel_need_no_memory() -> None:
    kernel = torch.zeros(2, 1, 4096)
    kernel[..., :100] = 1
    online = OnlineConv(kernel, groups=2)
    assert online.history.shape[-1] == BLOCK
    assert online.pending.shape[-1] == 2 * BLOCK


def test_a_kernel_of_zeros_gives_zeros() -> None:
    assert torch.equal(OnlineConv(torch.zeros(2, 2, 300))(torch.randn(1, 2, 200)), torch.zeros(1, 2, 200))


def test_memory_does_not_grow_with_the_signal() -> None:
    online = OnlineConv(torch.randn(2, 1, 500), groups=2)
    before = sum(tensor.numel() for tensor in online.state().values())
    online(torch.randn(1, 2, 3000))
    assert sum(tensor.numel() for tensor in online.state().values()) == before
    assert before < 2 * 6 * 500


def test_one_signal_starts_later_than_the_other() -> None:
    x, kernel = torch.randn(2, 3, 700, dtype=torch.float64), torch.randn(4, 3, 400, dtype=torch.float64)
    online = OnlineConv(kernel, batch=2)
    first = online(x[..., :333])
    online.reset([1])
    y = torch.cat([first, online(x[..., 333:])], dim=2)
    torch.testing.assert_close(y[:1], ops.conv(x[:1], kernel, causal=True))
    torch.testing.assert_close(y[1:, :, 333:], ops.conv(x[1:, :, 333:], kernel, causal=True))


def test_work_per_sample_grows_with_the_logarithm_squared() -> None:
    def segments(length: int) -> list[int]:
        return OnlineConv(torch.ones(1, 1, length)).sizes[1:]

    # Each segment of size S is one FFT of 2S points every S samples.
    work = {n: sum(2 * math.log2(2 * size) for size in segments(n)) for n in (2**12, 2**16)}
    assert work[2**16] / work[2**12] < (16 / 12) ** 2 * 1.5

"""Dropout of a slab: the draws that one process would make for the whole signal."""

from __future__ import annotations

import pytest
import torch

from kernelfield.ops.fused import drop
from kernelfield.parallel.dropout import drop_part

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 37), (4, 8, 64, 10), (1, 140, 5001)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("few_bits", [False, True])
def test_slabs_are_dropped_as_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool, few_bits: bool
) -> None:
    whole = torch.randn(shape, device=DEVICE, dtype=dtype)
    if channels_last:
        whole = whole.movedim(1, -1).contiguous().movedim(-1, 1)
    torch.manual_seed(0)
    expected = drop(whole, 0.3, few_bits=few_bits)
    cut = shape[2] // 3
    parts = []
    for start, stop in ((0, cut), (cut, shape[2])):
        torch.manual_seed(0)
        slab = whole[:, :, start:stop]
        slab = slab.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else slab.contiguous()
        parts.append(drop_part(slab, 0.3, 2, start, shape[2], few_bits=few_bits))
    torch.testing.assert_close(torch.cat(parts, dim=2), expected)
    assert 0.2 < (expected == 0).double().mean() < 0.4

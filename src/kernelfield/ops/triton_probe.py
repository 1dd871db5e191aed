"""A tiny Triton kernel, launched once to test whether kernels compile and run on this machine."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["probe"]


@triton.jit
def _add_one(x, n, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    mask = index < n
    tl.store(x + index, tl.load(x + index, mask=mask) + 1, mask=mask)


def probe(device: torch.device) -> None:
    """Launch a kernel on ``device``; raise its error, or a RuntimeError if its result is wrong."""
    x = torch.zeros(3, device=device)
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        _add_one[(1,)](x, 3, SIZE=16)
    if x.tolist() != [1.0, 1.0, 1.0]:
        raise RuntimeError(f"a kernel that adds one to zeros gave {x.tolist()}")

"""Small networks with a learned architecture, and their masks and layers."""

from __future__ import annotations

from typing import Any

import torch

from kernelfield import CCNN, DNArch
from kernelfield.layers import ContinuousConv

SMALL: dict[str, Any] = {"channels": 8, "blocks": 2, "sigma": 0.2, "hidden": 8}
SHAPES = [(1, 33, {}), (1, 32, {"causal": False}), (2, (9, 14), {}), (3, 6, {"norm": "layer"})]


def build(dim: int = 2, size: int | tuple[int, ...] = 12, *, readout: str = "mean", **options: Any) -> DNArch:
    torch.manual_seed(1)
    own = ("learn", "budget", "fixed_shapes", "max_width", "max_depth")
    given = {name: options.pop(name) for name in own if name in options}
    if readout == "dense":  # a causal one cannot learn its resolution
        options.setdefault("causal", False)
    return DNArch(CCNN(2, 3, dim=dim, size=size, readout=readout, **{**SMALL, **options}), **given)


def moved(net: DNArch, seed: int = 0) -> DNArch:
    """Return ``net`` with masks that differ between all blocks and axes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for mask, spread, shift in ((net.width, 0.5, 0.0), (net.resolution, 1.5, -0.9), (net.depth, 0.0, 0.3)):
            if mask is not None:
                mask.offset += spread * (torch.rand(mask.offset.shape, generator=generator) - 0.5) + shift
                mask.offset.clamp_(*mask.limits())
    return net


def signal(dim: int, size: int | tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, 2, *((size,) * dim if isinstance(size, int) else size), dtype=dtype)


def masks(net: DNArch) -> list[torch.Tensor]:
    return [p for m in (net.width, net.resolution, net.depth) if m is not None for p in m.parameters()]


def convs(net: torch.nn.Module) -> list[ContinuousConv]:
    return [m for m in net.modules() if isinstance(m, ContinuousConv)]

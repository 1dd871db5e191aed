"""Convolutions between points for tests: drawn shapes, one of each kind, and their sum by definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

__all__ = ["KINDS", "Case", "Waves", "cases", "reference", "relative"]

#: how far points extend along each axis, by number of axes
SPAN = {1: 80.0, 2: 12.0, 3: 4.0}


class Waves(nn.Module):
    """A smooth kernel with parameters: waves up to half of the Nyquist frequency, decaying or not."""

    def __init__(self, dim: int, channels: int, size: float, decay: float) -> None:
        super().__init__()
        frequency = torch.rand(dim, channels, dtype=torch.float64) * 2 - 1
        self.frequency = nn.Parameter(frequency * size * math.pi / 2)
        self.phase = nn.Parameter(torch.rand(channels, dtype=torch.float64) * 6)
        self.decay = decay

    def forward(self, offsets: Tensor) -> Tensor:
        waves = torch.sin(offsets @ self.frequency.to(offsets) + self.phase.to(offsets))
        return waves * torch.exp(-self.decay * offsets.square().sum(dim=-1, keepdim=True))


@dataclass(frozen=True)
class Case:
    """Shapes and arguments of one convolution between points.

    Args:
        dim: number of axes.
        batch: number of samples.
        points: number of points.
        queries: number of queries; None for outputs at the points.
        shared: whether all samples have the same coordinates.
        masked: whether some of the points are padding.
        out_channels: output channels, for 3 input channels.
        groups: 3 for a depthwise convolution.
        causal: whether the convolution is causal.
        long: whether the kernel reaches further than the points extend; else it decays within a third of that,
            in space a half.
        seed: of all values.
    """

    dim: int = 1
    batch: int = 2
    points: int = 40
    queries: int | None = None
    shared: bool = False
    masked: bool = False
    out_channels: int = 3
    groups: int = 3
    causal: bool = False
    long: bool = True
    seed: int = 0

    def build(self, dtype: torch.dtype = torch.float64) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return values, coordinates, kernel and size, and the other arguments."""
        torch.manual_seed(self.seed)
        span, rows = SPAN[self.dim], 1 if self.shared else self.batch
        coords = torch.rand(rows, self.points, self.dim, dtype=torch.float64) * span - 3
        at = None
        if self.queries is not None:
            at = (torch.rand(rows, self.queries, self.dim, dtype=torch.float64) * span - 3).to(dtype)
        x, mask = torch.randn(self.batch, 3, self.points, dtype=torch.float64), None
        if self.masked:
            mask = torch.rand(self.batch, self.points) < 0.7
            x = x * mask.unsqueeze(1)
        size = 1.5 * span if self.long else span / (3 if self.dim < 3 else 2)
        kernel = Waves(self.dim, self.out_channels * 3 // self.groups, size, 0.0 if self.long else 12.0)
        how = {"out_channels": self.out_channels, "groups": self.groups, "causal": self.causal, "mask": mask, "at": at}
        return (x.to(dtype), coords.to(dtype), kernel, torch.full((self.dim,), size, dtype=dtype)), how


@st.composite
def cases(draw: st.DrawFn, *, short_in_space: bool = True) -> Case:
    dim = draw(st.integers(1, 3))
    return Case(
        dim=dim,
        batch=draw(st.integers(1, 3)) if dim < 3 else 1,
        points=draw(st.integers(1, 60)),
        queries=draw(st.none() | st.integers(1, 20)),
        shared=draw(st.booleans()),
        masked=draw(st.booleans()),
        out_channels=draw(st.sampled_from((3, 6) if dim < 3 else (3,))),
        groups=draw(st.sampled_from((1, 3))),
        causal=dim == 1 and draw(st.booleans()),
        long=draw(st.booleans()) or (dim == 3 and not short_in_space),
        seed=draw(st.integers(0, 10**6)),
    )


#: one convolution of each kind, for tests that are too slow to draw them
KINDS = {
    "line": Case(queries=15, masked=True),
    "causal": Case(queries=15, masked=True, causal=True),
    "dense": Case(out_channels=6, groups=1, shared=True, causal=True),
    "short": Case(long=False, queries=15),
    "plane": Case(dim=2, queries=15, masked=True, out_channels=6),
    "space": Case(dim=3, batch=1, points=25, queries=10, out_channels=2, groups=1),
    "short in space": Case(dim=3, queries=10, long=False),
}


def reference(
    x: Tensor,
    coords: Tensor,
    kernel: Any,
    size: Tensor,
    *,
    out_channels: int,
    groups: int = 1,
    causal: bool = False,
    mask: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Return the sum over all pairs, by its definition."""
    asked = (coords if at is None else at).expand(len(x), -1, -1)
    offsets = (asked.unsqueeze(2) - coords.unsqueeze(1)) / size
    meets = (offsets.abs() < 1).all(dim=-1)
    if causal:
        meets = meets & (offsets[..., 0] >= 0)
    if mask is not None:
        meets = meets & mask.unsqueeze(1)
    values = (kernel(offsets) * meets.unsqueeze(-1)).unflatten(-1, (groups, out_channels // groups, -1))
    return torch.einsum("bqngoi,bgin->bgoq", values, x.unflatten(1, (groups, -1))).flatten(1, 2)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).detach())

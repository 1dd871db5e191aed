"""PointNet++ (single scale, classification), the baseline of gridified networks.

Farthest points and balls come from torch-geometric (``fps``, ``radius``) if it is installed with its compiled parts,
and otherwise from PyTorch code in this file with the same definitions. The network is the published one: two set
abstractions and a global one, 1.5 million parameters.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

try:
    from torch_geometric.nn import fps as _fps
    from torch_geometric.nn import radius as _radius

    _fps(torch.zeros(2, 3), ratio=0.5)
except (ImportError, NotImplementedError, RuntimeError):
    _fps = _radius = None

__all__ = ["PARTS", "PointNet2", "ball", "farthest_points"]

#: library that finds farthest points and balls
PARTS = "PyTorch" if _fps is None else "torch-geometric"
#: distances held at once
CHUNK_VALUES = 1 << 26


def farthest_points(coords: Tensor, count: int) -> Tensor:
    """Return (batch, count) points, each the farthest from all before it, the first point first."""
    batch, n, _ = coords.shape
    if _fps is not None:
        flat, sample = _flat(coords)
        chosen = _fps(flat, sample, ratio=count / n, random_start=False).view(batch, -1)[:, :count]
        return chosen - n * torch.arange(batch, device=coords.device).unsqueeze(1)
    chosen = torch.zeros(batch, count, dtype=torch.long, device=coords.device)
    distance = torch.full((batch, n), float("inf"), device=coords.device)
    last = chosen[:, :1]
    for i in range(1, count):
        place = coords.gather(1, last.unsqueeze(-1).expand(-1, -1, 3))
        distance = torch.minimum(distance, (coords - place).square().sum(dim=-1))
        last = distance.argmax(dim=1, keepdim=True)
        chosen[:, i : i + 1] = last
    return chosen


def ball(coords: Tensor, centres: Tensor, radius: float, most: int) -> Tensor:
    """Return (batch, centres, most) points within ``radius``: the first ``most``, repeated where there are fewer."""
    batch, n, _ = coords.shape
    if _radius is not None:
        flat, sample = _flat(coords)
        around, around_sample = _flat(centres)
        centre, point = _radius(flat, around, radius, sample, around_sample, max_num_neighbors=most)
        slot = torch.arange(len(centre), device=coords.device) - torch.searchsorted(centre, centre)
        found = torch.full((batch * centres.shape[1], most), -1, device=coords.device)
        found[centre, slot] = point % n
        return torch.where(found < 0, found[:, :1], found).view(batch, -1, most)
    index = torch.arange(n, device=coords.device)
    most = min(most, n)
    found = []
    for some in centres.split(max(1, CHUNK_VALUES // (batch * n)), dim=1):
        pairs = zip(some.unbind(-1), coords.unbind(-1), strict=True)
        squared = sum((a.unsqueeze(2) - b.unsqueeze(1)).square() for a, b in pairs)
        inside = torch.where(squared <= radius**2, index, n).topk(most, dim=-1, largest=False).values
        found.append(torch.where(inside == n, inside[..., :1], inside))
    return torch.cat(found, dim=1)


def _flat(coords: Tensor) -> tuple[Tensor, Tensor]:
    batch, n, _ = coords.shape
    return coords.flatten(0, 1), torch.arange(batch, device=coords.device).repeat_interleave(n)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return (batch, …, channels) the rows of ``values`` (batch, points, channels) at ``index`` (batch, …)."""
    batch, n, _ = values.shape
    first = n * torch.arange(batch, device=values.device).view(-1, *(1,) * (index.dim() - 1))
    return values.flatten(0, 1).index_select(0, (index + first).flatten()).unflatten(0, index.shape)


def _shared(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNet2(nn.Module):
    """PointNet++ with single-scale grouping.

    Args:
        in_channels: channels at the points beside their positions, which the network adds itself.
        out_channels: number of classes.
        ratios: points kept by the two set abstractions: 512 of 1,024, and 128 of those.
        radii: of their balls.
        members: points in a ball.
        dropout: in the head.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        ratios: tuple[float, float] = (0.5, 0.25),
        radii: tuple[float, float] = (0.2, 0.4),
        members: tuple[int, int] = (32, 64),
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.ratios, self.radii, self.members = ratios, radii, members
        self.first = _shared(3 + in_channels, 64, 64, 128)
        self.second = _shared(3 + 128, 128, 128, 256)
        self.third = _shared(3 + 256, 256, 512, 1024)
        self.head = nn.Sequential(
            *(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(256, out_channels),
        )

    def forward(self, x: Tensor, *, coords: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, out) scores of values (batch, in, points) at (batch, points, 3) coordinates."""
        if mask is not None:
            # Padding repeats the first point, which changes no maximum.
            first = mask.int().argmax(dim=1)
            row = torch.arange(len(x), device=x.device)
            coords = torch.where(mask.unsqueeze(-1), coords, coords[row, first].unsqueeze(1))
            x = torch.where(mask.unsqueeze(1), x, x[row, :, first].unsqueeze(-1))
        levels = zip((self.first, self.second), self.ratios, self.radii, self.members, strict=True)
        for shared, ratio, radius, members in levels:
            chosen = farthest_points(coords, max(1, int(ratio * coords.shape[1])))
            centres = coords.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 3))
            index = ball(coords, centres, radius, members)
            offsets = _rows(coords, index) - centres.unsqueeze(2)
            grouped = torch.cat([offsets, _rows(x.mT, index)], dim=-1).movedim(-1, 1)
            x, coords = shared(grouped).amax(dim=-1), centres
        everything = torch.cat([coords.mT, x], dim=1).unsqueeze(2)
        return self.head(self.third(everything).amax(dim=(2, 3)))

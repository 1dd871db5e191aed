"""Transforms of point clouds: normalisation, choice of points, voxels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._checks import check_int

if TYPE_CHECKING:
    from ..base import Batch

__all__ = ["ChoosePoints", "NormalizePoints", "normalized"]


def normalized(points: Tensor) -> Tensor:
    """Return clouds (…, points, dim) with their mean at the origin, scaled to touch the faces of [-1, 1]^dim.

    >>> normalized(torch.tensor([[0.0, 0.0], [4.0, 2.0]]))
    tensor([[-1.0000, -0.5000],
            [ 1.0000,  0.5000]])
    """
    centred = points - points.mean(dim=-2, keepdim=True)
    reach = centred.abs().amax(dim=(-2, -1), keepdim=True)
    return centred / torch.where(reach > 0, reach, 1.0)


@dataclass(frozen=True)
class NormalizePoints:
    """Move the mean of each cloud to the origin and its farthest coordinate to 1, whatever its unit and origin.

    Masked points do not count. A cloud that is normalised already stays as it is.

    >>> from kernelfield.data.base import Batch
    >>> cloud = torch.tensor([[[0.0, 0.0], [4.0, 2.0]]])
    >>> NormalizePoints()(Batch(torch.zeros(1, 0, 2), coords=1000 * cloud), False).coords.tolist()
    [[[-1.0, -0.5], [1.0, 0.5]]]
    """

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        if batch.coords is None:
            raise ValueError("coords must be given to normalise points, got None")
        if batch.mask is None:
            return replace(batch, coords=normalized(batch.coords))
        seen = batch.mask.unsqueeze(2)
        mean = (batch.coords * seen).sum(dim=1, keepdim=True) / seen.sum(dim=1, keepdim=True).clamp(min=1)
        return replace(batch, coords=normalized(torch.where(seen, batch.coords, mean)))


@dataclass(frozen=True)
class ChoosePoints:
    """Choose points of each cloud, new ones in every training epoch, and put their positions before the other channels.

    The inputs are values at the points, such as normals.

    Args:
        count: number of points; all points if None. Evaluation takes the first ones.
        voxels: number of voxels along each axis of [-1, 1]. If given, every point first moves to the centre of its
            voxel, and one point per voxel stays (chapter 3, appendix "ModelNet10 Voxelized").
        positions: whether to add positions to the channels.
    """

    count: int | None = None
    voxels: int | None = None
    positions: bool = True

    def __post_init__(self) -> None:
        for name in ("count", "voxels"):
            if getattr(self, name) is not None:
                check_int("points" if name == "count" else name, getattr(self, name))

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if batch.coords is None:
            raise ValueError("coords must be given to choose points, got None")
        x, coords, mask = batch.inputs.float(), batch.coords.float(), batch.mask
        if self.voxels is not None:
            coords, mask = _voxelized(coords, mask, self.voxels)
        n, total = coords.shape[:2]
        if training or mask is not None:
            # Masked points come last; in training, the others come in a random order.
            score = torch.rand(n, total, device=x.device) if training else torch.arange(total, device=x.device) / total
            score = score.expand(n, -1)
            order = (score if mask is None else torch.where(mask, score, 2.0)).argsort(dim=1)
        else:
            order = torch.arange(total, device=x.device).expand(n, -1)
        order = order[:, : self.count]
        coords = coords.gather(1, order.unsqueeze(2).expand(-1, -1, coords.shape[2]))
        x = x.gather(2, order.unsqueeze(1).expand(-1, x.shape[1], -1))
        target = batch.target
        if target is not None and target.dim() > 1 and batch.at is None:  # one target per point
            index = order if target.dim() == 2 else order.unsqueeze(1).expand(-1, target.shape[1], -1)
            target = target.gather(-1, index)
        mask = None if mask is None else mask.gather(1, order)
        x = torch.cat([coords.mT, x], dim=1) if self.positions else x
        return replace(batch, inputs=x, target=target, coords=coords, mask=mask)


def _voxelized(coords: Tensor, mask: Tensor | None, resolution: int) -> tuple[Tensor, Tensor]:
    """Return the coordinates of voxel centres, and a mask with one point per voxel."""
    cell = ((coords + 1) * (resolution / 2)).floor().clamp(0, resolution - 1).long()
    number = torch.zeros_like(cell[..., 0])
    for axis in range(coords.shape[-1]):
        number = number * resolution + cell[..., axis]
    seen = torch.ones_like(number, dtype=torch.bool) if mask is None else mask
    number = torch.where(seen, number, -1)
    ordered, order = number.sort(dim=1, stable=True)
    first = torch.ones_like(seen)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    kept = torch.empty_like(seen).scatter_(1, order, first) & seen
    return (cell.to(coords.dtype) + 0.5) * (2 / resolution) - 1, kept

"""Rotation and mirror matrices, shared by the groups of the plane."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mirror_matrix", "rotation_generator", "rotation_matrix"]


def rotation_matrix(angle: Tensor) -> Tensor:
    """Return the rotation of (row, column) by ``angle``, in the direction of ``torch.rot90``: (…) to (…, 2, 2).

    >>> rotation_matrix(torch.tensor(torch.pi / 2)).round()
    tensor([[-0., -1.],
            [ 1., -0.]])
    """
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)


def rotation_generator(angle: Tensor) -> Tensor:
    """Return the matrix whose exponential is :func:`rotation_matrix`: (…) to (…, 2, 2)."""
    zero = torch.zeros_like(angle)
    return torch.stack([torch.stack([zero, -angle], -1), torch.stack([angle, zero], -1)], -2)


def mirror_matrix(sign: Tensor, dim: int) -> Tensor:
    """Return the matrix that multiplies the last axis by ``sign``: (…) to (…, dim, dim)."""
    diagonal = torch.cat([torch.ones_like(sign)[..., None].expand(*sign.shape, dim - 1), sign[..., None]], -1)
    return torch.diag_embed(diagonal)

"""Triangle meshes: a reader of OFF files, and points sampled from surfaces."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..._checks import check_int
from .cells import FLOAT32_MAX
from .files import decoding, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_off", "sample_mesh"]


def read_off(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the vertices (n, 3) and triangles (m, 3) of an OFF file; polygons are cut into triangles.

    The counts may follow "OFF" without a space, as in some files of ModelNet40.

    Args:
        path: the file.
        dtype: type of the vertices.
    """
    lines = [line.split("#", 1)[0].strip() for line in read_bytes(path).decode("latin-1").splitlines()]
    lines = [line for line in lines if line]
    if not lines or not lines[0].startswith("OFF"):
        found = repr(lines[0][:20]) if lines else "nothing"
        raise ValueError(f"{path} must be an OFF file, found {found} at its beginning")
    rest = lines[0][3:].strip()
    body = [rest, *lines[1:]] if rest else lines[1:]
    with decoding(path, "an OFF file of vertices and faces"):
        count, faces = (int(n) for n in body[0].split()[:2])
        if min(count, faces) < 0 or count + faces >= len(body):
            raise ValueError(f"{path} must hold {count} vertices and {faces} faces, found {len(body) - 1} lines")
        vertices = np.array([line.split()[:3] for line in body[1 : 1 + count]], dtype=np.float64).reshape(count, 3)
        # A face may be followed by its colour, whose numbers are not integers.
        polygons = [_corners(line) for line in body[1 + count : 1 + count + faces]]
        triangles = [(corners[0], a, b) for corners in polygons for a, b in itertools.pairwise(corners[1:])]
        index = np.array(triangles, dtype=np.int64).reshape(-1, 3)
    if len(index) and not 0 <= index.min() <= index.max() < count:
        raise ValueError(f"{path} must hold faces of its {count} vertices, found vertex {index.max()}")
    if not (np.abs(vertices) <= FLOAT32_MAX).all():
        wrong = int((~(np.abs(vertices) <= FLOAT32_MAX)).any(axis=1).argmax())
        raise ValueError(f"{path} must hold finite coordinates, found {vertices[wrong].tolist()} for vertex {wrong}")
    return torch.from_numpy(vertices).to(dtype), torch.from_numpy(index)


def _corners(line: str) -> list[int]:
    """Return the vertices of a face from a line with their number, followed by their indices."""
    count, *rest = line.split()
    corners = [int(n) for n in rest[: int(count)]]
    if len(corners) != int(count):
        raise ValueError(f"expected a face of {count} vertices, found {len(corners)}")
    return corners


def sample_mesh(
    vertices: Tensor, triangles: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Sample points uniformly from the surface of a mesh, with normals.

    A triangle is drawn in proportion to its area, then a point on it: (1 - √u) a + √u (1 - v) b + √u v c.

    Args:
        vertices: (n, 3) coordinates.
        triangles: (m, 3) indices of their vertices.
        count: number of points.
        generator: random generator.

    Returns:
        (count, 3) points and (count, 3) normals of unit length.

    >>> corners = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> points, normals = sample_mesh(corners, torch.tensor([[0, 1, 2]]), 5)
    >>> bool((points[:, 2] == 0).all()), normals[0]
    (True, tensor([0., 0., 1.]))
    """
    check_int("count", count)
    a, b, c = vertices[triangles].unbind(dim=1)
    cross = torch.linalg.cross(b - a, c - a)
    area = cross.norm(dim=1)
    if not bool((area > 0).any()):
        raise ValueError("the mesh is degenerate: every triangle has zero area")
    # Draw from the cumulative areas, because torch.multinomial takes at most 2²⁴ of them.
    ends = area.double().cumsum(0)
    drawn = torch.rand(count, generator=generator, dtype=torch.float64) * ends[-1]
    which = torch.searchsorted(ends, drawn, right=True).clamp(max=len(area) - 1)
    u, v = torch.rand(2, count, 1, generator=generator)
    u = u.sqrt()
    points = (1 - u) * a[which] + u * (1 - v) * b[which] + u * v * c[which]
    return points, torch.nn.functional.normalize(cross[which], dim=1)

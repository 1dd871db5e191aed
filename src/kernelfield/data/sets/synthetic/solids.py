"""Synthetic point clouds: spheres, tori, cubes and others, in random poses, with noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import NOT_NEGATIVE, Choice, Int
from ...base import Data, Split
from ...transforms.clouds import ChoosePoints, normalized

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["random_clouds", "solids"]

POSES = ("any", "upright", "none")


@checked(noise=NOT_NEGATIVE, pose=Choice(*POSES), validation=Int(0))
def solids(
    points: int = 512,
    *,
    voxels: int | None = None,
    normals: bool = True,
    noise: float = 0.02,
    pose: str = "any",
    train: int = 1_200,
    validation: int = 200,
    test: int = 400,
    seed: int = 0,
) -> Data:
    """Return clouds of points on the surfaces of spheres, tori, cubes, cones, cylinders, helices, saddles and crosses.

    Source: generated. Licence: none needed. Split: the given numbers of clouds, drawn with one seed. Normalisation: the
    mean of each cloud is at the origin, its farthest coordinate at 1.

    Args:
        points: points per cloud; twice as many are stored, and training draws a new choice in every epoch.
        voxels: number of voxels along each axis; points move to the voxel centres, one point per voxel. None for no
            voxels.
        normals: whether to add surface normals, as three more channels.
        noise: standard deviation of the noise added to positions.
        pose: random rotation: "any", "upright" (about the last axis), or "none".
        train: number of training clouds.
        validation: number of validation clouds; 0 for none.
        test: number of test clouds.
        seed: seed of all samples.

    Returns:
        Positions, then normals, (n, 6 or 3, points) with coords (n, points, 3) in [-1, 1]; classes (n,) of eight.

    >>> data = solids(64, train=4, validation=0, test=2)
    >>> batch = data.train.batch(slice(0, 2))
    >>> batch.inputs.shape, batch.coords.shape
    (torch.Size([2, 6, 64]), torch.Size([2, 64, 3]))
    """
    count = train, validation, test
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(len(SURFACES), (sum(count),), generator=generator)
    place = torch.empty(len(label), 2 * points, 3)
    normal = torch.empty(len(label), 2 * points, 3)
    for kind, surface in enumerate(SURFACES.values()):
        chosen = (label == kind).nonzero().flatten()
        place[chosen], normal[chosen] = surface(len(chosen), 2 * points, generator)
    # Points are stretched along each axis, then rotated; normals are divided by the stretch.
    stretch = 0.8 + 0.4 * torch.rand(len(label), 1, 3, generator=generator)
    rotation = _random_rotations(len(label), pose, generator)
    place = (place * stretch) @ rotation.mT
    normal = torch.nn.functional.normalize((normal / stretch) @ rotation.mT, dim=-1)
    place = normalized(place + noise * torch.randn(place.shape, generator=generator))
    prepare = ChoosePoints(points, voxels)
    values = normal.mT.contiguous() if normals else normal.mT[:, :0]
    splits = Split(values, label, coords=place, prepare=prepare).cut(count)
    return Data.from_splits("solids", splits, in_channels=6 if normals else 3, size=(2, 2, 2), classes=tuple(SURFACES))


@checked(validation=Int(0))
def random_clouds(
    points: int = 1_000, *, dim: int = 3, train: int = 800, validation: int = 0, test: int = 200, seed: int = 0
) -> Data:
    """Return clouds of random points with a random value at each, which is also the target (chapter 4, section 4.1).

    A network must carry the values through its representation of the cloud.

    Source: generated. Licence: none needed. Split: the given numbers of clouds, drawn with one seed. Normalisation:
    none; positions are uniform in [-1, 1]^dim, values uniform in [-1, 1].

    Args:
        points: points per cloud.
        dim: number of spatial dimensions.
        train: number of training clouds.
        validation: number of validation clouds; 0 for none.
        test: number of test clouds.
        seed: seed of all samples.

    Returns:
        Values (n, 1, points) with coords (n, points, dim); targets are the values.

    >>> random_clouds(10, train=3).train.batch(slice(0, 2)).coords.shape
    torch.Size([2, 10, 3])
    """
    count = train, validation, test
    generator = torch.Generator().manual_seed(seed)
    coords = 2 * torch.rand(sum(count), points, dim, generator=generator) - 1
    values = 2 * torch.rand(sum(count), 1, points, generator=generator) - 1
    splits = Split(values, values, coords=coords).cut(count)
    return Data.from_splits("random_clouds", splits, "dense-regression", out_channels=1, size=(2,) * dim)


def _random_rotations(n: int, pose: str, generator: torch.Generator) -> Tensor:
    if pose == "none":
        return torch.eye(3).expand(n, 3, 3)
    if pose == "upright":
        angle = 2 * math.pi * torch.rand(n, generator=generator)
        turn = torch.eye(3).repeat(n, 1, 1)
        turn[:, 0, 0] = turn[:, 1, 1] = angle.cos()
        turn[:, 1, 0] = angle.sin()
        turn[:, 0, 1] = -turn[:, 1, 0]
        return turn
    # Uniform random unit quaternions are uniform random rotations.
    w, x, y, z = torch.nn.functional.normalize(torch.randn(n, 4, generator=generator), dim=1).unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def _uniform(n: int, m: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(n, m, generator=generator)


def _around(angle: Tensor, radius: Tensor | float, height: Tensor | float) -> Tensor:
    zero = torch.zeros_like(angle)
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height + zero], dim=-1)


def _sphere(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    normal = torch.nn.functional.normalize(torch.randn(n, m, 3, generator=generator), dim=-1)
    return normal, normal


def _torus(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # The outer half of the tube has more area, so m of 4 m angles are drawn in proportion to the area.
    tube = _uniform(n, 4 * m, generator, 0, 2 * math.pi)
    kept = torch.multinomial(1 + 0.4 * tube.cos(), m, generator=generator) if n else torch.zeros(0, m, dtype=torch.long)
    tube = tube.gather(1, kept)
    angle = _uniform(n, m, generator, 0, 2 * math.pi)
    normal = _around(angle, tube.cos(), tube.sin())
    return _around(angle, 1.0, 0.0) + 0.4 * normal, normal


def _cube(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    place = 2 * torch.rand(n, m, 3, generator=generator) - 1
    axis = torch.randint(3, (n, m, 1), generator=generator)
    side = 2.0 * torch.randint(2, (n, m, 1), generator=generator) - 1
    normal = torch.zeros(n, m, 3).scatter_(2, axis, side)
    return place.scatter(2, axis, side), normal


def _cone(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    angle, radius = _uniform(n, m, generator, 0, 2 * math.pi), _uniform(n, m, generator).sqrt()
    # Height 2 and radius 1: the side has √5 times the area of the base.
    base = torch.rand(n, m, generator=generator) < 1 / (1 + math.sqrt(5))
    place = _around(angle, radius, torch.where(base, -1.0, 1 - 2 * radius))
    side = _around(angle, 2 / math.sqrt(5), 1 / math.sqrt(5))
    return place, torch.where(base.unsqueeze(-1), torch.tensor([0.0, 0.0, -1.0]), side)


def _cylinder(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    angle, where = _uniform(n, m, generator, 0, 2 * math.pi), torch.rand(n, m, generator=generator)
    # Height 2 and radius 0.6: each end has 0.6 / (2 · (2 + 0.6)) of the area.
    share = 0.6 / (2 * 2.6)
    end = torch.where(where < share, -1.0, torch.where(where < 2 * share, 1.0, 0.0))
    radius = torch.where(end == 0, 0.6, 0.6 * _uniform(n, m, generator).sqrt())
    height = torch.where(end == 0, _uniform(n, m, generator, -1, 1), end)
    normal = torch.where((end == 0).unsqueeze(-1), _around(angle, 1.0, 0.0), _around(angle, 0.0, end))
    return _around(angle, radius, height), normal


def _helix(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    along, tube = _uniform(n, m, generator, -1, 1), _uniform(n, m, generator, 0, 2 * math.pi)
    angle = 2.5 * 2 * math.pi * along / 2
    outwards = _around(angle, 1.0, 0.0)
    # Normals are orthogonal to the curve (0.8 cos a, 0.8 sin a, h), whose tangent is (-0.8 sin a, 0.8 cos a, h').
    rise = 2 / (2.5 * 2 * math.pi)
    length = math.hypot(0.8, rise)
    tangent = torch.stack([-0.8 * angle.sin(), 0.8 * angle.cos(), torch.full_like(angle, rise)], dim=-1) / length
    upwards = torch.linalg.cross(tangent, outwards)
    normal = tube.cos().unsqueeze(-1) * outwards + tube.sin().unsqueeze(-1) * upwards
    return _around(angle, 0.8, along) + 0.12 * normal, normal


def _saddle(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = _uniform(n, m, generator, -1, 1), _uniform(n, m, generator, -1, 1)
    place = torch.stack([x, y, 0.7 * (x * x - y * y)], dim=-1)
    return place, torch.nn.functional.normalize(torch.stack([-1.4 * x, 1.4 * y, torch.ones_like(x)], dim=-1), dim=-1)


def _cross(n: int, m: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three bars along the axes."""
    place, normal = _cube(n, m, generator)
    bar = torch.randint(3, (n, m, 1), generator=generator)
    thick = torch.full((n, m, 3), 0.25).scatter_(2, bar, 1.0)
    return place * thick, normal


SURFACES: dict[str, Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]] = {
    "sphere": _sphere,
    "torus": _torus,
    "cube": _cube,
    "cone": _cone,
    "cylinder": _cylinder,
    "helix": _helix,
    "saddle": _saddle,
    "cross": _cross,
}

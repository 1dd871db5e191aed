r"""Darcy flow (chapter 6): the pressure in a plane from its permeability, read from files or solved here.

.. math:: -\nabla \cdot (a \nabla u) = f \text{ on } (0, 1)^2, \qquad u = 0 \text{ on the edge}
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import FINITE, POSITIVE, Int
from ...._object_kinds import TensorOf
from ...base import Data, Split
from ...io.arrays import finite_array, read_arrays
from ...io.files import decoding, open_file
from ...io.mat import read_mat
from ...transforms.split import hold_out

if TYPE_CHECKING:
    import os

    from ...base import Batch

__all__ = ["TransposeFlow", "darcy", "darcy_synthetic", "permeability", "solve_darcy"]

#: the two permeabilities of the published data
LOW, HIGH = 3.0, 12.0
_MAT = ("piececonst_r421_N1024_smooth1.mat", "piececonst_r421_N1024_smooth2.mat")


@checked(resolution=Int(2), test_resolution=Int(2) | None, validation=Int(0))
def darcy(
    root: str | os.PathLike[str] | None,
    *,
    resolution: int = 16,
    test_resolution: int | None = None,
    coordinates: bool = True,
    augment: bool = False,
    validation: int = 100,
    seed: int = 0,
) -> Data:
    """Return Darcy flow from its public files: 1,000 permeabilities and pressures for training.

    Three layouts are supported. First, the files of the Fourier neural operator, ``piececonst_r421_N1024_smooth1.mat``
    for training and ``…smooth2.mat`` for testing, with 421×421 samples. Every k-th sample along each axis gives
    resolutions 421, 211, 141, 106, 85 (the task DarcyFlow of NAS-Bench-360), 71, 61, 43, …. Second, the files of the
    package neuraloperator, ``darcy_train_16.pt``, ``darcy_test_16.pt``, ``darcy_test_32.pt``, …. Third, one ``.npz``
    file with arrays ``x_train_16``, ``y_train_16``, ….

    Source: https://github.com/neuraloperator/neuraloperator (Li et al., 2021). Licence: MIT. Split: 1,000 and 100
    samples of the two published files, or all samples of neuraloperator's files; some of the training samples are
    held out for validation. Normalisation: permeabilities become -1/2 or 1/2; pressures are divided by their standard
    deviation in the training set, which does not change relative errors.

    Args:
        root: the folder of the files, or the ``.npz`` file.
        resolution: samples per side.
        test_resolution: samples per side of the test set, whose ``step`` then differs; by default that of training.
        coordinates: whether to add the coordinates of each sample as two channels.
        augment: whether to transpose half of the training samples of a batch (:class:`.TransposeFlow`).
        validation: number of training samples to hold out; 0 for none.
        seed: seed of the validation split.

    Returns:
        Inputs (n, 3 or 1, resolution, resolution), targets (n, 1, resolution, resolution).
    """
    tested = resolution if test_resolution is None else test_resolution
    read = _reader(root)
    train, test = read("train", resolution), read("test", tested)
    data = _build("darcy", train, test, float(train[1].std()), read.closed, coordinates, validation, seed)
    return replace(data, train=replace(data.train, prepare=TransposeFlow())) if augment else data


@dataclass(frozen=True)
class TransposeFlow:
    """Transpose the permeability and the pressure of half of the training samples.

    The equation has no preferred axis, so a transposed solution is a solution. The published grid includes only one of
    two opposite edges, so it has no other exact symmetry. The coordinates, which are the channels after the first, do
    not change.

    >>> from kernelfield.data.base import Batch
    >>> x = torch.randn(64, 1, 4, 4)
    >>> changed = TransposeFlow()(Batch(x, 2 * x), True)
    >>> torch.equal(changed.target, 2 * changed.inputs), torch.equal(changed.inputs, x)
    (True, False)
    """

    augments = True

    def __call__(self, batch: Batch, training: bool) -> Batch:
        if not training:
            return batch
        x, y = batch.inputs, batch.target
        swap = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
        flow = torch.where(swap, x[:, :1].transpose(2, 3), x[:, :1])
        target = None if y is None else torch.where(swap, y.transpose(2, 3), y)
        return replace(batch, inputs=torch.cat([flow, x[:, 1:]], dim=1), target=target)


@checked(resolution=Int(2), solve_at=Int(4), validation=Int(0), inverse_length=POSITIVE)
def darcy_synthetic(
    resolution: int = 16,
    *,
    train: int = 1_000,
    validation: int = 100,
    test: int = 100,
    solve_at: int = 32,
    coordinates: bool = True,
    inverse_length: float = 3.0,
    seed: int = 0,
) -> Data:
    """Return Darcy flow like :func:`darcy`, with random permeabilities and a numerical solution for the pressures.

    Source: generated by :func:`permeability` and :func:`solve_darcy`. Licence: none needed. Split: the given numbers of
    samples, drawn with one seed; the same samples at every resolution. Normalisation: that of :func:`darcy`.

    Args:
        resolution: samples per side; a divisor of ``solve_at``.
        train: number of training samples.
        validation: number of validation samples; 0 for none.
        test: number of test samples.
        solve_at: samples per side of the grid on which the equation is solved.
        coordinates: whether to add the coordinates of each sample as two channels.
        inverse_length: τ of :func:`permeability`; a larger value gives smaller patches of either permeability.
        seed: seed of all samples.

    >>> data = darcy_synthetic(8, train=4, validation=0, test=2, solve_at=16)
    >>> data.train.batch(slice(0, 2)).inputs.shape, data.train.target.shape
    (torch.Size([2, 3, 8, 8]), torch.Size([4, 1, 8, 8]))
    """
    if solve_at % resolution:
        raise ValueError(f"resolution must be a divisor of solve_at={solve_at}, got {resolution}")
    counts = train, validation, test
    generator = torch.Generator().manual_seed(seed)
    high = permeability(sum(counts), solve_at, inverse_length=inverse_length, generator=generator)
    pressure = solve_darcy(torch.where(high, HIGH, LOW)).float()
    every = solve_at // resolution
    x, y = high[:, ::every, ::every], pressure[:, ::every, ::every]
    kept = train + validation
    scale = float(y[:kept].std())
    data = _build("darcy_synthetic", (x[:kept], y[:kept]), (x[kept:], y[kept:]), scale, False, coordinates, 0, seed)
    if not validation:
        return data
    joined = data.train
    parts = [Split(joined.inputs[a:b], joined.target[a:b]) for a, b in ((0, train), (train, kept))]
    return Data(**{**data.__dict__, "train": parts[0], "validation": parts[1]})


@checked(smoothness=POSITIVE, inverse_length=POSITIVE)
def permeability(
    count: int,
    resolution: int,
    *,
    smoothness: float = 2.0,
    inverse_length: float = 3.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Draw the permeable regions of planes: the sign of a Gaussian random field with covariance (-Δ + τ²)^-α.

    .. math:: g(x, y) = \sum_{k,l} \xi_{kl}\, (\pi^2 (k^2 + l^2) + \tau^2)^{-\alpha/2} \cos(\pi k x) \cos(\pi l y)

    Args:
        count: number of planes.
        resolution: samples per side, sample i at i / resolution.
        smoothness: α.
        inverse_length: τ.
        generator: generator of the standard normal ξ; it gives the same planes at every resolution.

    Returns:
        (count, resolution, resolution) bools.
    """
    modes = 16
    k = torch.arange(modes, dtype=torch.float64)
    decay = (math.pi**2 * (k.square().unsqueeze(1) + k.square()) + inverse_length**2).pow(-smoothness / 2)
    decay[0, 0] = 0.0  # zero mean: both permeabilities are equally frequent on average
    noise = torch.randn(count, modes, modes, generator=generator, dtype=torch.float64) * decay
    cosines = torch.cos(math.pi * torch.outer(torch.arange(resolution, dtype=torch.float64) / resolution, k))
    return torch.einsum("ik,nkl,jl->nij", cosines, noise, cosines) >= 0


@checked(a=TensorOf("float", "n, rows, columns"), f=FINITE | TensorOf("float", "n, rows, columns"), tolerance=POSITIVE)
def solve_darcy(a: Tensor, f: float | Tensor = 1.0, *, tolerance: float = 1e-8) -> Tensor:
    r"""Solve :math:`-\nabla \cdot (a \nabla u) = f` with u = 0 on the edge, by finite differences.

    The permeability between neighbours is the harmonic mean of theirs, as for two layers in a row. Conjugate gradients
    with a diagonal preconditioner solve the linear system of the five-point stencil for all samples at once.

    Args:
        a: (n, N, N) permeabilities above zero; sample i lies at i / N, so samples of index 0 are on the edge.
        f: source term, a number or (n, N, N).
        tolerance: residual at which to stop, relative to the source term.

    Returns:
        (n, N, N) pressures in float64.

    >>> u = solve_darcy(torch.ones(1, 32, 32))
    >>> round(u.max().item(), 4)        # the Poisson equation on the square has 0.0737
    0.0736
    """
    if a.dim() != 3 or a.shape[1] != a.shape[2]:
        raise ValueError(f"a must have shape (n, N, N), got {tuple(a.shape)}")
    a = a.double()
    if not bool((a > 0).all()):
        raise ValueError(f"a must be above 0, got values down to {float(a.min())}")
    size = a.shape[1]
    inner = (slice(None), slice(1, None), slice(1, None))
    # The opposite edge, at 1, has no samples; it takes the permeability of its neighbours.
    padded = torch.nn.functional.pad(a.unsqueeze(1), (0, 1, 0, 1), mode="replicate").squeeze(1)
    down = _harmonic(padded[:, :-1, :-1], padded[:, 1:, :-1])
    right = _harmonic(padded[:, :-1, :-1], padded[:, :-1, 1:])
    above, below = down[:, :-1, 1:], down[inner]
    before, after = right[:, 1:, :-1], right[inner]
    diagonal = above + below + before + after

    def apply(u: Tensor) -> Tensor:
        y = diagonal * u
        y[:, 1:] -= above[:, 1:] * u[:, :-1]
        y[:, :-1] -= below[:, :-1] * u[:, 1:]
        y[:, :, 1:] -= before[:, :, 1:] * u[:, :, :-1]
        y[:, :, :-1] -= after[:, :, :-1] * u[:, :, 1:]
        return y

    source = torch.as_tensor(f, dtype=torch.float64, device=a.device).expand(a.shape)[inner] / size**2
    u = _conjugate_gradients(apply, source, diagonal, tolerance, most=20 * size)
    return torch.nn.functional.pad(u, (1, 0, 1, 0))


def _harmonic(a: Tensor, b: Tensor) -> Tensor:
    return 2 * a * b / (a + b)


def _conjugate_gradients(apply: Any, b: Tensor, diagonal: Tensor, tolerance: float, most: int) -> Tensor:
    def dot(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(dim=(1, 2), keepdim=True)

    x = torch.zeros_like(b)
    r = b.clone()
    z = r / diagonal
    p, rz = z, dot(r, z)
    threshold = tolerance**2 * dot(b, b)
    for _ in range(most):
        if bool((dot(r, r) <= threshold).all()):
            break
        q = apply(p)
        step = rz / dot(p, q).clamp(min=1e-300)
        x, r = x + step * p, r - step * q
        z = r / diagonal
        new = dot(r, z)
        p, rz = z + (new / rz.clamp(min=1e-300)) * p, new
    return x


def _reader(root: str | os.PathLike[str] | None) -> Any:
    """Return a function that reads (x, y) of a split at a resolution, for the layout of these files."""
    if root is None:
        raise ValueError("root must be the folder or the .npz file that holds Darcy flow, got None")
    path = Path(root).expanduser()
    if not path.exists():
        raise ValueError(
            f"root must be the folder or the .npz file that holds Darcy flow, got {path}, which does not exist"
        )
    if path.is_file():
        return _Npz(path)
    if any((path / name).is_file() for name in _MAT):
        return _Mat(path)
    if sorted(path.glob("darcy_*.pt")):
        return _Pt(path)
    packed = sorted(path.glob("darcy*.npz"))
    if packed:
        return _Npz(packed[0])
    there = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
    raise ValueError(f"{path} must hold {_MAT[0]}, darcy_train_16.pt or darcy*.npz, found {there}")


class _Npz:
    """Reads one file with arrays x_train_16, y_train_16, …."""

    #: whether the grid includes both of two opposite edges
    closed = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays = read_arrays(path)

    def __call__(self, part: str, resolution: int) -> tuple[Tensor, Tensor]:
        names = [f"{kind}_{part}_{resolution}" for kind in "xy"]
        if not all(name in self.arrays for name in names):
            raise ValueError(f"{self.path} must hold {names[0]} and {names[1]}, found {', '.join(sorted(self.arrays))}")
        return _checked(self.path, *(self.arrays[name] for name in names))


class _Pt:
    """Reads one file per split and resolution, with a dictionary of x and y."""

    closed = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, part: str, resolution: int) -> tuple[Tensor, Tensor]:
        file = self.path / f"darcy_{part}_{resolution}.pt"
        if not file.is_file():
            there = ", ".join(sorted(p.name for p in self.path.glob("darcy_*.pt")))
            raise ValueError(f"{self.path} must hold {file.name}, found {there}")
        with open_file(file) as opened, decoding(file, "a complete file of tensors"):
            stored = torch.load(opened, weights_only=True)
            if not isinstance(stored, dict) or not {"x", "y"} <= set(stored):
                raise ValueError(f"{file} must hold a dictionary of x and y, found {type(stored).__name__}")
            arrays = [stored[name].numpy() for name in ("x", "y")]
        return _checked(file, *arrays)


class _Mat:
    """Reads two files of 421×421 samples, which include all edges."""

    closed = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, part: str, resolution: int) -> tuple[Tensor, Tensor]:
        file = self.path / _MAT[part == "test"]
        if not file.is_file():
            raise ValueError(f"{self.path} must hold {file.name}, found no such file")
        stored = read_mat(file, ("coeff", "sol"))
        if stored["coeff"].ndim != 3:
            raise ValueError(f"{file} must hold coeff of shape (n, side, side), found {stored['coeff'].shape}")
        side = stored["coeff"].shape[1] - 1
        if resolution < 2 or side < resolution - 1 or side % (resolution - 1):
            raise ValueError(f"resolution must be {side} / k + 1 for an integer k, got {resolution}")
        every, most = side // (resolution - 1), 1000 if part == "train" else 100
        return _checked(file, *(stored[k][:most, ::every, ::every] for k in ("coeff", "sol")))


def _checked(path: Path, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the kind of permeability, low or high, and the pressures from arrays (n, side, side)."""
    if x.shape != y.shape or x.ndim != 3 or not x.size or x.shape[1] != x.shape[2] or x.shape[1] < 2:
        raise ValueError(f"{path} must hold x and y of shape (n, side, side), found {x.shape} and {y.shape}")
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        raise ValueError(f"{path} must hold numbers, found {x.dtype} and {y.dtype}")
    for name, array in (("x", x), ("y", y)):
        if not np.isfinite(finite_array(array, path, name)).all():
            raise ValueError(f"{path} must hold finite numbers, found NaN in {name}")
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (x, y)]
    return _kinds(tensors[0]), tensors[1].float()


def _kinds(x: Tensor) -> Tensor:
    """Return whether the permeability is the larger of the two values."""
    return x if x.dtype == torch.bool else x > (x.max() + x.min()) / 2


def _build(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    scale: float,
    closed: bool,
    coordinates: bool,
    validation: int,
    seed: int,
) -> Data:
    resolution = train[0].shape[1]

    def split(part: tuple[Tensor, Tensor]) -> Split:
        x, y = part
        inputs = x.float().unsqueeze(1) - 0.5
        if coordinates:
            side = x.shape[1]
            axis = torch.arange(side) / (side - closed) * 2 - 1
            places = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))
            inputs = torch.cat([inputs, places.expand(len(x), -1, -1, -1)], dim=1)
        return Split(inputs, y.unsqueeze(1) / scale, step=(resolution - closed) / (x.shape[1] - closed))

    learn, stored = hold_out(torch.zeros(len(train[0])), validation, seed)
    splits = [split((train[0][learn], train[1][learn])), split((train[0][stored], train[1][stored])), split(test)]
    return Data.from_splits(name, splits, "dense-regression", out_channels=1)

"""Sample the kernels of many layers in as few operations as the kernel of one layer.

Kernel networks are small, so on a GPU their run time is the number of launches, which grows with the number of layers.
Fields of the same shape whose kernels lie on the same grid are therefore evaluated as one batched field. Kernels that
learned masks crop to different numbers of points are sampled on the largest of these grids, and cut to their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import floats_per_axis, is_symbolic
from ..._hooks import set_during
from ..._kinds import POSITIVE, ListOf, PerAxis
from ..._object_kinds import Instance, TensorOf
from ...ops.fieldnet import sample_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...grids import KernelGrid
    from .continuous_conv import ContinuousConv
    from .sampled_kernel import SampledKernel

__all__ = ["recall_kernel", "remember_kernel", "sample_grid", "sample_kernels", "sample_requests", "sampled_once"]

#: number of points, of all kernels of a batch, that may be sampled and not used, by type of device; on a GPU they take
#: less time than the launches of another batch
EXTRA = {"cuda": 20_000}


@checked(
    layers=ListOf(Instance("kernelfield.layers.ContinuousConv"), least=0),
    x=TensorOf("float", "batch, channels, *space"),
    step=PerAxis(POSITIVE),
)
def sample_kernels(
    layers: Sequence[ContinuousConv], x: Tensor, *, step: float | Sequence[float] = 1.0, coords: Tensor | None = None
) -> list[Tensor | None]:
    """Sample the kernels that ``layers`` need for a signal like ``x``, to pass to their ``forward``.

    Args:
        layers: continuous convolutions of one network.
        x: (batch, channels, *space) signal, the input of all of them.
        step: sampling step of ``x`` in training steps.
        coords: coordinates, if the samples do not lie on a grid; no kernel is then sampled ahead.

    Returns:
        A kernel for each layer, or None for a layer that samples its own kernel: a layer that matches no other, is
        frozen, or is traced for inputs of unknown length.

    >>> from kernelfield import CKConv
    >>> layers = [CKConv(2, 2, size=8) for _ in range(3)]
    >>> x = torch.randn(1, 2, 8)
    >>> kernels = sample_kernels(layers, x)
    >>> all(torch.allclose(layer(x, kernel=k), layer(x), atol=1e-6) for layer, k in zip(layers, kernels))
    True
    """
    lengths = tuple(x.shape[2:])
    if coords is not None or (torch.compiler.is_compiling() and is_symbolic(*lengths)):
        return [None] * len(layers)
    if any(layer.dim != len(lengths) for layer in layers):
        raise ValueError(f"x must have as many spatial axes as layers, got {tuple(x.shape)}")
    return sample_requests([(layer, lengths, floats_per_axis("step", step, layer.dim), None) for layer in layers])


#: a layer, the lengths and sampling steps of its input, and the number of input channels in use, None for all
Request: TypeAlias = "tuple[ContinuousConv, Sequence[int], tuple[float, ...], int | None]"


def sample_requests(requests: Sequence[Request | None]) -> list[Tensor | None]:
    """Return the kernels of layers whose inputs lie on different grids; see :func:`sample_kernels`.

    Args:
        requests: one request per layer; None for a layer that samples its own kernel.

    Returns:
        A kernel or None for each request. Layers that are sampled together may get kernels for more channels than they
        requested.
    """
    kernels: list[Tensor | None] = [None] * len(requests)
    batches: dict[Any, list[tuple[int, KernelGrid]]] = {}
    for i, request in enumerate(requests):
        if request is not None:
            layer, lengths, steps, _ = request
            grid = layer.grid(layer.input_lengths(lengths), steps)
            key = layer.batch_key(grid)
            if key is not None:
                # Compiled code samples all kernels on equal grids anyway. A blurred kernel is sampled beyond its grid.
                exact = layer.smooth or torch.compiler.is_compiling() or layer.reach.device.type not in EXTRA
                batches.setdefault((key, grid if exact else None), []).append((i, grid))
    for (_, common), members in batches.items():
        grids = [grid for _, grid in members]
        for union, chosen in _unions(tuple(grids)) if common is None else [(common, range(len(grids)))]:
            if len(chosen) > 1:
                indices = [members[k][0] for k in chosen]
                alike = [request for i in indices if (request := requests[i]) is not None]
                wanted = [channels for *_, channels in alike]
                most = None if None in wanted else max(wanted)  # type: ignore[type-var]
                layers, own = [layer for layer, *_ in alike], [grids[k] for k in chosen]
                for i, kernel in zip(indices, _sample_batch(layers, own, union, most), strict=True):
                    kernels[i] = kernel
    return kernels


@functools.lru_cache(256)  # sizes of masks rarely change
def _unions(grids: tuple[KernelGrid, ...], extra: int = EXTRA["cuda"]) -> list[tuple[KernelGrid, list[int]]]:
    """Divide grids of one step and size into groups; return the smallest grid around each group, and its members.

    Args:
        grids: grids whose points are integer multiples of one spacing.
        extra: number of points by which the members of a group, together, may be smaller than copies of its grid.

    >>> from kernelfield.grids import KernelGrid
    >>> grids = tuple(KernelGrid.of((8,), (1.0,), limit=(n,)) for n in (2, 8, 3, 7))
    >>> [(union.points, members) for union, members in _unions(grids, extra=4)]
    [(15, [1, 3]), (5, [2, 0])]
    """
    groups: list[tuple[KernelGrid, list[int]]] = []
    spent = 0
    for i in sorted(range(len(grids)), key=lambda i: -grids[i].points):
        grid = grids[i]
        if groups:
            union, members = groups[-1]
            wide = grid if grid == union else _around(union, grid)
            spent += len(members) * (wide.points - union.points) + wide.points - grid.points
            if spent <= extra:
                groups[-1] = (wide, [*members, i])
                continue
        groups.append((grid, [i]))
        spent = 0
    return groups


def _around(a: KernelGrid, b: KernelGrid) -> KernelGrid:
    """Return the smallest grid that contains two grids of one step and size."""
    first = tuple(map(min, a.first, b.first))
    ends = (max(i + n, j + m) for i, n, j, m in zip(a.first, a.count, b.first, b.count, strict=True))
    count = tuple(end - begin for begin, end in zip(first, ends, strict=True))
    return dataclasses.replace(a, first=first, count=count)


def _sample_batch(
    layers: list[ContinuousConv], grids: list[KernelGrid], union: KernelGrid, channels: int | None
) -> Sequence[Tensor]:
    """Return the kernels of layers on their ``grids``, which all lie in ``union``."""
    first = layers[0]
    channels = None if first.groups == 1 or channels == first.in_channels else channels
    keys = [(layer, grid, channels or layer.in_channels) for layer, grid in zip(layers, grids, strict=True)]
    known = [recall_kernel(key) for key in keys]
    if all(kernel is not None for kernel in known):
        return known  # type: ignore[return-value]
    kernels = sample_grid(layers, union, channels).unbind(0)
    return [
        remember_kernel(key, kernel if grid is union or grid == union else union.cut(kernel, grid))
        for key, grid, kernel in zip(keys, grids, kernels, strict=True)
    ]


def sample_grid(layers: Sequence[SampledKernel], grid: KernelGrid, channels: int | None) -> Tensor:
    """Return the kernels of layers with one :meth:`SampledKernel.batch_key`, (layers, out, in / groups, *points)."""
    first = layers[0]
    wide = first.wide(grid) if first.smooth else grid
    with torch.autocast(first.reach.device.type, enabled=False):
        masks = None if first.mask is None else [layer.mask for layer in layers]
        values = sample_fields([layer.field for layer in layers], wide, channels, masks)  # type: ignore[arg-type]
        kernels = values.unflatten(1, (-1, first.in_channels // first.groups)).unflatten(-1, wide.count)
        return first.finish(kernels, grid)


#: kernels sampled inside the :func:`sampled_once` block of this thread, by layer, grid and channels
_samples: ContextVar[dict[Any, Tensor] | None] = ContextVar("kernelfield_sampled_kernels", default=None)


@contextlib.contextmanager
def sampled_once() -> Iterator[None]:
    """Sample each kernel only once inside the ``with`` block, in which no weight may change.

    Training steps use it if they convolve with the kernels of a network and then add the kernels' norm to the loss. The
    block applies to the thread (the context) that entered it; other threads sample their own kernels.

    >>> from kernelfield import CKConv
    >>> layer = CKConv(2, 2, size=8)
    >>> with sampled_once():
    ...     layers = [layer, CKConv(2, 2, size=8)]
    ...     first, second = (sample_kernels(layers, torch.randn(1, 2, 8)) for _ in range(2))
    >>> first[0] is second[0]
    True
    """
    with set_during(_samples, {}):
        yield


def remember_kernel(key: tuple[Any, ...], kernel: Tensor) -> Tensor:
    """Return ``kernel``, and keep it under ``key`` until the end of the :func:`sampled_once` block, if there is one."""
    samples = None if torch.compiler.is_compiling() else _samples.get()
    if samples is not None:
        entry = (*key, torch.is_grad_enabled())
        samples[entry] = kernel
    return kernel


def recall_kernel(key: tuple[Any, ...]) -> Tensor | None:
    """Return the kernel that was kept under ``key`` inside the current :func:`sampled_once` block, or None."""
    samples = None if torch.compiler.is_compiling() else _samples.get()
    return None if samples is None else samples.get((*key, torch.is_grad_enabled()))

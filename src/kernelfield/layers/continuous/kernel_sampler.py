"""Sample the kernels of many layers in as few operations as the kernel of one layer.

Kernel networks are small, so on a GPU their run time is the number of launches, which grows with the number of layers.
Fields of the same shape whose kernels lie on the same grid are therefore evaluated as one batched field.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..._arguments import checked
from ..._checks import floats_per_axis, is_symbolic
from ..._hooks import has_hooks
from ..._kinds import POSITIVE, ListOf, PerAxis
from ..._object_kinds import Instance, TensorOf
from ...ops.fieldnet import grid_points, sample_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...grids import KernelGrid
    from .continuous_conv import ContinuousConv
    from .sampled_kernel import SampledKernel

__all__ = ["recall_kernel", "remember_kernel", "sample_grid", "sample_kernels", "sample_requests", "sampled_once"]


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
    batches: dict[Any, list[int]] = {}
    for i, request in enumerate(requests):
        if request is not None:
            layer, lengths, steps, _ = request
            key = layer.batch_key(layer.grid(layer.input_lengths(lengths), steps))
            if key is not None:
                batches.setdefault(key, []).append(i)
    for key, members in batches.items():
        if len(members) > 1:
            chosen = [request for i in members if (request := requests[i]) is not None]
            wanted = [channels for *_, channels in chosen]
            most = None if None in wanted else max(wanted)  # type: ignore[type-var]
            for i, kernel in zip(members, _sample_batch([layer for layer, *_ in chosen], key[2], most), strict=True):
                kernels[i] = kernel
    return kernels


def _sample_batch(layers: list[ContinuousConv], grid: KernelGrid, channels: int | None) -> Sequence[Tensor]:
    first = layers[0]
    channels = None if first.groups == 1 or channels == first.in_channels else channels
    keys = [(layer, grid, channels or layer.in_channels) for layer in layers]
    known = [recall_kernel(key) for key in keys]
    if all(kernel is not None for kernel in known):
        return known  # type: ignore[return-value]
    kernels = sample_grid(layers, grid, channels)
    return [remember_kernel(key, kernel) for key, kernel in zip(keys, kernels.unbind(0), strict=True)]


def sample_grid(layers: Sequence[SampledKernel], grid: KernelGrid, channels: int | None) -> Tensor:
    """Return the kernels of layers with one :meth:`SampledKernel.batch_key`, (layers, out, in / groups, *points)."""
    first = layers[0]
    wide = first.wide(grid) if first.smooth else grid
    with torch.autocast(first.reach.device.type, enabled=False):
        values = sample_fields([layer.field for layer in layers], wide, channels)
        if first.mask is not None:
            masks = [layer.mask for layer in layers]
            points = grid_points(wide, first.reach.dtype, first.reach.device)
            if has_hooks(first.mask):
                window = first.mask(points).unsqueeze(0)
            else:
                window = type(first.mask).together(masks, points)  # type: ignore[arg-type]
            values = values * window.unsqueeze(1)
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
    before = _samples.set({})
    try:
        yield
    finally:
        _samples.reset(before)


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

"""Sampling the kernels of many layers in as few operations as those of one.

A kernel network is small, so that on a GPU it is its launches that take time, not its arithmetic, and a network of ten
layers launches ten times as many. Layers whose fields have the same shape and whose kernels lie on the same grid are
evaluated as one batched field instead.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._checks import floats_per_axis
from ...ops.fieldnet import sample_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .continuous_conv import ContinuousConv

__all__ = ["recall_kernel", "remember_kernel", "sample_alone", "sample_kernels", "sample_on", "sampled_once"]


def sample_kernels(
    layers: Sequence[ContinuousConv], x: Tensor, *, step: float | Sequence[float] = 1.0, coords: Tensor | None = None
) -> list[Tensor | None]:
    """Return the kernels with which ``layers`` would convolve a signal like ``x``, to give to their ``forward``.

    Args:
        layers: continuous convolutions of one network.
        x: (batch, channels, *space) signal on the grid that all of them see.
        step: its sampling step in training steps.
        coords: coordinates, if the samples lie on no grid; there is no kernel to sample ahead then.

    Returns:
        A kernel for each layer, or None for one that samples its own: alone in its kind, frozen, or traced by a
        compiler, which does its own fusing.

    >>> from kernelfield import CKConv
    >>> layers = [CKConv(2, 2, size=8) for _ in range(3)]
    >>> x = torch.randn(1, 2, 8)
    >>> kernels = sample_kernels(layers, x)
    >>> all(torch.allclose(layer(x, kernel=k), layer(x), atol=1e-6) for layer, k in zip(layers, kernels))
    True
    """
    if coords is not None or torch.compiler.is_compiling():
        return [None] * len(layers)
    lengths = tuple(x.shape[2:])
    return sample_on([(layer, lengths, floats_per_axis("step", step, layer.dim)) for layer in layers])


def sample_on(
    meetings: Sequence[tuple[ContinuousConv, tuple[int, ...], tuple[float, ...]] | None],
    channels: Sequence[int | None] | None = None,
) -> list[Any]:
    """Return the kernels of layers that meet signals on grids of their own, as :func:`sample_kernels` does.

    Args:
        meetings: a layer, and the lengths and sampling steps of the signal it will meet; None for a layer that samples
            its own kernel.
        channels: how many channels, the first ones, the signal of each layer has; None for all. Layers that are sampled
            together may get kernels for more than that.
    """
    kernels: list[Tensor | None] = [None] * len(meetings)
    alike: dict[Any, list[int]] = {}
    for i, meeting in enumerate(meetings):
        if meeting is None:
            continue
        layer, lengths, steps = meeting
        key = layer.sampled_alike(lengths, steps)
        if key is not None:
            alike.setdefault((key, lengths, steps), []).append(i)
    for (_, lengths, steps), members in alike.items():
        if len(members) > 1:
            layers = [meetings[i][0] for i in members]  # type: ignore[index]
            wanted = None if channels is None else [channels[i] for i in members]
            most = None if wanted is None or None in wanted else max(wanted)  # type: ignore[type-var]
            for i, kernel in zip(members, _sample(layers, lengths, steps, most), strict=True):
                kernels[i] = kernel
    return kernels


def sample_alone(
    layer: ContinuousConv, lengths: Sequence[int] | None, steps: tuple[float, ...], channels: int
) -> Tensor | None:
    """Return the kernel of one layer, or of its first channels; None in traced code, which samples it itself."""
    if torch.compiler.is_compiling():
        return None
    key = (layer, layer.lattice(lengths, steps), channels)
    known = _known(key)
    if known is not None:
        return known
    return _remember(key, _kernels([layer], lengths, steps, None if channels == layer.in_channels else channels)[0])


def _sample(
    layers: list[ContinuousConv], lengths: tuple[int, ...], steps: tuple[float, ...], channels: int | None = None
) -> Sequence[Tensor]:
    first = layers[0]
    channels = None if first.groups == 1 or channels == first.in_channels else channels
    keys = [(layer, layer.lattice(lengths, steps), channels or layer.in_channels) for layer in layers]
    known = [_known(key) for key in keys]
    if all(kernel is not None for kernel in known):
        return known  # type: ignore[return-value]
    kernels = _kernels(layers, lengths, steps, channels)
    return [_remember(key, kernel) for key, kernel in zip(keys, kernels.unbind(0), strict=True)]


def _kernels(
    layers: list[ContinuousConv], lengths: Sequence[int] | None, steps: tuple[float, ...], channels: int | None
) -> Tensor:
    """Return the kernels of layers that are sampled alike, (layers, out, in / groups, *points)."""
    first = layers[0]
    grid = first.lattice(lengths, steps)
    with torch.autocast(first.reach.device.type, enabled=False):
        values = sample_fields([layer.field for layer in layers], grid, channels)
        if first.mask is not None:
            coords = grid.coords(dtype=first.reach.dtype, device=first.reach.device).flatten(0, -2)
            masks = [layer.mask for layer in layers]
            values = values * type(first.mask).together(masks, coords).unsqueeze(1)  # type: ignore[arg-type]
        kernels = values.unflatten(1, (-1, first.in_channels // first.groups)).unflatten(-1, grid.count)
        return first.finish(kernels, steps)


#: kernels sampled inside the :func:`sampled_once` block of this thread, by layer, grid and channels
_samples: ContextVar[dict[Any, Tensor] | None] = ContextVar("kernelfield_sampled_kernels", default=None)


@contextlib.contextmanager
def sampled_once() -> Iterator[None]:
    """Sample no kernel twice inside the ``with`` block, in which no weight may change.

    A training step convolves with the kernels of a network and then adds their norm to its loss. The block belongs to
    the thread (the context) that entered it; other threads sample their own kernels.

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


def remember_kernel(key: Any, kernel: Tensor) -> Tensor:
    """Return ``kernel``, remembered under ``key`` until the end of the :func:`sampled_once` block, if there is one."""
    return kernel if torch.compiler.is_compiling() else _remember(key, kernel)


def recall_kernel(key: Any) -> Tensor | None:
    """Return the kernel that was remembered under ``key`` inside the present :func:`sampled_once` block, or None."""
    return None if torch.compiler.is_compiling() else _known(key)


def _known(key: Any) -> Tensor | None:
    samples = _samples.get()
    return None if samples is None else samples.get((*key, torch.is_grad_enabled()))


def _remember(key: Any, kernel: Tensor) -> Tensor:
    samples = _samples.get()
    if samples is not None:
        entry = (*key, torch.is_grad_enabled())
        samples[entry] = kernel
    return kernel

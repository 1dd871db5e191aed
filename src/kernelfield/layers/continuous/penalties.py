"""Penalties on generated kernels, as functions over a model (chapters 3 and 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...fields import FilterNetwork
from ...masks import GaussianMask
from .continuous_conv import ContinuousConv
from .kernel_sampler import sample_on

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["aliasing_loss", "kernel_frequency", "kernel_l2", "nyquist"]


def kernel_l2(model: nn.Module) -> Tensor:
    r"""Return half the squared norm of all generated kernels of ``model`` (chapter 3, Eq. 4).

    .. math:: \tfrac12 \sum_l \|\psi_l\|^2

    Weight decay for continuous kernels: it is the kernel that should be small, not the weights of the network that
    generates it.

    >>> from kernelfield import CKConv
    >>> layer = CKConv(2, 2, size=8)
    >>> bool(kernel_l2(layer) == layer.kernel().square().sum() / 2)
    True
    """
    layers = list(_layers(model))
    together = [None] * len(layers)
    if not torch.compiler.is_compiling():  # which does its own fusing
        together = sample_on([(layer, layer.size, (1.0,) * layer.dim) for layer in layers])
    kernels = [layer.kernel() if k is None else k for layer, k in zip(layers, together, strict=True)]
    terms = [kernel.square().sum() / 2 for kernel in kernels]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def aliasing_loss(
    model: nn.Module, *, nyquist_factor: float = 1.0, with_mask: bool = True, per_filter: bool = True, cut: float = 2.0
) -> Tensor:
    r"""Return :math:`L_\mathrm{HF}`, which keeps kernels under the Nyquist frequency of the training grid (chapter 5).

    .. math::
        \sum_\mathrm{layers} \sum_{l=1}^{L} \max\Big(0,\;
        f^+_l + \tfrac{1}{L} f^+_\mathrm{mask} - \tfrac{1}{L} f_\mathrm{Nyq}\Big)^2

    Each filter has its share of the band, so that the gradient of one does not depend on the others (chapter 5's
    appendix, "Improved implementation"). Layers whose field cannot tell its highest frequency are passed over.

    Args:
        model: any module.
        nyquist_factor: keep frequencies under this fraction of the Nyquist frequency, for use at coarser grids.
        with_mask: count the mask, which widens the spectrum of what it multiplies.
        per_filter: False penalises the sum over filters instead (Eq. 10).
        cut: at how many standard deviations the spectrum of a Gaussian counts as ended.

    >>> from kernelfield import FlexConv
    >>> layer = FlexConv(2, 2, size=64)
    >>> bool(aliasing_loss(layer, nyquist_factor=0.01) > aliasing_loss(layer))
    True
    """
    terms = []
    for layer in _layers(model):
        if not isinstance(layer.field, FilterNetwork):
            continue
        filters = layer.field.bandwidths(cut)
        mask = _mask_frequency(layer, cut) if with_mask else filters.new_zeros(())
        limit = nyquist_factor * nyquist(layer)
        count = len(filters)
        excess = filters + (mask - limit) / count if per_filter else filters.sum() + mask - limit
        terms.append(excess.clamp(min=0).square().sum())
    return torch.stack(terms).sum() if terms else torch.zeros(())


def nyquist(layer: ContinuousConv) -> float:
    """Return the highest frequency the training grid can hold, in cycles per unit of the kernel's coordinate.

    Samples lie 1/size apart, so this is size/2, of the shortest axis. (Chapter 5's (k - 1)/4, for a kernel of k points
    that spans [-1, 1].)
    """
    return min(layer.size) / 2


def kernel_frequency(layer: ContinuousConv, cut: float = 2.0) -> Tensor | None:
    """Return the highest frequency of a layer's kernel, field and mask (chapter 5, Eq. 9); None if unknown.

    In cycles per unit of the kernel's coordinate, like :func:`nyquist`.
    """
    highest = layer.field.max_frequency()
    return None if highest is None else highest + _mask_frequency(layer, cut)


def _mask_frequency(layer: ContinuousConv, cut: float) -> Tensor:
    if not isinstance(layer.mask, GaussianMask):
        return layer.reach.new_zeros(())
    # The narrowest axis of the mask widens the spectrum the most.
    return cut / (2 * math.pi * layer.mask.sigma.abs().min())


def _layers(model: nn.Module) -> Iterator[ContinuousConv]:
    return (module for module in model.modules() if isinstance(module, ContinuousConv))

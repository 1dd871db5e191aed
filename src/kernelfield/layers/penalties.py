"""Penalties on kernels, as functions of a model (chapters 2, 3, 5 and 11)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import NOT_NEGATIVE, POSITIVE, Choice
from ..fields import Field, FilterNetwork
from ..masks import GaussianMask
from ..ops.sum_of_norms import sum_of_norms
from .continuous.continuous_conv import ContinuousConv
from .continuous.kernel_sampler import recall_kernel, sample_requests
from .group.gconv import BaseGroupConv
from .group.kernel import GroupKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["aliasing_loss", "kernel_frequency", "kernel_l2", "kernel_norm", "nyquist"]

#: parameters that :func:`kernel_norm` counts besides kernels
OTHER_PARAMETERS = ("all", "biases", "none")


@checked()
def kernel_l2(model: nn.Module) -> Tensor:
    r"""Return half the squared norm of all generated kernels of ``model`` (chapter 3, Eq. 3).

    .. math:: \tfrac12 \sum_l \|\psi_l\|^2

    This is weight decay for continuous kernels: it penalises the kernel, not the weights of the network that generates
    it. Kernels on groups count as they were rendered. Kernels that the forward pass has sampled inside
    :func:`~kernelfield.layers.continuous.kernel_sampler.sampled_once` are not sampled again.

    Args:
        model: any module.

    >>> from kernelfield import CKConv
    >>> layer = CKConv(2, 2, size=8)
    >>> bool(kernel_l2(layer) == layer.kernel().square().sum() / 2)
    True
    """
    terms = [kernel.square().sum() / 2 for kernel in _kernels(model)]
    return torch.stack(terms).sum() if terms else torch.zeros(())


@checked(parameters=Choice(*OTHER_PARAMETERS))
def kernel_norm(model: nn.Module, *, parameters: str = "all") -> Tensor:
    r"""Return the sum of the norms, not squared, of all kernels and of other parameters.

    .. math:: \sum_l \|\psi_l\|_2 + \sum_p \|p\|_2

    The published code of chapters 2, 3, 5 and 11 adds this to the loss, times a weight. The gradient of a norm that is
    not squared does not shrink with the kernel, so a published weight does not carry over to :func:`kernel_l2`. Kernels
    count with their masks applied.

    Args:
        model: any module.
        parameters: "all" counts every parameter outside kernel networks: linear maps, biases, norms, mask sizes
            (chapter 3); "biases" the biases of the convolutions themselves (chapters 2, 5 and 11); "none" only kernels.

    >>> from kernelfield import CKConv
    >>> layer = CKConv(2, 2, size=8)
    >>> torch.allclose(kernel_norm(layer), layer.kernel().norm() + layer.bias.norm())
    True
    """
    others: list[Tensor] = []
    if parameters == "biases":
        layers = (*_layers(model), *_group_layers(model))
        others = [layer.bias for layer in layers if isinstance(layer.bias, Tensor)]
    elif parameters == "all":
        generated = {id(p) for m in model.modules() if isinstance(m, Field) for p in m.parameters()}
        others = [p for p in model.parameters() if id(p) not in generated]
    # Norms are not differentiable at zero. Their gradient there is 0, so biases that start at zero are safe.
    counted = [*_kernels(model), *others]
    return sum_of_norms(counted) if counted else torch.zeros(())


def _kernels(model: nn.Module) -> list[Tensor]:
    """Return the kernels of all convolutions, without sampling those again that the forward pass has kept."""
    layers = list(_layers(model))
    batched: list[Tensor | None] = [None] * len(layers)
    if not torch.compiler.is_compiling():  # a compiler fuses operations itself
        batched = sample_requests([(layer, layer.size, (1.0,) * layer.dim, None) for layer in layers])
    kernels = [layer.penalised_kernel() if k is None else k for layer, k in zip(layers, batched, strict=True)]
    return kernels + [_rendered(layer, kernel) for layer in _group_layers(model) for kernel in _group_kernels(layer)]


def _rendered(layer: Any, kernel: nn.Module) -> Tensor:
    """Return a kernel on a group as the forward pass rendered it, or rendered at the layer's elements."""
    known = recall_kernel((kernel,))
    if known is not None:
        return known
    elements, gates = layer.distribution(next(kernel.parameters()))
    rendered = kernel(elements, elements)
    if gates is None or not layer.distribution.gated:
        return rendered
    present = gates.detach().view(-1, *[1] * (rendered.dim() - 2))  # (out, n_out, in, n_in, *points)
    return rendered * present * (present.movedim(0, 2) if rendered.shape[3] > 1 else 1)


def _group_layers(model: nn.Module) -> list[BaseGroupConv]:
    return [module for module in model.modules() if isinstance(module, BaseGroupConv)]


def _group_kernels(layer: nn.Module) -> list[GroupKernel]:
    return [module for module in layer.children() if isinstance(module, GroupKernel)]


@checked(nyquist_factor=POSITIVE, cut=NOT_NEGATIVE, unit=POSITIVE)
def aliasing_loss(
    model: nn.Module,
    *,
    nyquist_factor: float = 1.0,
    with_mask: bool = True,
    per_filter: bool = True,
    cut: float = 2.0,
    unit: float = 0.5,
) -> Tensor:
    r"""Return :math:`L_\mathrm{HF}`, which keeps kernels under the Nyquist frequency of the training grid (chapter 5).

    .. math::
        \sum_\mathrm{layers} \sum_{l=1}^{L} \max\Big(0,\;
        f^+_l + \tfrac{1}{L} f^+_\mathrm{mask} - \tfrac{1}{L} f_\mathrm{Nyq}\Big)^2

    Each filter has its share of the band, so the gradient of one filter does not depend on the others (chapter 5,
    appendix, "Improved implementation"). Layers whose field is not a filter network are skipped.

    Args:
        model: any module.
        nyquist_factor: fraction of the Nyquist frequency to stay under; below 1 for later use on coarser grids.
        with_mask: whether to include the mask, which widens the spectrum of the kernel.
        per_filter: whether each filter has its own term; False penalises the sum over filters (chapter 5, Eq. 12).
        cut: number of standard deviations after which the spectrum of a Gaussian counts as zero.
        unit: unit of length of the frequencies, relative to the layer's size. A kernel as long as the input spans
            [-1, 1] in the publication but [-½, ½] (or [0, 1]) here. The published unit is therefore 0.5, with which the
            published weight of the loss can be used. Use 1 for layers whose size is half the input's.

    >>> from kernelfield import FlexConv
    >>> layer = FlexConv(2, 2, size=64)
    >>> bool(aliasing_loss(layer, nyquist_factor=0.01) > aliasing_loss(layer))
    True
    """
    terms = []
    for layer in penalised_filters(model):
        filters = layer.field.bandwidths(cut)  # type: ignore[operator]
        mask = _mask_frequency(layer, cut) if with_mask else filters.new_zeros(())
        limit = nyquist_factor * nyquist(layer)
        count = len(filters)
        excess = filters + (mask - limit) / count if per_filter else filters.sum() + mask - limit
        terms.append((unit * excess).clamp(min=0).square().sum())
    return torch.stack(terms).sum() if terms else torch.zeros(())


@checked()
def nyquist(layer: ContinuousConv) -> float:
    """Return the highest frequency the training grid can hold, in cycles per unit of the kernel's coordinate.

    Samples lie 1/size apart, so this is size/2 along the shortest axis. For a kernel of k points that spans [-1, 1],
    this is chapter 5's (k - 1)/4.

    Args:
        layer: the layer.

    >>> from kernelfield import FlexConv
    >>> nyquist(FlexConv(2, 2, size=64))
    32.0
    """
    return min(layer.size) / 2


@checked(cut=NOT_NEGATIVE)
def kernel_frequency(layer: ContinuousConv, cut: float = 2.0) -> Tensor | None:
    """Return the highest frequency of a layer's kernel, field and mask together (chapter 5, Eq. 11); None if unknown.

    It is in cycles per unit of the kernel's coordinate, like :func:`nyquist`.

    Args:
        layer: the layer.
        cut: number of standard deviations after which the spectrum of a Gaussian, in field or mask, counts as zero.

    >>> from kernelfield import FlexConv
    >>> layer = FlexConv(2, 2, size=64)
    >>> bool(kernel_frequency(layer) > layer.field.max_frequency())
    True
    """
    highest = layer.field.max_frequency(cut)
    return None if highest is None else highest + _mask_frequency(layer, cut)


def _mask_frequency(layer: ContinuousConv, cut: float) -> Tensor:
    if not isinstance(layer.mask, GaussianMask):
        return layer.reach.new_zeros(())
    # The narrowest axis of the mask widens the spectrum the most.
    return cut / (2 * math.pi * layer.mask.sigma.abs().min())


def penalised_filters(model: nn.Module) -> list[ContinuousConv]:
    """Return the layers that :func:`aliasing_loss` counts: those whose field is a filter network."""
    return [layer for layer in _layers(model) if isinstance(layer.field, FilterNetwork)]


def penalised_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that :func:`kernel_l2` and :func:`kernel_norm` count: those with a generated kernel."""
    return [*_layers(model), *(layer for layer in _group_layers(model) if _group_kernels(layer))]


def _layers(model: nn.Module) -> Iterator[ContinuousConv]:
    return (module for module in model.modules() if isinstance(module, ContinuousConv))

"""FlexConv: a convolution that learns the size of its kernel (chapter 5)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from ..._arguments import checked, with_arguments_of
from ..._checks import check_options, per_axis
from ..._kinds import POSITIVE, SHARE, Int, PerAxis
from ...fields import Field, MAGNet, bind_start
from ...masks import GaussianMask, Mask
from .continuous_conv import ContinuousConv, ConvOptions
from .sampled_kernel import SampledKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

__all__ = ["FlexConv", "own_mask"]


def own_mask(mask: Callable[..., Mask] | Mask, dim: int) -> Mask:
    """Return a copy of a mask, or the mask that a class or function makes from ``dim``.

    >>> own_mask(lambda dim: GaussianMask(dim, 0.1), 2).dim
    2
    """
    accepted = "a kernelfield.masks.Mask, a callable that makes one from dim, or None"
    if isinstance(mask, Mask):
        return copy.deepcopy(mask)
    if not callable(mask):
        raise TypeError(f"mask must be {accepted}, got {type(mask).__name__}")
    try:
        found = mask(dim)
    except (AttributeError, TypeError) as error:  # such as a function of coordinates
        raise TypeError(f"mask must be {accepted}, got {mask!r}, which fails for dim={dim}: {error}") from error
    if not isinstance(found, Mask):
        raise TypeError(f"mask must be {accepted}, got {mask!r}, which makes {type(found).__name__}")
    return found


@torch.no_grad()
def _reach_neighbours_(mask: GaussianMask, size: Sequence[int]) -> None:
    """Widen a mask, in place, to at least 1¼ steps along each axis.

    Sizes below 4 are those of networks on points, whose coordinates have another unit than a step.
    """
    least = [mask.sigma_for(1.25 / n) if n >= 4 else 0.0 for n in size]
    floor = mask.sigma.new_tensor([max(least)] if len(mask.sigma) == 1 else least)
    mask.sigma.copy_(torch.maximum(mask.sigma, floor))


class FlexConv(ContinuousConv):
    r"""A convolution that learns how large its kernel is: a field under a Gaussian mask (chapter 5, section 3.1).

    .. math:: \psi(x) = \mathrm{MAGNet}(x) \cdot m_\mathrm{gauss}(x; \mu, \sigma)

    Only the mask's support is sampled and convolved. ``forward`` never reads the support from the device.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        dim: number of spatial dimensions, 1 to 3.
        size: the largest reach of the kernel in training steps, one for all axes or one per axis.
        field: makes the kernel's field from ``(dim, channels)``, with chapter 5's starting values unless others are
            bound to it.
        sigma: initial width of the Gaussian mask, where 1 is ``size`` steps. If it is learned, the mask begins wide
            enough to reach the neighbours of a sample: a kernel of a single point has no gradient that could widen it.
        mask: another mask in place of the Gaussian: a :class:`~kernelfield.masks.Mask`, which the layer copies, or a
            class or function that makes one from ``dim``. It lives on the kernel's domain, [-1, 1] along each axis, or
            [0, 1] if causal. The arguments that describe the Gaussian (sigma, threshold, learn_mean, learn_sigma,
            isotropic) then have no effect.
        threshold: mask values below it are zero.
        learn_mean: whether the mask's centre, initially at offset zero, is learned too.
        learn_sigma: whether the mask's width is learned.
        isotropic: whether all axes share one width.
        crop: whether to sample only the mask's support. False samples the kernel's full reach, with the same results
            in constant shapes, for CUDA graphs.
        causal: whether outputs depend only on present and past inputs; needs dim 1.
        options: options of every continuous convolution, described in :class:`ContinuousConv`: bias, depthwise,
            boundary, smooth, neighbors, method, gain, kernel_dropout, point_method, tolerance.

    >>> import torch
    >>> layer = FlexConv(4, 8, dim=1, size=784, causal=True, sigma=0.04)
    >>> layer(torch.randn(2, 4, 784)).shape
    torch.Size([2, 8, 784])
    >>> layer.kernel().shape[-1]        # 2.15 · 0.04 · 784 = 67.3 steps, in a bucket of 80
    80
    """

    @checked(dim=Int(1, 3), sigma=PerAxis(POSITIVE), threshold=SHARE)
    @with_arguments_of(ContinuousConv.__init__, SampledKernel.__init__, without=("kernel", "spread"))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 1,
        field: Callable[..., Field] | Field = MAGNet,
        sigma: float | Sequence[float] = 0.0375,
        mask: Callable[..., Mask] | Mask | None = None,
        threshold: float = 0.1,
        learn_mean: bool = True,
        learn_sigma: bool = True,
        isotropic: bool = False,
        crop: bool = True,
        causal: bool = False,
        **options: Unpack[ConvOptions],
    ) -> None:
        check_options(self, options, ConvOptions.__annotations__)
        if mask is None:
            mask = GaussianMask(
                dim,
                sigma,
                threshold=threshold,
                learn_mean=learn_mean,
                learn_sigma=learn_sigma,
                isotropic=isotropic,
                domain=(0.0, 1.0) if causal else (-1.0, 1.0),
            )
            if learn_sigma and "size" in options:  # the base class says if it is missing
                PerAxis(Int(1)).check("size", options["size"], {"dim": dim})
                _reach_neighbours_(mask, per_axis(options["size"], dim))
            # Envelopes start inside the mask: within 1.667 widths of its centre, as the authors place them.
            spread = min(1.0, 1.667 * float(mask.sigma.detach().max()))
        else:
            mask = own_mask(mask, dim)
            spread = min(1.0, max(float(edge.detach().abs().max()) for edge in mask.support()))
        started = field if isinstance(field, Field) else bind_start(field, "flexconv")
        kernel: dict[str, Any] = {"dim": dim, "field": started, "mask": mask, "crop": crop, "spread": spread}
        super().__init__(in_channels, out_channels, causal=causal, **kernel, **options)

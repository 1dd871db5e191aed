"""DNArch, a CCNN that learns its kernel sizes, resolutions, widths and depth with its weights (chapter 6)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import POSITIVE, SHARE, Choice, ListOf, Number
from ..._object_kinds import TensorOf
from ...layers import ActiveSlice, BandLimit, CCNNBlock, FixedShapeBandLimit, cutoff
from ...masks import Mask, SigmoidMask
from ..ccnn import CCNN
from ..readout import ReadoutClassifier
from .architecture import Architecture, BlockArchitecture
from .cost import BlockSizes, block_cost, network_cost, outer_cost, training_size
from .masks import MaskSizes, cell_centres
from .materialize import conv_layers, copy_common, fixed_slice, fold_masks, kernel_points

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..readout import Readout

__all__ = ["DNArch"]

LEARN = ("kernel", "resolution", "width", "depth")
_ENLARGED = Number(1, 1000)


class DNArch(ReadoutClassifier):
    r"""A CCNN whose architecture is learned by backpropagation, with its weights and in the same run (chapter 6).

    The network is enlarged to ``max_width`` times its width and ``max_depth`` times its depth, and masks cut it down
    again. Every kernel has a Gaussian mask. Sigmoid masks lie on the spectrum of every residual branch, on the channels
    that the branch reads, has in its middle and writes, and on the axis of blocks. The identity branch is never masked.
    At first the masks keep the size of the given network and all of its weights.

    The forward pass computes only the parts that the masks keep: narrow matrix products, cropped kernels, convolutions
    at a low resolution, and open blocks. The sizes change after optimiser steps, never inside ``forward``. The README
    beside this file has a picture.

    .. math:: y = x + m_\mathrm{depth}\, \mathrm{up}\Big[\sigma\big(m_\mathrm{out} L\, \mathrm{drop}\,
        \sigma(m_\mathrm{mid} W m_\mathrm{in} (\psi m_\mathrm{gauss}) * \mathrm{down}_{m_\mathrm{res}} N x)\big)\Big]

    Args:
        network: a CCNN with blocks "ccnn" or "s4". Its weights are copied; it does not change.
        learn: the sizes to learn, any of "kernel", "resolution", "width" and "depth". Resampling looks ahead, so a
            causal network with a dense readout cannot learn its resolution.
        budget: target of :meth:`complexity_loss`, in units of the network's own complexity.
        max_width: the largest width in units of the network's, if the width is learned.
        max_depth: the largest number of blocks in units of the network's, if the depth is learned.
        threshold: mask values below it are zero.
        sigma: width of the masks on the kernels if the network has none: 0.25 leaves kernels as long as the input.
        resolution_temperature: steepness of the masks on the spectrum; the lowest resolution is 2.6/τ of the input's.
        width_temperature: steepness of the masks on channels.
        depth_temperature: steepness of the mask on blocks.
        fixed_shapes: whether masks only multiply and cut nothing. Outputs are the same and shapes are constant, as CUDA
            graphs and compilers need, but every step costs as much as the largest size.

    >>> net = DNArch(CCNN(1, 10, dim=2, size=16, channels=8, blocks=2))
    >>> net(torch.randn(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    >>> net.complexity_loss().requires_grad
    True
    >>> net.architecture().depth, net.architecture().blocks[0].widths
    (2, (8, 8, 8))
    >>> type(net.materialize()).__name__
    'CCNN'
    """

    @checked(
        learn=Choice(*LEARN) | ListOf(Choice(*LEARN), least=0),
        budget=POSITIVE | None,
        **dict.fromkeys(("max_width", "max_depth"), _ENLARGED),
        threshold=SHARE,
        **dict.fromkeys(("sigma", "resolution_temperature", "width_temperature", "depth_temperature"), POSITIVE),
    )
    def __init__(
        self,
        network: CCNN,
        *,
        learn: Sequence[str] = LEARN,
        budget: float | None = 1.0,
        max_width: float = 2,
        max_depth: float = 2,
        threshold: float = 0.1,
        sigma: float = 0.25,
        resolution_temperature: float = 25.0,
        width_temperature: float = 25.0,
        depth_temperature: float = 8.0,
        fixed_shapes: bool = False,
    ) -> None:
        super().__init__()
        if not all(isinstance(block, CCNNBlock) for block in network.blocks):
            raise TypeError(f"network must be a CCNN with blocks 'ccnn' or 's4', got {type(network).__name__}")
        if network.arguments["active"] is not None:
            raise ValueError("network must be a CCNN with blocks of one size, got one that was materialized")
        names = (learn,) if isinstance(learn, str) else tuple(learn)
        self.learn = frozenset(names)
        if "resolution" in self.learn and _causal_and_dense(network):
            raise ValueError(
                "learn must not include 'resolution' for a causal network with a dense readout, since resampling looks "
                f"ahead; got {names}"
            )
        self.budget = None if budget is None else float(budget)
        self.fixed_shapes = fixed_shapes
        if fixed_shapes and network.arguments.get("smooth"):
            raise ValueError("fixed_shapes must be False for a network with smooth=True, got True")
        self.base_cost = network_cost(network)
        self.network = self._largest(network, max_width, max_depth, threshold, sigma)
        channels, blocks, dim = (self.network.arguments[name] for name in ("channels", "blocks", "dim"))
        base, like = network.arguments, next(network.parameters())

        def mask(name: str, axes: int, offset: float, temperature: float) -> SigmoidMask | None:
            if name not in self.learn or axes == 0:
                return None
            return SigmoidMask(axes, offset, temperature=temperature, threshold=threshold).to(like)

        def kept(share: float, temperature: float) -> float:
            return SigmoidMask.offset_for(share, temperature, threshold)

        #: one axis for each of the three widths of each block
        self.width = mask("width", 3 * blocks, kept(base["channels"] / channels, width_temperature), width_temperature)
        #: one axis for each axis of space of each block
        self.resolution = mask("resolution", dim * blocks, 0.0, resolution_temperature)
        #: one axis, the blocks
        self.depth = mask(
            "depth", 1 if blocks else 0, kept(base["blocks"] / max(1, blocks), depth_temperature), depth_temperature
        )
        if self.resolution is not None:
            with torch.no_grad():
                self.resolution.offset.fill_(self.resolution.limits()[1])  # the highest frequency weighs 0.85
        self.sizes = MaskSizes(
            self.width,
            self.resolution,
            self.depth,
            self._kernel_masks(),
            channels,
            blocks,
            min(training_size(self.network)),
            fixed_shapes,
        )
        self.register_load_state_dict_post_hook(_read_loaded)
        #: the rows of :meth:`record`
        self.history: list[dict[str, float]] = []

    def train(self, mode: bool = True) -> DNArch:
        self.sizes.read_again()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DNArch:
        self.sizes.converted = True
        return super()._apply(fn, recurse)

    # The forward pass

    @checked(x=TensorOf(empty=False))
    def forward(self, x: Tensor, **sampling: Any) -> Tensor:
        """Return predictions for ``x`` (batch, in, *space); step, mask and density are those of :class:`CCNN`."""
        return self.network(x, active=self.active(), **sampling)

    def forward_features(self, x: Tensor, **sampling: Any) -> Tensor:
        """Return features (batch, channels, *space) of ``x``, before pooling; arguments as in :meth:`forward`."""
        return self.network.forward_features(x, active=self.active(), **sampling)

    def _head(self) -> Readout:
        return self.network.readout

    def _replace_classifier(self, num_classes: int) -> None:
        self.network.reset_classifier(num_classes)

    def active(self) -> list[ActiveSlice] | None:
        """Return the part of each block that is in use, for :meth:`CCNN.forward`; None if that is all of them."""
        if not self.fixed_shapes and not torch.compiler.is_compiling():
            self.sizes.refresh()
        elif not self.fixed_shapes and not self.sizes.fits():
            raise ValueError(
                "fixed_shapes must be True for compiled calls with other masks than the network's own, got False; "
                "if other masks were used in an earlier call, train() or eval() reads the network's own again"
            )
        return self._slices(self.sizes)

    def _slices(self, sizes: MaskSizes) -> list[ActiveSlice] | None:
        if self.width is None and self.resolution is None and self.depth is None:
            return None
        widths = None if self.width is None else self.width.values(cell_centres(sizes.channels, self.width.offset))
        depths = None if self.depth is None else self.depth.values(cell_centres(sizes.blocks, self.depth.offset))
        limits = self._band_limits(sizes)
        slices = []
        for b in range(sizes.kept_blocks):
            kept: tuple[int, int, int] | None = None
            factors: Any = (None, None, None)
            if widths is not None:
                kept = None if sizes.fixed else sizes.kept_widths[b]
                columns = widths[:, 3 * b : 3 * b + 3].unbind(1)
                factors = columns if kept is None else tuple(c[:n] for c, n in zip(columns, kept, strict=True))
            scale = None if depths is None else depths[b, 0]
            slices.append(ActiveSlice(kept, factors, None if limits is None else limits[b], scale))
        return slices

    def _band_limits(self, sizes: MaskSizes) -> list[BandLimit | FixedShapeBandLimit] | None:
        mask = self.resolution
        if mask is None:
            return None
        offsets = mask.offset.view(sizes.blocks, -1)
        how = mask.temperature, mask.threshold
        if sizes.fixed:
            shares = cutoff(mask.roots()[1].detach().double()).view(offsets.shape)
            return [FixedShapeBandLimit(share, offset, *how) for share, offset in zip(shares, offsets, strict=True)]
        kept = sizes.kept_bands
        return [BandLimit(share, offset, *how) for share, offset in zip(kept, offsets, strict=True)]

    # Complexity

    def complexity(self) -> Tensor:
        """Return the number of operations of a forward pass, differentiable in the masks.

        If the depth lies between two whole numbers, the last block counts in part.
        """
        costs = self._block_costs()
        if self.depth is not None:
            depth = self.depth.size(self.sizes.blocks)
            before = torch.arange(self.sizes.blocks, dtype=depth.dtype, device=depth.device)
            share = (depth - before).clamp(min=0.0)
            # The last share is not clamped, so the cost has a gradient for the mask at its largest size too.
            costs = costs * torch.cat([share[:-1].clamp(max=1.0), share[-1:]])
        return costs.sum() + outer_cost(self.network)

    def relative_complexity(self) -> Tensor:
        """Return :meth:`complexity` in units of the given network's complexity."""
        return self.complexity() / self.base_cost

    @checked(target=POSITIVE | None)
    def complexity_loss(self, target: float | None = None) -> Tensor:
        r"""Return the squared relative difference to a target (chapter 6, Eq. 11).

        .. math:: \big(C_\mathrm{curr} / C_\mathrm{target} - 1\big)^2

        Args:
            target: target complexity in units of the given network's; ``budget`` if not given.
        """
        aim = self.budget if target is None else float(target)
        if aim is None:
            raise ValueError("target must be given for a network without a budget, got None")
        return (self.relative_complexity() / aim - 1).square()

    def _block_costs(self) -> Tensor:
        """Return the operations of every block, (blocks,)."""
        size, channels, blocks = training_size(self.network), self.sizes.channels, self.sizes.blocks
        widths: Any = (channels,) * 3
        if self.width is not None:
            widths = self.width.size(channels).view(blocks, 3).unbind(1)
        lengths: Any = size
        if self.resolution is not None:
            shares = self.resolution.size(1).view(blocks, len(size)).unbind(1)
            lengths = [share * n for share, n in zip(shares, size, strict=True)]
        costs = block_cost(self.network, BlockSizes(widths[0], widths[1], widths[2], lengths))
        if isinstance(costs, Tensor):
            return costs
        return torch.full((blocks,), float(costs), dtype=torch.float32, device=next(self.parameters()).device)

    # Reports and export

    @torch.no_grad()
    def architecture(self) -> Architecture:
        """Return the current architecture in whole numbers, one entry per block in use."""
        numbers = self.sizes.unfixed()
        size = training_size(self.network)
        costs = self._block_costs().tolist()
        total = float(self.complexity())
        blocks = []
        for b in range(numbers.kept_blocks):
            layer = self.network.blocks[b].continuous_layers()[0]  # type: ignore[operator]
            resolution = size
            if self.resolution is not None:
                resolution, _ = BandLimit(numbers.kept_bands[b], (), 1.0, 0.5).grid(size, (1.0,) * len(size))
            widths = (numbers.channels,) * 3 if self.width is None else numbers.kept_widths[b]
            blocks.append(BlockArchitecture(kernel_points(layer), tuple(resolution), widths, costs[b] / total))
        return Architecture(tuple(blocks), total / self.base_cost, self.budget)

    def report(self) -> str:
        """Return a table of the current architecture.

        >>> print(DNArch(CCNN(1, 10, size=64, channels=8, blocks=1, sigma=0.1)).report())
        block | kernel | resolution | read | middle | written | share of the cost
            1 |     14 |         64 |    8 |      8 |       8 |               70%
        depth 1, complexity 1.16 of the base network's, budget 1.00
        """
        return str(self.architecture())

    def record(self, **labels: float) -> dict[str, float]:
        """Append the architecture to :attr:`history`, for :func:`kernelfield.viz.architecture.plot_history`.

        Args:
            labels: further values of the row, such as ``step=100``.
        """
        row = {**{name: float(value) for name, value in labels.items()}, **self.architecture().flat()}
        self.history.append(row)
        return row

    @torch.no_grad()
    def materialize(self) -> CCNN:
        """Return an ordinary network with the learned sizes.

        Masks on channels are multiplied into the weights, and closed channels are left out. The masks on kernels,
        spectra and blocks become fixed numbers. The outputs are the same up to rounding.
        """
        slices = self._slices(self.sizes.unfixed())
        arguments = {**self.network.arguments, "active": None}
        arguments["crop"] = True
        if arguments["mask"] is not None:
            arguments["mask"] = copy.deepcopy(arguments["mask"]).requires_grad_(False)
        elif arguments["sigma"] is not None:
            arguments |= {"learn_sigma": False, "learn_mean": False}
        if slices is not None:
            arguments |= {"blocks": len(slices), "active": tuple(fixed_slice(part) for part in slices)}
        small = CCNN(**arguments)
        like = next(self.network.parameters())
        small.to(dtype=like.dtype, device=like.device)
        copy_common(self.network, small)
        for old, new, part in zip(self.network.blocks, small.blocks, slices or (), strict=False):
            fold_masks(old, new, part)  # type: ignore[arg-type]
        return small.train(self.training)

    # Building

    def _largest(self, network: CCNN, max_width: float, max_depth: float, threshold: float, sigma: float) -> CCNN:
        """Return the network at its largest size; its first channels and blocks have the given weights."""
        arguments = dict(network.arguments)
        for name, key, factor in (("width", "channels", max_width), ("depth", "blocks", max_depth)):
            if name in self.learn:
                arguments[key] = round(arguments[key] * factor)
        own = copy.deepcopy(arguments["mask"])
        added = arguments["sigma"] is None and own is None and "kernel" in self.learn
        if added:
            arguments["sigma"] = sigma
        if own is not None:
            arguments["mask"] = own.requires_grad_("kernel" in self.learn)
        elif arguments["sigma"] is not None:
            arguments |= {"threshold": threshold, "learn_sigma": "kernel" in self.learn}
        if own is not None or arguments["sigma"] is not None:
            arguments["crop"] = not self.fixed_shapes and arguments.get("crop", True)
        largest = CCNN(**arguments)
        like = next(network.parameters())
        largest.to(dtype=like.dtype, device=like.device)
        copy_common(network, largest)
        if added:  # a new mask reduces the energy of the kernel
            for old, new in zip(conv_layers(network), conv_layers(largest), strict=False):
                new.preserve_variance_(old.energy().sqrt())
        return largest.train(network.training)

    def _kernel_masks(self) -> list[Mask]:
        masks = [layer.mask for layer in conv_layers(self.network)]
        return [mask for mask in masks if mask is not None] if "kernel" in self.learn else []

    def extra_repr(self) -> str:
        return f"learn={sorted(self.learn)}, budget={self.budget}, fixed_shapes={self.fixed_shapes}"


def _causal_and_dense(network: CCNN) -> bool:
    """Return whether a network is causal and predicts at every position."""
    causal, dim = network.arguments["causal"], network.arguments["dim"]
    return (dim == 1 if causal is None else causal) and network.arguments["readout"] == "dense"


def _read_loaded(net: DNArch, _: Any) -> None:
    """Read the sizes of loaded masks before a compiler needs them."""
    net.sizes.refresh()

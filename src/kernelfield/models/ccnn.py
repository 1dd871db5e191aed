"""CCNN: one network for sequences, images, volumes and points (chapter 3)."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import RATE, Choice, Int
from .._module_state import in_full_precision
from ..fields import Field, MAGNet, SharedField, build_field
from ..fields.base import field_options
from ..layers import (
    CCNNBlock,
    Dropout,
    Pointwise,
    SeparableConv,
    TwoConvBlock,
    make_norm,
    normalise,
    run_blocks,
    seen_only,
)
from ..layers.continuous.flexconv import own_mask
from ..layers.pointwise import DROPOUT_KINDS, NORMS, uses_batch_statistics
from .kernel_arguments import KERNEL_KINDS, kernel_reach
from .point_inputs import append_queries, in_time_order
from .readout import PAIR, READOUTS, Embedding, PointClassifier, Readout, check_norm
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..layers import ActiveSlice
    from ..masks import Mask

__all__ = ["CCNN"]

BLOCKS = ("ccnn", "s4", "resnet")


class CCNN(PointClassifier):
    """The continuous CNN, whose layers do not depend on the input's length, resolution or dimensionality.

    It consists of a separable convolution with norm and GELU, residual blocks (:class:`CCNNBlock`), a norm, an average
    over positions and a linear map (chapter 3, section 4).

    Args:
        in_channels: channels of the input; those of the embedding if there is a vocabulary.
        out_channels: number of predictions.
        dim: number of spatial dimensions, 1 to 3.
        size: length of the training input, one for all axes or one per axis; for points, the largest distance along an
            axis at which two of them interact.
        channels: number of channels in the blocks.
        blocks: number of residual blocks.
        field: makes each kernel's field.
        shared_field: whether all layers share one kernel network, made by ``field`` with ``hidden`` outputs. Each layer
            maps them to its own kernel (chapter 6; :class:`kernelfield.fields.SharedField`).
        hidden: width of the kernel networks.
        omega_0: published frequency scale of the kernel networks. By default a filter network's sines are spread up to
            half of the Nyquist frequency of ``size``, so that the network works at other resolutions too.
        start: starting values of the kernel networks; see :mod:`kernelfield.fields.start`. By default chapter 3's.
        sigma: initial width of the masks, where 1 is ``size`` steps; None for global kernels without masks.
        kernel_size: number of points of the kernels, odd unless they are causal; by default they reach over the whole
            input. ``omega_0`` and ``sigma`` are then relative to the kernel and not to ``size``: 1 is (kernel_size +
            1)/2 steps, or kernel_size steps of a causal kernel.
        mask: another mask in place of the Gaussian, or a class or function that makes one from ``dim``; each layer has
            its own copy (:class:`FlexConv`).
        causal: whether convolutions are causal; by default only for dim 1.
        block: "ccnn", "s4" (without the last nonlinearity) or "resnet" (two convolutions, the F-CCNN ablation).
        norm: "batch" (causal in evaluation only), "batch-statistics" (statistics of the batch, in evaluation too),
            "channel" (over the channels of each position), "cumulative" (over channels and all positions up to each),
            "layer" (over channels and all positions) or "none". Causal networks with a dense readout reject
            "batch-statistics" and "layer", which look ahead.
        prenorm: whether norms come first in the blocks; otherwise they come after the sums.
        dropout: dropout probability inside the blocks.
        dropout_kind: whether the blocks drop single "values" or whole "channels".
        input_dropout: dropout probability of the input.
        readout: "mean" over positions, "last" position, "dense", or "pair". For "pair" the input is two sequences, one
            after the other, which the network reads separately and compares (Retrieval in chapter 6).
        vocabulary: number of tokens, if the input is (batch, length) ids.
        stem: the first layer, a "conv" (chapter 3) or a "linear" map of the channels (chapter 6).
        active: the part of each block in use, if blocks differ in size, as in networks of
            :meth:`kernelfield.DNArch.materialize`.
        options: further arguments of :class:`SeparableConv`: learn_mean, isotropic, boundary, smooth, neighbors,
            method, gain, kernel_dropout, point_method, tolerance.

    >>> import torch
    >>> net = CCNN(in_channels=1, out_channels=10, dim=2, size=28, channels=16, blocks=2)
    >>> net(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> net(torch.randn(2, 1, 56, 56), step=0.5).shape          # twice the resolution
    torch.Size([2, 10])
    >>> net(torch.randn(2, 1, 100), coords=28 * torch.rand(2, 100, 2)).shape    # 100 pixels, anywhere
    torch.Size([2, 10])

    Attributes:
        arguments: the arguments of the network; ``CCNN(**net.arguments)`` builds another one.
    """

    @checked(
        **KERNEL_KINDS,
        kernel_size=Int(1) | None,
        blocks=Int(0, 10_000),
        block=Choice(*BLOCKS),
        norm=Choice(*NORMS),
        dropout=RATE,
        dropout_kind=Choice(*DROPOUT_KINDS),
        input_dropout=RATE,
        readout=Choice(*READOUTS, PAIR),
        stem=Choice("conv", "linear"),
    )
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int = 1,
        size: int | Sequence[int],
        channels: int = 140,
        blocks: int = 4,
        field: Callable[..., Field] = MAGNet,
        shared_field: bool = False,
        hidden: int = 32,
        omega_0: float | None = None,
        start: str | None = None,
        sigma: float | None = 0.0375,
        kernel_size: int | None = None,
        mask: Callable[..., Mask] | Mask | None = None,
        causal: bool | None = None,
        block: str = "ccnn",
        norm: str = "batch",
        prenorm: bool = True,
        dropout: float = 0.0,
        dropout_kind: str = "values",
        input_dropout: float = 0.0,
        readout: str = "mean",
        vocabulary: int | None = None,
        stem: str = "conv",
        active: Sequence[ActiveSlice] | None = None,
        **options: Any,
    ) -> None:
        mask = None if mask is None else own_mask(mask, dim)
        arguments = {k: v for k, v in locals().items() if k not in ("self", "options", "__class__")} | options
        super().__init__()
        self.arguments: dict[str, Any] = arguments
        if readout == PAIR and dim != 1:
            raise ValueError(f"readout must not be 'pair' for dim={dim}: it compares two sequences")
        causal = dim == 1 if causal is None else causal
        norm = check_norm(norm, causal=causal, readout=readout, default="batch", dim=dim)
        #: whether samples at irregular times must be sorted by time
        self.orders_times = norm == "cumulative"
        kernel_field = field_options(field, start=start, hidden=hidden, omega_0=omega_0)
        self.kernel_network = build_field(kernel_field, dim, hidden) if shared_field else None
        if self.kernel_network is not None:
            kernel_field = partial(SharedField, network=self.kernel_network)
        reach = kernel_reach(size, kernel_size, causal=causal)
        kernel: dict[str, Any] = {"size": reach, "field": kernel_field, "sigma": sigma, "mask": mask, "causal": causal}
        make_conv: Callable[..., nn.Module] = partial(SeparableConv, dim=dim, **kernel, **options)
        self.embedding = None
        if vocabulary is not None:
            self.embedding = Embedding(vocabulary, in_channels)
        self.input_dropout = Dropout(input_dropout, few_bits=False)
        if stem == "conv":
            self.stem = make_conv(in_channels, channels)
        else:
            self.stem = Pointwise(in_channels, channels, gain=1.0)
        self.norm = make_norm(norm, channels)
        make_block: Callable[..., nn.Module]
        if block == "resnet":
            make_block = partial(TwoConvBlock, activation="gelu", activate_branch=False)
        else:
            make_block = partial(CCNNBlock, prenorm=prenorm, final_activation=block == "ccnn")
        if active is not None and (block == "resnet" or len(active) != blocks):
            raise ValueError(
                f"active must have {blocks} slices, one per block, or be None for block='resnet', got {len(active)}"
            )
        how: list[dict[str, Any]] = [{} for _ in range(blocks)] if active is None else [{"active": a} for a in active]
        self.blocks = nn.ModuleList(
            make_block(make_conv, channels, channels, norm=norm, dropout=dropout, dropout_kind=dropout_kind, **part)
            for part in how
        )
        # Blocks that begin with their norm return outputs that are not normalised.
        self.final_norm = make_norm(norm if prenorm and block != "resnet" else "none", channels)
        self.readout = Readout(channels, out_channels, readout)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CCNN:
        super()._apply(fn, recurse=False)
        for name, child in self.named_children() if recurse else ():
            # Layers keep their fields in float32; the network that fields share is not in one of them.
            child._apply(in_full_precision(fn) if name == "kernel_network" else fn)  # noqa: SLF001
        return self

    def _replace_classifier(self, num_classes: int) -> None:
        super()._replace_classifier(num_classes)
        self.arguments["out_channels"] = num_classes

    def _features(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        active: Sequence[ActiveSlice] | None = None,
        at: Tensor | None = None,
        **sampling: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the input of the readout, its mask, and the order of the samples if they were sorted by time."""
        if self.readout.kind == PAIR:
            if x.shape[-1] % 2 or "coords" in sampling:
                raise ValueError(f"x must be two sequences of equal length, one after the other, got {tuple(x.shape)}")
            x, mask = torch.cat(x.chunk(2, dim=-1)), None if mask is None else torch.cat(mask.chunk(2, dim=-1))
        if self.embedding is not None:
            x = self.embedding(x)
        elif x.dim() < 3 or x.shape[1] != self.arguments["in_channels"]:
            raise ValueError(
                f"x must have shape (batch, {self.arguments['in_channels']}, *space), got {tuple(x.shape)}"
            )
        x = self.input_dropout(x if mask is None else seen_only(x, mask))
        if at is not None:
            given = {k: self.arguments[k] for k in ("dim", "norm", "readout")}
            x, mask, sampling = append_queries(x, mask, at, **given, **sampling)
        order = None
        if self.orders_times:
            x, mask, sampling, order = in_time_order(x, mask, sampling)
        x = self.stem(x) if isinstance(self.stem, Pointwise) else self.stem(x, mask=mask, **sampling)
        x = normalise(self.norm, x, "gelu")
        x = run_blocks(self.blocks, x, active=active, mask=mask, **sampling)
        if not torch.compiler.is_compiling() and len(x) == 1 and self.readout.kind == "mean" and mask is None:
            _warn_if_constant(self.final_norm)
        return self.final_norm(x), mask, order


def _warn_if_constant(norm: nn.Module) -> None:
    """Warn if the mean of a single sample over its positions is the same for all samples after this norm."""
    if uses_batch_statistics(norm):
        warnings.warn(
            "the output for a single sample does not depend on it: norm='batch-statistics' gives each channel "
            "a fixed mean over the batch, and readout='mean' reads this mean; pass several samples, "
            "or build the network with norm='batch'",
            stacklevel=3,
        )


for _size, _about, _sizes in (
    ("4_140", "200k", {}),
    ("6_380", "2M", {"blocks": 6, "channels": 380, "hidden": 64}),
):
    _title = f"CCNN_{_size.replace('_', ',')}"
    register(f"ccnn_{_size}", CCNN, f"{_title}, about {_about} parameters (chapter 3)", **_sizes)
    for _name, _block, _of in (("fccnn_{}", "resnet", "FlexNet"), ("ccnn_{}_s4", "s4", "S4")):
        _text = f"{_title} with the blocks of {_of} (chapter 3, ablation)"
        register(_name.format(_size), CCNN, _text, block=_block, **_sizes)
for _size, _blocks, _channels, _hidden, _near in (
    ("4_16", 4, 16, 8, 256),
    ("4_32", 4, 32, 8, 256),
    ("4_48", 4, 48, 8, 256),
    ("4_140_points", 4, 140, 32, 256),
    ("6_380_points", 6, 380, 64, 64),
):
    # Clouds lie in [-1, 1]³, so the largest distance of two points along an axis is 2.
    register(
        f"ccnn_{_size}",
        CCNN,
        f"CCNN of {_blocks} blocks, {_channels} channels, for point clouds (chapter 3)",
        dim=3,
        size=2,
        in_channels=6,
        out_channels=40,
        blocks=_blocks,
        channels=_channels,
        hidden=_hidden,
        isotropic=True,
        neighbors=_near,
        sigma=0.075,
        omega_0=1.0,  # there is no grid whose Nyquist frequency could set it
        start="flexconv",  # at such low frequencies chapter 3's sines nearly vanish around the centre
    )

"""CKCNN and FlexTCN: residual networks of dense continuous convolutions (chapters 2 and 5)."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._kinds import POSITIVE, RATE, Choice, Int, ListOf
from ..fields import MLP, SIREN, Field, MAGNet
from ..layers import Dropout, TwoConvBlock, run_blocks, seen_only
from ..layers.pointwise import DROPOUT_KINDS, NORMS
from .kernel_arguments import KERNEL_FIELDS, KERNEL_KINDS, KERNEL_WORDS, conv_factory
from .point_inputs import append_queries, in_time_order
from .readout import READOUTS, Embedding, PointClassifier, Readout, check_norm
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CKCNN", "FlexTCN"]


class CKCNN(PointClassifier):
    """A residual network of continuous kernel convolutions (chapter 2).

    Each block repeats convolution, norm, ReLU and dropout twice, with kernels as long as the input, then adds the
    shortcut and applies a ReLU.

    Args:
        in_channels: channels of the input; those of the embedding if there is a vocabulary.
        out_channels: number of predictions.
        size: length of the training input, one for all axes or one per axis.
        dim: number of spatial dimensions.
        channels: number of channels of all blocks, or one number per block.
        blocks: number of blocks; ignored if ``channels`` has one number per block.
        field: makes each kernel's field.
        hidden: width of the kernel networks.
        omega_0: frequency scale of the kernel networks; the field's own default if not given. Coordinates are half
            those of the thesis, so a SIREN's published ω₀ is doubled.
        hidden_omega_0: frequency scale of a SIREN's hidden layers, as published; ``omega_0`` if not given.
        start: starting values of the kernel networks; see :mod:`kernelfield.fields.start`. By default the field's own.
        sigma: initial width of Gaussian masks on the kernels, where 1 is ``size`` steps; None for global kernels.
        causal: whether convolutions are causal; by default only for dim 1.
        norm: "cumulative" (over channels and all positions up to each), "channel" (over the channels of each position),
            "layer" (over channels and all positions: the published norm, which looks ahead), "batch" (causal in
            evaluation only) or "none". By default "cumulative" for causal networks, otherwise "layer". Causal networks
            with a dense readout reject norms that look ahead.
        dropout: dropout probability inside the blocks.
        dropout_kind: whether the blocks drop single "values" or whole "channels".
        input_dropout: dropout probability of the input, or of the values of the embedding.
        embedding_dropout: probability that all occurrences of a token in a batch are embedded as zero.
        readout: "last" position, "mean" over positions, or "dense".
        vocabulary: number of tokens. The input is then (batch, length) ids, and the last linear map shares the
            embedding's weight.
        options: further arguments of :class:`CKConv` or :class:`FlexConv`: mask (any mask on the kernels), boundary,
            smooth, neighbors, method, gain, kernel_dropout, point_method, tolerance.

    >>> import torch
    >>> net = CKCNN(in_channels=1, out_channels=10, size=784)
    >>> net(torch.randn(2, 1, 784)).shape
    torch.Size([2, 10])
    >>> net(torch.randn(2, 1, 392), step=2).shape       # the same weights at half the rate
    torch.Size([2, 10])
    """

    #: starting values of kernel networks whose field offers them
    default_start: ClassVar[str] = "siren"

    @checked(
        **KERNEL_KINDS,
        channels=Int(1) | ListOf(Int(1)),
        blocks=Int(1, 10_000),
        norm=Choice(*NORMS) | None,
        dropout=RATE,
        dropout_kind=Choice(*DROPOUT_KINDS),
        input_dropout=RATE,
        embedding_dropout=RATE,
        readout=Choice(*READOUTS),
    )
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int | Sequence[int],
        *,
        dim: int = 1,
        channels: int | Sequence[int] = 30,
        blocks: int = 2,
        field: Callable[..., Field] = partial(SIREN, weight_norm=True),
        hidden: int = 32,
        omega_0: float | None = None,
        hidden_omega_0: float | None = None,
        start: str | None = None,
        sigma: float | None = None,
        causal: bool | None = None,
        norm: str | None = None,
        dropout: float = 0.0,
        dropout_kind: str = "values",
        input_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        readout: str = "last",
        vocabulary: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        causal = dim == 1 if causal is None else causal
        norm = check_norm(norm, causal=causal, readout=readout, default="layer", dim=dim)
        #: whether samples at irregular times must be sorted by time
        self.orders_times = norm == "cumulative"
        self.dim, self.norm_name = dim, norm
        make_conv = conv_factory(
            dim=dim,
            size=size,
            field=field,
            hidden=hidden,
            omega_0=omega_0,
            hidden_omega_0=hidden_omega_0,
            start=start,
            default_start=self.default_start,
            sigma=sigma,
            causal=causal,
            **options,
        )
        widths = (channels,) * blocks if isinstance(channels, int) else tuple(channels)
        self.embedding = None
        if vocabulary is not None:
            self.embedding = Embedding(vocabulary, in_channels, embedding_dropout)
        self.input_dropout = Dropout(input_dropout, few_bits=False)
        self.blocks = nn.ModuleList(
            TwoConvBlock(make_conv, i, o, norm=norm, dropout=dropout, dropout_kind=dropout_kind)
            for i, o in zip((in_channels, *widths), widths, strict=False)
        )
        self.readout = Readout(
            widths[-1],
            out_channels,
            readout,
            None if self.embedding is None else self.embedding.weight,
            # The published N(0, 0.01²) is used with the published starts only. With the default start, networks with
            # it learn far more slowly: after 1,500 steps of copy memory, two seeds recall 14 and 38 %, and with unit
            # gain 97 and 96 %. Deep networks get smaller gains, since each block adds its variance to the sum.
            gain=min(1.0, 2 / math.sqrt(len(widths))) if start in (None, "siren") else 0.01 * math.sqrt(widths[-1]),
        )

    def _features(
        self, x: Tensor, *, mask: Tensor | None = None, at: Tensor | None = None, **sampling: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the input of the readout, its mask, and the order of the samples if they were sorted by time."""
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.input_dropout(x if mask is None else seen_only(x, mask))
        if at is not None:
            given: dict[str, Any] = {"dim": self.dim, "norm": self.norm_name, "readout": self.readout.kind}
            x, mask, sampling = append_queries(x, mask, at, **given, **sampling)
        order = None
        if self.orders_times:
            x, mask, sampling, order = in_time_order(x, mask, sampling)
        return run_blocks(self.blocks, x, mask=mask, **sampling), mask, order


class FlexTCN(CKCNN):
    """A :class:`CKCNN` that learns the size of its kernels: MAGNets under Gaussian masks (chapter 5).

    Args:
        in_channels: channels of the input.
        out_channels: number of predictions.
        size: length of the training input.
        field: makes each kernel's field.
        sigma: initial width of the masks, where 1 is ``size`` steps; None for global kernels, the CKTCN ablation. The
            default is the chapter's variance of 0.125 on kernels that span [-1, 1], a reach of 38 percent of the input.
            (The chapter's code starts images at 0.075, like :class:`FlexNet`. From that width the kernels of a sequence
            grow slowly, and a readout of the last step at first depends on very few samples.)
        options: further arguments of :class:`CKCNN`.

    >>> import torch
    >>> FlexTCN(in_channels=3, out_channels=10, size=128)(torch.randn(2, 3, 128)).shape
    torch.Size([2, 10])
    """

    default_start = "flexconv"

    @checked(sigma=POSITIVE | None)
    @with_arguments_of(CKCNN.__init__)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int | Sequence[int],
        *,
        field: Callable[..., Field] = MAGNet,
        sigma: float | None = math.sqrt(0.125) / 2,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, size, field=field, sigma=sigma, **options)


for _blocks, _channels in ((2, 30), (2, 100), (4, 30), (8, 30), (16, 30)):
    register(
        f"ckcnn_{_blocks}_{_channels}",
        CKCNN,
        f"CKCNN of {_blocks} blocks, {_channels} channels (chapter 2)",
        channels=_channels,
        blocks=_blocks,
    )
for _activation, _words in (("relu", "ReLU"), ("leaky_relu", "leaky ReLU"), ("swish", "Swish")):
    register(
        f"ckcnn_2_30_{_activation}",
        CKCNN,
        f"CKCNN with {_words} kernel networks (chapter 2, ablation)",
        field=partial(MLP, activation=_activation, norm=True),
    )
register("ckcnn_copy", CKCNN, "copy memory (chapter 2)", channels=10, readout="dense")
register("ckcnn_adding", CKCNN, "the adding problem (chapter 2)", channels=25)
register(
    "ckcnn_ptb",
    CKCNN,
    "character-level language modelling (chapter 2)",
    in_channels=100,
    channels=(128, 100),
    readout="dense",
    vocabulary=50,
    out_channels=50,
)
for _blocks in (2, 4, 6):
    register(f"flextcn_{_blocks}", FlexTCN, f"FlexTCN-{_blocks} (chapter 5)", blocks=_blocks)
    register(f"cktcn_{_blocks}", FlexTCN, f"CKTCN-{_blocks}: global kernels (chapter 5)", blocks=_blocks, sigma=None)
    for _name, _field in KERNEL_FIELDS.items():
        register(
            f"flextcn_{_blocks}_{_name}",
            FlexTCN,
            f"FlexTCN-{_blocks} with {KERNEL_WORDS[_name]} kernels (chapter 5)",
            blocks=_blocks,
            field=_field,
        )
        register(
            f"cktcn_{_blocks}_{_name}",
            FlexTCN,
            f"CKTCN-{_blocks} with {KERNEL_WORDS[_name]} kernels (chapter 5)",
            blocks=_blocks,
            field=_field,
            sigma=None,
        )

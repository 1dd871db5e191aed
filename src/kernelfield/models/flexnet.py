"""FlexNet: a residual network of FlexConvs on images (chapter 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._kinds import POSITIVE, RATE, Choice, Int, ListOf
from ..fields import SIREN, NJet, Table
from ..layers import BatchNorm, TwoConvBlock, normalise, run_blocks
from ..layers.pointwise import DROPOUT_KINDS
from .kernel_arguments import KERNEL_FIELDS, KERNEL_KINDS, KERNEL_WORDS, conv_factory, kernel_reach
from .point_inputs import append_queries
from .readout import READOUTS, PointClassifier, Readout
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FlexNet"]


class FlexNet(PointClassifier):
    """A residual network of FlexConvs: a stem, blocks of growing width, and an average over the image (chapter 5).

    Args:
        in_channels: channels of the input.
        out_channels: number of predictions.
        size: length of the training input, one for all axes or one per axis.
        dim: number of spatial dimensions.
        channels: width of the stem.
        widths: width of each block, in multiples of ``channels``.
        field: makes each kernel's field.
        hidden: width of the kernel networks.
        omega_0: frequency scale of the kernel networks; the field's own default if not given.
        hidden_omega_0: frequency scale of a SIREN's hidden layers; ``omega_0`` if not given.
        start: starting values of the kernel networks; see :mod:`kernelfield.fields.start`. By default chapter 5's.
        sigma: initial width of the masks, where 1 is ``size`` steps; None for global kernels.
        kernel_size: odd number of points of the kernels; by default they reach over the whole input.
        dropout: dropout probability inside the blocks.
        dropout_kind: whether the blocks drop single "values" or whole "channels".
        readout: "mean" over positions, "last" position, or "dense", which also predicts ``at`` any coordinates.
        mask: another mask in place of the Gaussian.
        options: further arguments of :class:`FlexConv`, such as bias.

    >>> import torch
    >>> FlexNet(3, 10, size=16, channels=8, widths=(1, 2))(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    @checked(
        **KERNEL_KINDS,
        widths=ListOf(POSITIVE),
        kernel_size=Int(1, odd=True) | None,
        dropout=RATE,
        dropout_kind=Choice(*DROPOUT_KINDS),
        readout=Choice(*READOUTS),
    )
    @with_arguments_of(conv_factory, without=("default_start",))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int | Sequence[int],
        *,
        dim: int = 2,
        channels: int = 24,
        widths: Sequence[float] = (1, 1, 1.5, 1.5, 1.5, 2, 2),
        kernel_size: int | None = None,
        dropout: float = 0.2,
        dropout_kind: str = "values",
        readout: str = "mean",
        **options: Any,
    ) -> None:
        super().__init__()
        self.dim = dim
        make_conv = conv_factory(dim=dim, size=kernel_reach(size, kernel_size), **options)
        outs = [round(channels * w) for w in widths]
        if min(outs) < 1:
            raise ValueError(f"widths must leave at least one of {channels} channels, got {tuple(widths)}")
        self.stem, self.norm = make_conv(in_channels, channels), BatchNorm(channels)
        self.blocks = nn.ModuleList(
            TwoConvBlock(
                make_conv, i, o, norm="batch", dropout=dropout, dropout_kind=dropout_kind, activate_branch=False
            )
            for i, o in zip([channels, *outs], outs, strict=False)
        )
        self.readout = Readout(outs[-1], out_channels, readout)

    def _features(
        self, x: Tensor, *, mask: Tensor | None = None, at: Tensor | None = None, **sampling: Any
    ) -> tuple[Tensor, Tensor | None, None]:
        if at is not None:
            given: dict[str, Any] = {"dim": self.dim, "norm": "batch", "readout": self.readout.kind}
            x, mask, sampling = append_queries(x, mask, at, **given, **sampling)
        x = normalise(self.norm, self.stem(x, mask=mask, **sampling), "relu")
        return run_blocks(self.blocks, x, mask=mask, **sampling), mask, None


register("flexnet_16", FlexNet, "FlexNet-16: 7 blocks, 16 layers (chapter 5)")
register("flexnet_5", FlexNet, "FlexNet-5 (chapter 5, ImageNet-k)", channels=22, widths=(1, 1.5, 1.5, 2, 2))
register("flexnet_3", FlexNet, "FlexNet-3 (chapter 5)", widths=(1, 1.5, 2))
register("cknet_16", FlexNet, "CKCNN-16 with MAGNet kernels: no masks (chapter 5)", sigma=None)
register("cknet_16_siren", FlexNet, "CKCNN-16: SIREN kernels, no masks (chapter 5)", field=SIREN, sigma=None)
for _name, _field in KERNEL_FIELDS.items():
    _text = f"with {KERNEL_WORDS[_name]} kernels (chapter 5)"
    register(f"flexnet_16_{_name}", FlexNet, f"FlexNet-16 {_text}", field=_field)
    register(f"flexnet_3_{_name}", FlexNet, f"FlexNet-3 {_text}", field=_field, widths=(1, 1.5, 2))
# The published parameter counts, 0.70M and 0.46M, need 15 coefficients for each pair of channels (order 4), one scale
# per layer and no biases. The chapter's text says order three, which has 10 coefficients.
_NJETS = {"field": NJet, "sigma": None, "bias": False}
register("flexnet_16_njet", FlexNet, "FlexNet-16 with N-Jet kernels (chapter 5)", channels=38, **_NJETS)
register(
    "flexnet_5_njet",
    FlexNet,
    "FlexNet-5 with N-Jet kernels (chapter 5, ImageNet-k)",
    channels=32,
    widths=(1, 1.5, 1.5, 2, 2),
    **_NJETS,
)
for _points in (3, 33):
    register(
        f"flexnet_16_k{_points}",
        FlexNet,
        f"FlexNet-16 with ordinary {_points}×{_points} kernels (chapter 5)",
        field=Table,
        sigma=None,
        kernel_size=_points,
    )

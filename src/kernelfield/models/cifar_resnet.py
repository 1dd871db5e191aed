"""CIFARResNet with ordinary or continuous kernels (chapter 5, appendix)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._checks import per_axis
from .._kinds import POSITIVE, Int, PerAxis
from .._object_kinds import TensorOf
from ..fields import Table
from ..layers import BatchNorm, Pointwise, normalise
from ..ops.fused import activate
from .kernel_arguments import KERNEL_KINDS, conv_factory, kernel_reach
from .readout import Readout, ReadoutClassifier
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CIFARResNet"]


class CIFARResNet(ReadoutClassifier):
    r"""The residual network of He et al. for small images, with kernels that are fields (chapter 5, appendix).

    .. math:: y = \sigma\big(N_2(C_2\, \sigma(N_1(C_1 x))) + S x\big)

    It has three stages of (depth - 2)/6 blocks. Each stage has twice the width and half the resolution of the one
    before. The first block of the later stages keeps every other position after its first convolution, and its shortcut
    is a pointwise map. The registered networks have 0.66M parameters with ordinary kernels and 2.58M with MAGNets, as
    published.

    Args:
        in_channels: channels of the input.
        out_channels: number of predictions.
        size: length of the training input, one for all axes or one per axis.
        dim: number of spatial dimensions.
        depth: number of layers on the longest path, 6 n + 2.
        channels: width of the first stage.
        field: makes each kernel's field.
        hidden: width of the kernel networks.
        omega_0: frequency scale of the kernel networks; the field's own default if not given.
        hidden_omega_0: frequency scale of a SIREN's hidden layers; ``omega_0`` if not given.
        start: starting values of the kernel networks; see :mod:`kernelfield.fields.start`. By default chapter 5's.
        sigma: initial width of the masks, where 1 is the input of the stage; None for kernels without masks.
        mask: another mask in place of the Gaussian.
        kernel_size: odd number of points of the kernels; by default they reach over the whole input of their stage.
        options: further arguments of the convolutions, such as bias.

    >>> import torch
    >>> net = CIFARResNet(3, 10, size=16, depth=8, channels=4, kernel_size=3, sigma=None)
    >>> net(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    @checked(**KERNEL_KINDS, depth=Int(8), kernel_size=Int(1, odd=True) | None)
    @with_arguments_of(conv_factory, without=("default_start",))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int | Sequence[int],
        *,
        dim: int = 2,
        depth: int = 44,
        channels: int = 16,
        kernel_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if depth % 6 != 2:
            raise ValueError(f"depth must be 6 n + 2, such as 20, 32 or 44, got {depth}")
        lengths = per_axis(size, dim)
        makers = []
        for stage in range(3):
            reach = tuple(-(-n // 2**stage) for n in lengths)
            makers.append(conv_factory(dim=dim, size=kernel_reach(reach, kernel_size), **options))
        self.stem, self.norm = makers[0](in_channels, channels), BatchNorm(channels)
        blocks, width = [], channels
        for stage in range(3):
            for i in range((depth - 2) // 6):
                first = makers[max(0, stage - 1)] if i == 0 else makers[stage]
                out = channels * 2**stage
                blocks.append(
                    _Block(first(width, out), makers[stage](out, out), width, out, halve=stage > 0 and i == 0)
                )
                width = out
        self.blocks = nn.ModuleList(blocks)
        self.readout = Readout(width, out_channels, "mean")

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False), step=PerAxis(POSITIVE))
    def forward(self, x: Tensor, *, step: float | Sequence[float] = 1.0) -> Tensor:
        """Return predictions (batch, out) for ``x`` (batch, in, *space), whose sampling step is ``step``."""
        return self.readout(self.forward_features(x, step=step))

    def forward_features(self, x: Tensor, *, step: float | Sequence[float] = 1.0) -> Tensor:
        """Return features (batch, channels, *space) of ``x``, before pooling."""
        x = normalise(self.norm, self.stem(x, step=step), "relu")
        for block in self.blocks:
            x = block(x, step=step)
        return x


class _Block(nn.Module):
    """Two convolutions and a shortcut; ``halve`` keeps every other position after the first one."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, in_channels: int, out_channels: int, *, halve: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv1, BatchNorm(out_channels)
        self.conv2, self.norm2 = conv2, BatchNorm(out_channels)
        same = in_channels == out_channels and not halve
        self.shortcut = nn.Identity() if same else Pointwise(in_channels, out_channels, gain=1.0)
        self.halve = halve

    def forward(self, x: Tensor, *, step: float | Sequence[float]) -> Tensor:
        branch = self.conv1(x, step=step)
        if self.halve:
            every_other: Any = (..., *(slice(None, None, 2),) * (x.dim() - 2))
            branch, x = branch[every_other], x[every_other]
        branch = self.conv2(normalise(self.norm1, branch, "relu"), step=step)
        return activate(self.norm2(branch) + self.shortcut(x), activation="relu")


_PLAIN: dict[str, Any] = {"field": Table, "sigma": None, "kernel_size": 3, "bias": False}
for _depth in (32, 44):
    register(f"cifar_resnet_{_depth}", CIFARResNet, f"CIFARResNet-{_depth} (chapter 5)", depth=_depth, **_PLAIN)
register(
    "cifar_resnet_44_ckconv",
    CIFARResNet,
    "CIFARResNet-44 with continuous 3×3 kernels (chapter 5)",
    sigma=None,
    kernel_size=3,
)
register("cifar_resnet_44_flexconv", CIFARResNet, "CIFARResNet-44 with kernels of learned size (chapter 5)")

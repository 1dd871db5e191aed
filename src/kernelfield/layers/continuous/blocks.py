"""Residual blocks of continuous networks (chapters 2, 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..._checks import check_choice
from ..pointwise import Pointwise, make_norm
from .base import ContinuousConv
from .separable import SeparableConv
from .together import sample_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CCNNBlock", "TwoConvBlock", "continuous", "run_blocks"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def continuous(conv: nn.Module) -> tuple[ContinuousConv, ...]:
    """Return the continuous convolution in ``conv``, which is one or begins with one; nothing for another module."""
    core = conv.depthwise if isinstance(conv, SeparableConv) else conv
    return (core,) if isinstance(core, ContinuousConv) else ()


class TwoConvBlock(nn.Module):
    r"""Two convolutions and a shortcut, as in CKCNN, FlexTCN and FlexNet.

    .. math::
        u = \mathrm{drop}(\sigma(N_1(C_1 x))), \qquad
        y = \sigma\big(r + S x\big), \quad r = \mathrm{drop}(\sigma(N_2(C_2 u))) \text{ or } N_2(C_2 u)

    Args:
        make_conv: makes a convolution from ``(in_channels, out_channels)``.
        in_channels: channels of the input.
        out_channels: channels of the output; a pointwise shortcut where they differ.
        norm: "layer", "batch" or "none".
        activation: "relu" or "gelu".
        dropout: probability.
        activate_branch: whether the branch ends in activation and dropout (chapter 2) or in its norm (chapter 5).
    """

    def __init__(
        self,
        make_conv: Callable[[int, int], nn.Module],
        in_channels: int,
        out_channels: int,
        *,
        norm: str,
        activation: str = "relu",
        dropout: float = 0.0,
        activate_branch: bool = True,
    ) -> None:
        super().__init__()
        self.activation = check_choice("activation", activation, _ACTIVATIONS)
        self.conv1, self.norm1 = make_conv(in_channels, out_channels), make_norm(norm, out_channels)
        self.conv2, self.norm2 = make_conv(out_channels, out_channels), make_norm(norm, out_channels)
        self.dropout = nn.Dropout(dropout)
        self.activate_branch = activate_branch
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    def convolutions(self) -> tuple[ContinuousConv, ...]:
        """Return the continuous convolutions, in the order of the kernels that :meth:`forward` takes."""
        return continuous(self.conv1) + continuous(self.conv2)

    def forward(self, x: Tensor, *, kernels: Sequence[Tensor | None] = (None, None), **sampling: Any) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space); ``sampling`` goes to the convolutions."""
        act = _ACTIVATIONS[self.activation]
        branch = self.dropout(act(self.norm1(self.conv1(x, kernel=kernels[0], **sampling))))
        branch = self.norm2(self.conv2(branch, kernel=kernels[1], **sampling))
        if self.activate_branch:
            branch = self.dropout(act(branch))
        return act(branch + self.shortcut(x))


class CCNNBlock(nn.Module):
    r"""The block of chapter 3, one convolution and one linear map: the block of S4 with a nonlinearity at its end.

    .. math:: y = S x + \sigma\big(L\, \mathrm{drop}(\sigma(C\, N x))\big)

    Args:
        make_conv: makes a convolution from ``(in_channels, out_channels)``.
        in_channels: channels of the input.
        out_channels: channels of the output; a pointwise shortcut where they differ.
        norm: "batch", "layer" or "none".
        dropout: probability.
        prenorm: the norm comes first; else after the sum.
        final_activation: False gives the block of S4.
    """

    def __init__(
        self,
        make_conv: Callable[[int, int], nn.Module],
        in_channels: int,
        out_channels: int,
        *,
        norm: str = "batch",
        dropout: float = 0.0,
        prenorm: bool = True,
        final_activation: bool = True,
    ) -> None:
        super().__init__()
        self.prenorm, self.final_activation = prenorm, final_activation
        self.norm = make_norm(norm, in_channels if prenorm else out_channels)
        self.conv = make_conv(in_channels, out_channels)
        self.dropout = nn.Dropout(dropout)
        self.linear = Pointwise(out_channels, out_channels)
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    def convolutions(self) -> tuple[ContinuousConv, ...]:
        """Return the continuous convolution, whose kernel :meth:`forward` takes."""
        return continuous(self.conv)

    def forward(self, x: Tensor, *, kernels: Sequence[Tensor | None] = (None,), **sampling: Any) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space); ``sampling`` goes to the convolution."""
        branch = self.norm(x) if self.prenorm else x
        branch = self.dropout(F.gelu(self.conv(branch, kernel=kernels[0], **sampling)))
        branch = self.linear(branch)
        if self.final_activation:
            branch = F.gelu(branch)
        y = branch + self.shortcut(x)
        return y if self.prenorm else self.norm(y)


def run_blocks(blocks: nn.ModuleList, x: Tensor, **sampling: Any) -> Tensor:
    """Return what ``blocks``, one after the other, make of ``x``, with all their kernels sampled together first."""
    layers = [layer for block in blocks for layer in block.convolutions()]
    where = {name: sampling[name] for name in ("step", "coords") if name in sampling}
    kernels: Iterator[Tensor | None] = iter(sample_kernels(layers, x, **where))
    for block in blocks:
        x = block(x, kernels=[next(kernels) for _ in block.convolutions()], **sampling)
    return x

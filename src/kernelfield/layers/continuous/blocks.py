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
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["CCNNBlock", "TwoConvBlock", "continuous_layers", "run_blocks"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def continuous_layers(block: TwoConvBlock | CCNNBlock) -> list[ContinuousConv]:
    """Return the continuous convolutions of a block, in the order of the kernels that its ``forward`` takes."""
    convs = (block.conv1, block.conv2) if isinstance(block, TwoConvBlock) else (block.conv,)
    cores = [conv.depthwise if isinstance(conv, SeparableConv) else conv for conv in convs]
    return [core for core in cores if isinstance(core, ContinuousConv)]


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

    def forward(self, x: Tensor, *, kernels: Sequence[Tensor | None] = (None,), **sampling: Any) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space); ``sampling`` goes to the convolution."""
        branch = self.norm(x) if self.prenorm else x
        branch = self.dropout(F.gelu(self.conv(branch, kernel=kernels[0], **sampling)))
        branch = self.linear(branch)
        if self.final_activation:
            branch = F.gelu(branch)
        y = branch + self.shortcut(x)
        return y if self.prenorm else self.norm(y)


def run_blocks(blocks: Iterable[nn.Module], x: Tensor, **sampling: Any) -> Tensor:
    """Return what ``blocks``, one after the other, make of ``x``, with all their kernels sampled together first."""
    layers = [continuous_layers(block) for block in blocks]  # type: ignore[arg-type]
    where = {name: sampling[name] for name in ("step", "coords") if name in sampling}
    kernels = iter(sample_kernels([layer for several in layers for layer in several], x, **where))
    for block, several in zip(blocks, layers, strict=True):
        x = block(x, kernels=[next(kernels) for _ in several], **sampling)
    return x

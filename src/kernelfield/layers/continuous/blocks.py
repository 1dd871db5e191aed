"""Residual blocks of continuous networks (chapters 2, 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._checks import check_choice, floats_per_axis
from ...ops.fused import activate
from ..dropout import Dropout
from ..pointwise import BatchNorm, Pointwise, make_norm, normalise, normalise_with_identity
from .active_slice import ActiveSlice, add_to_first, join_channels, join_first, split_channels
from .band_limit import FixedShapeBandLimit
from .continuous_conv import ContinuousConv
from .kernel_sampler import sample_requests
from .separable import SeparableConv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["CCNNBlock", "TwoConvBlock", "continuous_layers", "run_blocks"]

_ACTIVATIONS = ("relu", "gelu")


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
        dropout_kind: drop single "values", or whole "channels".
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
        dropout_kind: str = "values",
        activate_branch: bool = True,
    ) -> None:
        super().__init__()
        self.activation = check_choice("activation", activation, _ACTIVATIONS)
        self.conv1, self.norm1 = make_conv(in_channels, out_channels), make_norm(norm, out_channels)
        self.conv2, self.norm2 = make_conv(out_channels, out_channels), make_norm(norm, out_channels)
        self.dropout = Dropout(dropout, dropout_kind)
        self.activate_branch = activate_branch
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    def forward(self, x: Tensor, *, kernels: Sequence[Tensor | None] = (None, None), **sampling: Any) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space); ``sampling`` goes to the convolutions."""
        branch = self.conv1(x, kernel=kernels[0], **sampling)
        branch = self.dropout(normalise(self.norm1, branch, self.activation))
        branch = self.conv2(branch, kernel=kernels[1], **sampling)
        if self.activate_branch:
            branch = self.dropout(normalise(self.norm2, branch, self.activation))
        else:
            branch = self.norm2(branch)
        return activate(branch + self.shortcut(x), activation=self.activation)


class CCNNBlock(nn.Module):
    r"""The block of chapter 3, one convolution and one linear map: the block of S4 with a nonlinearity at its end.

    .. math:: y = S x + \sigma\big(L\, \mathrm{drop}(\sigma(C\, N x))\big)

    Args:
        make_conv: makes a :class:`SeparableConv` from ``(in_channels, out_channels)``.
        in_channels: channels of the input.
        out_channels: channels of the output; a pointwise shortcut where they differ.
        norm: "batch", "batch-statistics", "layer" or "none".
        dropout: probability.
        dropout_kind: drop single "values", or whole "channels".
        prenorm: the norm comes first; else after the sum.
        final_activation: False gives the block of S4.
        active: sizes of the residual branch where they differ from those of the identity branch; what
            :meth:`kernelfield.DNArch.materialize` leaves of its masks.

    >>> from functools import partial
    >>> block = CCNNBlock(partial(SeparableConv, size=16), 4, 4, dropout=0.1, dropout_kind="channels")
    >>> block(torch.randn(2, 4, 16)).shape
    torch.Size([2, 4, 16])
    """

    def __init__(
        self,
        make_conv: Callable[[int, int], nn.Module],
        in_channels: int,
        out_channels: int,
        *,
        norm: str = "batch",
        dropout: float = 0.0,
        dropout_kind: str = "values",
        prenorm: bool = True,
        final_activation: bool = True,
        active: ActiveSlice | None = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.activation = prenorm, "gelu" if final_activation else None
        #: the part of the block in use if ``forward`` is given no other
        self.active = ActiveSlice() if active is None else active
        read, middle, written = self.active.channels or (in_channels, out_channels, out_channels)
        normed = out_channels if not prenorm else read if norm.startswith("batch") else in_channels
        self.norm = make_norm(norm, normed)
        self.conv = make_conv(read, middle)
        self.dropout = Dropout(dropout, dropout_kind)
        self.linear = Pointwise(middle, written)
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    def forward(
        self,
        x: Tensor,
        *,
        kernels: Sequence[Tensor | None] = (None,),
        active: ActiveSlice | None = None,
        **sampling: Any,
    ) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space).

        Args:
            x: signal.
            kernels: the convolution's kernel, if it has been sampled before.
            active: the part of the residual branch to compute; the identity branch is always complete.
            sampling: step, coords, mask and density for the convolution.
        """
        active = self.active if active is None else active
        limit = active.band_limit
        branch, pieces = self._read(x, active)
        how: dict[str, Any] = {"kernel": kernels[0], **sampling}
        if limit is not None:
            branch, how = limit.down(continuous_layers(self)[0], branch, how)
        branch = self.conv(branch, active=active.conv, activation="gelu", **self.dropout.fused(), **how)
        if len(pieces) == 1 and limit is None and active.scale is None:  # the sum joins the pass of the linear map
            residual = self.shortcut(pieces[0])
            y = self.linear(branch, active=active.linear, activation=self.activation, residual=residual)
        else:
            branch = self.linear(branch, active=active.linear, activation=self.activation)
            if limit is not None:
                branch = limit.up(branch, x.shape[2:], sampling)
            if active.scale is not None:
                branch = branch * active.scale
            y = add_to_first(branch, pieces if isinstance(self.shortcut, nn.Identity) else [self.shortcut(x)])
        return y if self.prenorm else self.norm(y)

    def _read(self, x: Tensor, active: ActiveSlice) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the residual branch's input, normalised, and the identity branch in pieces of its channels."""
        if active.channels is None:
            branch, x = normalise_with_identity(self.norm, x) if self.prenorm else (x, x)
            return branch, [x]
        read, _, written = active.channels
        pieces = split_channels(x, read, written)
        if self.prenorm and not isinstance(self.norm, (BatchNorm, nn.Identity)):  # a norm over all channels
            return self.norm(x)[:, :read], pieces
        branch = join_first(pieces, read)
        return self.norm(branch, active=active) if isinstance(self.norm, BatchNorm) and self.prenorm else branch, pieces


def run_blocks(
    blocks: Sequence[nn.Module] | nn.ModuleList,
    x: Tensor,
    *,
    active: Sequence[ActiveSlice] | None = None,
    **sampling: Any,
) -> Tensor:
    """Apply ``blocks`` to ``x`` in order, with all their kernels sampled together first.

    Args:
        blocks: the blocks.
        x: (batch, channels, *space) signal.
        active: the part of each block to compute; blocks beyond the last are skipped.
        sampling: step, coords, mask and density, for the blocks.
    """
    used = list(blocks) if active is None else list(blocks)[: len(active)]
    slices = [getattr(block, "active", None) for block in used] if active is None else list(active)
    kernels = iter(_sample_all(used, slices, x, sampling))
    # Channels that no branch reads or writes go around all blocks at once, not around each of them.
    touched = _touched(used, slices)
    rest: list[Tensor] = []
    if touched is not None and touched < x.shape[1]:
        x, *rest = x.split([touched, x.shape[1] - touched], dim=1)
    for block, part in zip(used, slices, strict=True):
        how = sampling if part is None else {"active": part, **sampling}
        x = block(x, kernels=[next(kernels) for _ in continuous_layers(block)], **how)  # type: ignore[arg-type]
    return join_channels([x, *rest])


def _touched(blocks: Sequence[nn.Module], slices: Sequence[ActiveSlice | None]) -> int | None:
    """Return how many channels, the first ones, the blocks read or write; None if a block reads all of them."""
    most = 0
    for block, active in zip(blocks, slices, strict=True):
        if active is None or active.channels is None or not isinstance(block, CCNNBlock):
            return None
        per_channel = block.prenorm and isinstance(block.norm, (BatchNorm, nn.Identity))
        if not per_channel or not isinstance(block.shortcut, nn.Identity):
            return None
        most = max(most, active.channels[0], active.channels[2])
    return most or None


def _sample_all(
    blocks: Sequence[nn.Module], slices: Sequence[ActiveSlice | None], x: Tensor, sampling: dict[str, Any]
) -> Iterable[Tensor | None]:
    """Return the kernels of all blocks, sampled together where they lie on the same grid."""
    requests: list[Any] = []
    alone = sampling.get("coords") is not None or torch.compiler.is_compiling()
    lengths, step = tuple(x.shape[2:]), sampling.get("step", 1.0)
    for block, active in zip(blocks, slices, strict=True):
        limit = None if active is None else active.band_limit
        channels = None if active is None or active.channels is None else active.channels[0]
        for layer in continuous_layers(block):  # type: ignore[arg-type]
            if alone or isinstance(limit, FixedShapeBandLimit):
                requests.append(None)
                continue
            steps = floats_per_axis("step", step, layer.dim)
            grid = (lengths, steps) if limit is None else limit.grid(lengths, steps)
            requests.append((layer, *grid, channels))
    return sample_requests(requests)

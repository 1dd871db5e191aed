"""Residual blocks of continuous networks (chapters 2, 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._checks import check_choice, floats_per_axis
from ...ops.fused import activate, fuses, map_activate
from ..pointwise import BatchNorm, Pointwise, make_norm
from .active_slice import Band, Extent
from .continuous_conv import ContinuousConv
from .kernel_sampler import sample_on
from .separable import SeparableConv

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
        norm: "batch", "batch-statistics", "layer" or "none".
        dropout: probability.
        prenorm: the norm comes first; else after the sum.
        final_activation: False gives the block of S4.
        widths: channels that the residual branch reads, has in its middle, and writes, where they are not those of the
            identity branch; what :meth:`kernelfield.DNArch.materialize` leaves of masks on channels.
        band: frequencies at which the residual branch is computed.
        scale: factor of the residual branch.
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
        widths: tuple[int, int, int] | None = None,
        band: Band | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.final_activation = prenorm, final_activation
        read, middle, written = (in_channels, out_channels, out_channels) if widths is None else widths
        normed = out_channels if not prenorm else read if norm.startswith("batch") else in_channels
        self.norm = make_norm(norm, normed)
        self.conv = make_conv(read, middle)
        self.dropout = nn.Dropout(dropout)
        self.linear = Pointwise(middle, written)
        #: what of the block is in use if its forward is told nothing else
        self.extent = Extent(widths, band=band, scale=scale)
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    def forward(
        self,
        x: Tensor,
        *,
        kernels: Sequence[Tensor | None] = (None,),
        extent: Extent | None = None,
        **sampling: Any,
    ) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space); ``sampling`` goes to the convolution.

        With an ``extent`` only that much of the residual branch is computed; the identity branch is always whole.
        """
        extent = self.extent if extent is None else extent
        if extent.whole and fuses(x):
            return self._fused(x, kernels[0], sampling)
        read, middle, written = (None, None, None) if extent.widths is None else extent.widths
        columns, rows, last_rows = extent.masks
        identity = _Pieces(self.shortcut(x), read, written)
        branch = self._read(x, identity, read)
        told: dict[str, Any] = {"kernel": kernels[0], **sampling}
        if extent.band is not None:
            branch, told = extent.band.down(continuous_layers(self)[0], branch, told)
        given = {"channels": read, "out_channels": middle, "rows": rows, "columns": columns}
        told |= {name: value for name, value in given.items() if value is not None}
        branch = self.dropout(F.gelu(self.conv(branch, **told)))
        branch = self.linear(branch, out_channels=written, rows=last_rows)
        if self.final_activation:
            branch = F.gelu(branch)
        if extent.band is not None:
            branch = extent.band.up(branch, x.shape[2:], sampling)
        if extent.scale is not None:
            branch = branch * extent.scale
        y = identity.add(branch)
        return y if self.prenorm else self.norm(y)

    def _fused(self, x: Tensor, kernel: Tensor | None, sampling: dict[str, Any]) -> Tensor:
        """Return the same for a block that is used as a whole, in few passes over memory."""
        branch = x
        if self.prenorm and isinstance(self.norm, BatchNorm):
            branch, x = self.norm.apart(x)
        elif self.prenorm:
            branch = self.norm(x)
        dropout = self.dropout.p if self.training else 0.0
        if isinstance(self.conv, SeparableConv):
            branch = map_activate(*self.conv.apart(branch, kernel=kernel, **sampling), dropout=dropout)
        else:
            branch = activate(self.conv(branch, kernel=kernel, **sampling), dropout=dropout)
        if self.final_activation:
            y = map_activate(branch, self.linear.weight, self.linear.bias, residual=self.shortcut(x))
        else:
            y = self.linear(branch) + self.shortcut(x)
        return y if self.prenorm else self.norm(y)

    def _read(self, x: Tensor, identity: _Pieces, channels: int | None) -> Tensor:
        """Return the first channels of ``x``, normalised."""
        whole = channels is None or channels == x.shape[1]
        if whole or not self.prenorm or isinstance(self.norm, BatchNorm):
            part = x if whole else identity.first(channels)  # type: ignore[arg-type]
            return self.norm(part) if self.prenorm else part
        return self.norm(x).narrow(1, 0, channels)


class _Pieces:
    """The identity branch, cut where the residual branch begins to leave channels alone.

    Cut once: the gradients of several overlapping views of one tensor would each be filled up with zeros and added.
    """

    def __init__(self, x: Tensor, *bounds: int | None) -> None:
        cuts = sorted({x.shape[1], *(n for n in bounds if n is not None)})
        sizes = [b - a for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
        self.pieces = (x,) if len(sizes) == 1 else x.split(sizes, dim=1)

    def first(self, channels: int) -> Tensor:
        """Return the first channels, up to one of the cuts."""
        return _joined(self._up_to(channels))

    def add(self, branch: Tensor) -> Tensor:
        """Return the whole with ``branch`` added to its first channels."""
        if len(self.pieces) == 1:
            return branch + self.pieces[0]
        touched = self._up_to(branch.shape[1])
        parts = branch.split([piece.shape[1] for piece in touched], dim=1)
        sums = [part + piece for part, piece in zip(parts, touched, strict=True)]
        return _joined([*sums, *self.pieces[len(touched) :]])

    def _up_to(self, channels: int) -> list[Tensor]:
        pieces: list[Tensor] = []
        for piece in self.pieces:
            if channels <= 0:
                break
            pieces.append(piece)
            channels -= piece.shape[1]
        return pieces


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=1)


def run_blocks(
    blocks: Sequence[nn.Module] | nn.ModuleList,
    x: Tensor,
    *,
    extents: Sequence[Extent] | None = None,
    **sampling: Any,
) -> Tensor:
    """Return what ``blocks``, one after the other, make of ``x``, with all their kernels sampled together first.

    Args:
        blocks: the blocks.
        x: (batch, channels, *space) signal.
        extents: how much of each block to use; blocks beyond the last extent are skipped.
        sampling: goes to the blocks.
    """
    used = list(blocks) if extents is None else list(blocks)[: len(extents)]
    told: list[dict[str, Any]] = [{} for _ in used] if extents is None else [{"extent": e} for e in extents]
    kernels = iter(_sample_all(used, told, x, sampling))
    # Channels that no branch reads or writes go around all blocks at once, and not around each of them.
    touched = _touched(used, extents)
    rest: tuple[Tensor, ...] = ()
    if touched is not None and touched < x.shape[1]:
        x, *others = x.split([touched, x.shape[1] - touched], dim=1)
        rest = tuple(others)
    for block, how in zip(used, told, strict=True):
        x = block(x, kernels=[next(kernels) for _ in continuous_layers(block)], **how, **sampling)  # type: ignore[arg-type]
    return _joined([x, *rest])


def _touched(blocks: Sequence[nn.Module], extents: Sequence[Extent] | None) -> int | None:
    """Return how many channels, the first ones, blocks read or write; None if some look at all of them."""
    most = 0
    for i, block in enumerate(blocks):
        extent = getattr(block, "extent", Extent()) if extents is None else extents[i]
        apart = isinstance(block, CCNNBlock) and block.prenorm and isinstance(block.norm, (BatchNorm, nn.Identity))
        if extent.widths is None or not apart or not isinstance(block.shortcut, nn.Identity):
            return None
        most = max(most, extent.widths[0], extent.widths[2])
    return most or None


def _sample_all(
    blocks: Sequence[nn.Module], told: Sequence[dict[str, Any]], x: Tensor, sampling: dict[str, Any]
) -> Iterable[Tensor | None]:
    """Return the kernels of all blocks, sampled together where they lie on the same grid."""
    meetings: list[Any] = []
    channels: list[int | None] = []
    free = sampling.get("coords") is not None or torch.compiler.is_compiling()
    for block, how in zip(blocks, told, strict=True):
        extent = how.get("extent", getattr(block, "extent", Extent()))
        band = extent.band
        for layer in continuous_layers(block):  # type: ignore[arg-type]
            channels.append(None if extent.widths is None else extent.widths[0])
            if free or not (band is None or isinstance(band, Band)):
                meetings.append(None)
                continue
            lengths, steps = tuple(x.shape[2:]), floats_per_axis("step", sampling.get("step", 1.0), layer.dim)
            meetings.append((layer, *((lengths, steps) if band is None else band.grid(lengths, steps))))
    return sample_on(meetings, channels)

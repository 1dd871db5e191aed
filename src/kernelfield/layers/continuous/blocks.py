"""Residual blocks of continuous networks (chapters 2, 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._checks import floats_per_axis, is_symbolic
from ..._kinds import RATE, Choice, ListOf
from ..._object_kinds import Instance, TensorOf
from ...ops.fused import activate
from ..pointwise import (
    DROPOUT_KINDS,
    NORMS,
    BatchNorm,
    Dropout,
    Pointwise,
    make_norm,
    normalise,
    normalise_with_identity,
)
from .active_slice import ActiveSlice, add_to_first, join_channels, join_first, split_channels
from .band_limit import FixedShapeBandLimit
from .continuous_conv import ContinuousConv
from .kernel_sampler import sample_requests
from .separable import SeparableConv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["CCNNBlock", "TwoConvBlock", "run_blocks"]

_ACTIVATIONS = ("relu", "gelu")
_SIGNAL = TensorOf("float", "batch, channels, *space", empty=False)
_KERNELS = ListOf(TensorOf("float") | None)
_NO_QUERIES = "at must be None for a block, got a tensor; networks with a dense readout accept it"


def _core(conv: nn.Module) -> Any:
    """Return the continuous convolution inside a layer."""
    return conv.depthwise if isinstance(conv, SeparableConv) else conv


class TwoConvBlock(nn.Module):
    r"""Two convolutions and a shortcut, as in CKCNN, FlexTCN and FlexNet.

    .. math::
        u = \mathrm{drop}(\sigma(N_1(C_1 x))), \qquad
        y = \sigma\big(r + S x\big), \quad r = \mathrm{drop}(\sigma(N_2(C_2 u))) \text{ or } N_2(C_2 u)

    Args:
        make_conv: makes a convolution from ``(in_channels, out_channels)``.
        in_channels: channels of the input.
        out_channels: channels of the output; the shortcut is pointwise if they differ from the input's.
        norm: name of the norm; see :func:`~kernelfield.layers.pointwise.make_norm`.
        activation: "relu" or "gelu".
        dropout: dropout probability.
        dropout_kind: drop single "values", or whole "channels".
        activate_branch: whether the branch ends in activation and dropout (chapter 2) or in its norm (chapter 5).

    >>> from functools import partial
    >>> from kernelfield import CKConv
    >>> block = TwoConvBlock(partial(CKConv, size=16), 4, 8, norm="batch")
    >>> block(torch.randn(2, 4, 16)).shape
    torch.Size([2, 8, 16])
    """

    @checked(norm=Choice(*NORMS), activation=Choice(*_ACTIVATIONS), dropout=RATE, dropout_kind=Choice(*DROPOUT_KINDS))
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
        self.activation = activation
        self.conv1, self.norm1 = make_conv(in_channels, out_channels), make_norm(norm, out_channels)
        self.conv2, self.norm2 = make_conv(out_channels, out_channels), make_norm(norm, out_channels)
        self.dropout = Dropout(dropout, dropout_kind, few_bits=False)
        self.activate_branch = activate_branch
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    @checked(x=_SIGNAL, kernels=_KERNELS)
    def forward(self, x: Tensor, *, kernels: Sequence[Tensor | None] = (None, None), **sampling: Any) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space); ``sampling`` goes to the convolutions.

        With a mask, ``x`` must be finite at unseen samples too (:func:`~kernelfield.layers.seen_only`), since the
        shortcut and the norms read it.
        """
        if sampling.get("at") is not None:  # the branch and the identity must have values at the same points
            raise ValueError(_NO_QUERIES)
        if len(kernels) != 2:
            raise ValueError(f"kernels must have 2 entries, one per convolution, got {len(kernels)}")
        branch = self.conv1(x, kernel=kernels[0], **sampling)
        branch = self.dropout(normalise(self.norm1, branch, self.activation))
        branch = self.conv2(branch, kernel=kernels[1], **sampling)
        if self.activate_branch:
            branch = self.dropout(normalise(self.norm2, branch, self.activation))
        else:
            branch = self.norm2(branch)
        return activate(branch + self.shortcut(x), activation=self.activation)

    def continuous_layers(self) -> Sequence[ContinuousConv]:
        """Return the continuous convolutions, in the order of the kernels that ``forward`` takes."""
        return _core(self.conv1), _core(self.conv2)


class CCNNBlock(nn.Module):
    r"""The residual block of chapter 3, section 4.1: the block of S4 followed by a nonlinearity.

    .. math:: y = S x + \sigma\big(L\, \mathrm{drop}(\sigma(C\, N x))\big)

    Args:
        make_conv: makes a :class:`SeparableConv` from ``(in_channels, out_channels)``.
        in_channels: channels of the input.
        out_channels: channels of the output; the shortcut is pointwise if they differ from the input's.
        norm: name of the norm; see :func:`~kernelfield.layers.pointwise.make_norm`.
        dropout: dropout probability.
        dropout_kind: drop single "values", or whole "channels".
        prenorm: whether the norm comes first; otherwise it comes after the sum.
        final_activation: whether the branch ends in an activation; False gives the block of S4.
        active: sizes of the residual branch if they differ from those of the identity branch, as in networks of
            :meth:`kernelfield.DNArch.materialize`.

    >>> from functools import partial
    >>> block = CCNNBlock(partial(SeparableConv, size=16), 4, 4, dropout=0.1, dropout_kind="channels")
    >>> block(torch.randn(2, 4, 16)).shape
    torch.Size([2, 4, 16])
    """

    @checked(norm=Choice(*NORMS), dropout=RATE, dropout_kind=Choice(*DROPOUT_KINDS))
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
        self.in_channels = in_channels
        self.prenorm, self.activation = prenorm, "gelu" if final_activation else None
        #: the part of the block in use if ``forward`` is given no other; None for all of it
        self.active = active
        read, middle, written = in_channels, out_channels, out_channels
        if active is not None and active.channels is not None:
            read, middle, written = active.channels
        normed = out_channels if not prenorm else read if norm.startswith("batch") else in_channels
        self.norm = make_norm(norm, normed)
        self.conv = make_conv(read, middle)
        self.dropout = Dropout(dropout, dropout_kind, few_bits=False)
        self.linear = Pointwise(middle, written)
        self.shortcut = nn.Identity() if in_channels == out_channels else Pointwise(in_channels, out_channels, gain=1.0)

    @checked(x=_SIGNAL, kernels=_KERNELS)
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
            kernels: the kernel of the convolution, if it is already sampled.
            active: the part of the residual branch to compute; the identity branch is always complete.
            sampling: step, coords, mask and density for the convolution.
        """
        if sampling.get("at") is not None:  # the branch and the identity must have values at the same points
            raise ValueError(_NO_QUERIES)
        active = self.active if active is None else active
        if active is None and x.shape[1] != self.in_channels:
            raise ValueError(f"x must have {self.in_channels} channels, got shape {tuple(x.shape)}")
        first, second, limit, scale = None, None, None, None
        if active is not None:
            first, second, limit, scale = active.conv, active.linear, active.band_limit, active.scale
        branch, pieces = self._read(x, active)
        how: dict[str, Any] = {"kernel": kernels[0], **sampling}
        if limit is not None:
            branch, how = limit.down(self.continuous_layers()[0], branch, how)
        branch = self.conv(branch, active=first, activation="gelu", **self.dropout.fused(), **how)
        if len(pieces) == 1 and limit is None and scale is None:  # the linear map adds the residual in its own pass
            residual = self.shortcut(pieces[0])
            y = self.linear(branch, active=second, activation=self.activation, residual=residual)
        else:
            branch = self.linear(branch, active=second, activation=self.activation)
            if limit is not None:
                branch = limit.up(branch, x.shape[2:], sampling)
            if scale is not None:
                branch = branch * scale
            y = add_to_first(branch, pieces if isinstance(self.shortcut, nn.Identity) else [self.shortcut(x)])
        if self.prenorm:
            return y
        # With dynamic shapes, a block of scale 0 is skipped with its norm. Fixed shapes must give the same result.
        return torch.where(scale > 0, self.norm(y), y) if isinstance(scale, Tensor) else self.norm(y)

    def continuous_layers(self) -> Sequence[ContinuousConv]:
        """Return the continuous convolution whose kernel ``forward`` takes."""
        return (_core(self.conv),)

    def _read(self, x: Tensor, active: ActiveSlice | None) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the normalised input of the residual branch, and the identity branch split along its channels."""
        if active is None or active.channels is None:
            branch, x = normalise_with_identity(self.norm, x) if self.prenorm else (x, x)
            return branch, [x]
        read, _, written = active.channels
        pieces = split_channels(x, read, written)
        if self.prenorm and not isinstance(self.norm, (BatchNorm, nn.Identity)):  # a norm over all channels
            return self.norm(x)[:, :read], pieces
        branch = join_first(pieces, read)
        return self.norm(branch, active=active) if isinstance(self.norm, BatchNorm) and self.prenorm else branch, pieces


@checked(
    blocks=ListOf(Instance("torch.nn.Module")) | Instance("torch.nn.ModuleList"),
    x=TensorOf("float", "batch, channels, *space"),
)
def run_blocks(
    blocks: Sequence[nn.Module] | nn.ModuleList,
    x: Tensor,
    *,
    active: Sequence[ActiveSlice] | None = None,
    **sampling: Any,
) -> Tensor:
    """Sample the kernels of all ``blocks`` together, then apply the blocks to ``x`` in order.

    Args:
        blocks: the blocks.
        x: (batch, channels, *space) signal.
        active: the part of each block to compute; blocks beyond the last are skipped.
        sampling: step, coords, mask and density, for the blocks.

    Returns:
        (batch, channels, *space) signal.

    >>> from functools import partial
    >>> blocks = [CCNNBlock(partial(SeparableConv, size=16), 4, 4) for _ in range(2)]
    >>> run_blocks(blocks, torch.randn(2, 4, 16)).shape
    torch.Size([2, 4, 16])
    """
    used = list(blocks) if active is None else list(blocks)[: len(active)]
    slices = [getattr(block, "active", None) for block in used] if active is None else list(active)
    layers = [block.continuous_layers() for block in used]  # type: ignore[operator]
    kernels = iter(_sample_all(layers, slices, x, sampling))
    # Channels that no branch reads or writes are split off once and bypass all blocks.
    touched = _channels_in_use(used, slices)
    rest: list[Tensor] = []
    if touched is not None and touched < x.shape[1]:
        x, *rest = x.split([touched, x.shape[1] - touched], dim=1)
    for block, convs, part in zip(used, layers, slices, strict=True):
        how = sampling if part is None else {"active": part, **sampling}
        x = block(x, kernels=[next(kernels) for _ in convs], **how)
    return join_channels([x, *rest]) if rest else x


def _channels_in_use(blocks: Sequence[nn.Module], slices: Sequence[ActiveSlice | None]) -> int | None:
    """Return how many of the first channels the blocks read or write; None if a block reads all of them."""
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
    layers: Sequence[Sequence[ContinuousConv]],
    slices: Sequence[ActiveSlice | None],
    x: Tensor,
    sampling: dict[str, Any],
) -> Iterable[Tensor | None]:
    """Return the kernels of all blocks' layers, sampled together where they lie on the same grid."""
    lengths = tuple(x.shape[2:])
    if sampling.get("coords") is not None or (torch.compiler.is_compiling() and is_symbolic(*lengths)):
        return [None for convs in layers for _ in convs]
    if any(isinstance(conv, ContinuousConv) and conv.dim != len(lengths) for convs in layers for conv in convs):
        raise ValueError(f"x must have as many spatial axes as the convolutions of blocks, got {tuple(x.shape)}")
    step = sampling.get("step", 1.0)
    steps = (1.0,) * len(lengths) if step == 1.0 else floats_per_axis("step", step, len(lengths))
    requests: list[Any] = []
    for convs, active in zip(layers, slices, strict=True):
        limit = None if active is None else active.band_limit
        channels = None if active is None or active.channels is None else active.channels[0]
        if isinstance(limit, FixedShapeBandLimit):
            requests += [None for _ in convs]
            continue
        grid = (lengths, steps) if limit is None else limit.grid(lengths, steps)
        # Convolutions of other kinds, such as streaming ones, take no kernel.
        requests += [(conv, *grid, channels) if isinstance(conv, ContinuousConv) else None for conv in convs]
    return sample_requests(requests)

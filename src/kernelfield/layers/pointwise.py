"""Linear maps, norms and dropout of channels, for signals with any number of spatial axes, and for points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked
from .._kinds import NOT_NEGATIVE, POSITIVE, PROBABILITY, Choice
from .._object_kinds import TensorOf
from ..ops.fused import activate, drop, linear, mapped_offset, norm_with_identity
from ..ops.fused.synced_norm import has_several_processes, synced_batch_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .continuous.active_slice import ActiveSlice

__all__ = [
    "BATCH_STATISTICS",
    "DROPOUT_KINDS",
    "NORMS",
    "NORMS_THAT_LOOK_AHEAD",
    "BatchNorm",
    "ChannelNorm",
    "CumulativeNorm",
    "Dropout",
    "Pointwise",
    "make_norm",
    "normalise",
    "normalise_with_identity",
    "uses_batch_statistics",
]

NORMS = ("batch", "batch-statistics", "channel", "cumulative", "layer", "none")
#: norms whose output at a position depends on later positions, in evaluation too
NORMS_THAT_LOOK_AHEAD = ("batch-statistics", "layer")
DROPOUT_KINDS = ("values", "channels")

#: warning for networks of which :func:`uses_batch_statistics` is true
BATCH_STATISTICS = (
    "the network normalises by the statistics of the batch (norm='batch-statistics'), so a prediction depends on the "
    "other samples of its batch"
)

_SIGNAL = TensorOf("float", "batch, channels, …", empty=False)


class Pointwise(nn.Module):
    r"""A linear map of the channels at every position: :math:`y(t) = W x(t) + b`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        gain: weights are drawn from :math:`N(0, \mathrm{gain}^2 / \mathrm{in})`; √2 after a rectifying nonlinearity and
            1 after a linear map keep the variance.
        bias: whether to add a bias, initially zero.

    >>> Pointwise(3, 5)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 5, 8, 8])
    """

    @checked(gain=POSITIVE)
    def __init__(self, in_channels: int, out_channels: int, *, gain: float = math.sqrt(2), bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels) * (gain / math.sqrt(in_channels)))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False), offset=TensorOf("float", "in") | None)
    def forward(
        self,
        x: Tensor,
        *,
        offset: Tensor | None = None,
        active: ActiveSlice | None = None,
        **epilogue: Any,
    ) -> Tensor:
        r"""Return :math:`r + \mathrm{drop}(\sigma(W (x + o) + b))`, (batch, out, \*space).

        Args:
            x: (batch, in, \*space) signal.
            offset: (in,) vector o; the layer adds W o to the bias, which is cheaper than adding o to the signal.
            active: the channels in use, and their factors; all if not given.
            epilogue: activation, dropout, dropout_channels and residual, as in :func:`kernelfield.ops.fused.linear`.
        """
        if active is None and x.shape[1] != self.in_channels:
            raise ValueError(f"x must have {self.in_channels} channels, got shape {tuple(x.shape)}")
        weight, bias = self.weight, self.bias
        if active is not None:
            weight, bias = active.of_map(weight, bias)  # type: ignore[assignment]
        if offset is not None and offset.shape[0] != weight.shape[1]:
            offset = _match_columns(offset, weight)
        return linear(x, weight, bias, offset=offset, **epilogue)

    def active_parameters(
        self, active: ActiveSlice | None = None, offset: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias of the channels in use, with factors and ``offset`` applied."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if active is not None:
            weight, bias = active.of_map(weight, bias)
        if offset is not None:
            bias = mapped_offset(_match_columns(offset, weight), weight, bias)
        return weight, bias

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, out_channels={self.out_channels}"


def _match_columns(offset: Tensor, weight: Tensor) -> Tensor:
    """Return the first entries of ``offset``, one for each column of ``weight``."""
    entries, columns = offset.shape[0], weight.shape[1]
    if entries < columns:
        raise ValueError(f"offset must have {columns} entries, got {tuple(offset.shape)}")
    return offset if entries == columns else offset[:columns]


class BatchNorm(nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
    """Batch normalisation of signals with any number of spatial axes.

    Attributes:
        synchronised: whether training computes statistics over all processes; see :func:`synchronise_norms`.

    >>> BatchNorm(3)(torch.randn(2, 3, 4, 4, 4)).shape
    torch.Size([2, 3, 4, 4, 4])
    """

    synchronised = False

    def forward(
        self,
        input: Tensor,  # noqa: A002
        *,
        active: ActiveSlice | None = None,
        activation: str | None = None,
        with_identity: bool = False,
    ) -> Any:
        r"""Return the normalised signal for ``input`` (batch, channels, \*space).

        Args:
            input: signal.
            active: the channels in use; ``input`` has only the first ``active.channels[0]``.
            activation: "gelu" or "relu", applied to the result.
            with_identity: return the input too, for an identity branch; see
                :func:`kernelfield.ops.fused.norm_with_identity`.
        """
        if input.dim() < 2:
            raise ValueError(f"input must have shape (batch, channels, *space), got {tuple(input.shape)}")
        tensors: list[Tensor | None] = [self.running_mean, self.running_var, self.weight, self.bias]
        if active is not None and active.channels is not None:
            tensors = [None if t is None else t[: active.channels[0]] for t in tensors]
        mean, variance, weight, bias = tensors
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean over all batches seen so far
                momentum = 1.0 / float(self.num_batches_tracked)
        running = None if mean is None or variance is None else (mean, variance)
        groups = self.process_groups()
        if groups is not None:
            running = running if self.training else None
            y = synced_batch_norm(input, weight, bias, running, momentum, self.eps, groups)
            y = activate(y, activation=activation)
            return (y, input) if with_identity else y
        y, same = norm_with_identity(
            input,
            weight,
            bias,
            running,
            training=self.training,
            momentum=momentum,
            eps=self.eps,
            activation=activation,
        )
        return (y, same) if with_identity else y

    def process_groups(self) -> Sequence[Any] | None:
        """Return the process groups to compute statistics over; None for this process alone."""
        return (None,) if self.synchronised and self.training and has_several_processes() else None


class ChannelNorm(nn.Module):
    r"""Layer normalisation over the channels of each position, for signals with any number of spatial axes.

    .. math:: y_c(t) = w_c \frac{x_c(t) - \mu(t)}{\sqrt{\sigma^2(t) + \epsilon}} + b_c

    The mean μ and variance σ² of a position are those of its own channels. Other positions have no effect, so a causal
    network stays causal, in training and in evaluation.

    Args:
        channels: channels of the signal.
        eps: added to the variance.

    >>> y = ChannelNorm(4)(torch.randn(2, 4, 8, 8))
    >>> y.shape, bool(y.mean(dim=1).abs().max() < 1e-5)
    (torch.Size([2, 4, 8, 8]), True)
    """

    @checked(eps=NOT_NEGATIVE)
    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    @checked(x=TensorOf("float", "batch, .channels, …"))
    def forward(self, x: Tensor) -> Tensor:
        r"""Return the normalised signal for ``x`` (batch, channels, \*space)."""
        last = F.layer_norm(x.movedim(1, -1), (self.channels,), self.weight, self.bias, self.eps)
        return last.movedim(-1, 1).contiguous()

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"


class CumulativeNorm(ChannelNorm):
    r"""Layer normalisation over the channels of each position and of all positions before it.

    .. math:: y_c(t) = w_c \frac{x_c(t) - \mu(t)}{\sqrt{\sigma^2(t) + \epsilon}} + b_c, \quad
        \mu(t) = \operatorname*{mean}_{c, s \le t} x_c(s), \quad
        \sigma^2(t) = \operatorname*{mean}_{c, s \le t} x_c(s)^2 - \mu(t)^2

    This is the norm of chapter 2 with statistics over the past instead of the whole sequence. At the last position both
    are equal. It is causal in training and in evaluation.

    Args:
        channels: channels of the signal.
        eps: added to the variance.

    >>> x = torch.randn(2, 4, 8)
    >>> torch.allclose(CumulativeNorm(4)(x)[..., -1], nn.GroupNorm(1, 4)(x)[..., -1], atol=1e-5)
    True
    """

    @checked(x=TensorOf("float", "batch, .channels, time"))
    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised signal for ``x`` (batch, channels, time)."""
        count = torch.arange(1, x.shape[-1] + 1, dtype=torch.float64, device=x.device)
        return self.normalise(x, *(total / count for total in self.sums(x)))

    def sums(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (batch, 1, time) cumulative sums of the channels' mean and of their mean square."""
        values = x if x.dtype == torch.float64 else x.float()
        # The variance is a small difference of long sums, hence double precision. The mean square is computed as the
        # variance of the channels plus their squared mean, because squares of values far from zero lose digits.
        mean = values.mean(dim=1, keepdim=True, dtype=torch.float64)
        variance = (values - mean.to(values.dtype)).square().mean(dim=1, keepdim=True)
        return mean.cumsum(dim=-1), (variance + mean.square()).cumsum(dim=-1)

    def normalise(self, x: Tensor, mean: Tensor, square: Tensor) -> Tensor:
        """Normalise ``x``, given the means (batch, 1, time) of its values and of their squares."""
        scale = torch.rsqrt((square - mean.square()).clamp(min=0) + self.eps)
        values = x if x.dtype == torch.float64 else x.float()
        y = (values - mean.to(values.dtype)) * scale.to(values.dtype)
        return torch.addcmul(self.bias.unsqueeze(-1), y, self.weight.unsqueeze(-1)).to(x.dtype)


@checked(name=Choice(*NORMS))
def make_norm(name: str, channels: int) -> nn.Module:
    """Return a norm by name.

    Args:
        name: one of the names below.
        channels: channels of the signal.

    ==================  ===================================================================  =============
    name                statistics                                                           causal
    ==================  ===================================================================  =============
    "batch"             of each channel, over the batch and all positions in training;       in evaluation
                        running averages in evaluation
    "batch-statistics"  of each channel, over the batch and all positions, in evaluation     never
                        too: for networks whose architecture is still changing (chapter 6)
    "channel"           of each position, over its channels (:class:`ChannelNorm`)           always
    "cumulative"        of each position of a line, over channels and all positions up to    always
                        it (:class:`CumulativeNorm`)
    "layer"             of each sample, over channels and positions (chapter 2)              never
    "none"              none                                                                 always
    ==================  ===================================================================  =============

    >>> make_norm("layer", 4).num_groups
    1
    """
    if name.startswith("batch"):
        return BatchNorm(channels, track_running_stats=name == "batch")
    if name in ("channel", "cumulative"):
        return ChannelNorm(channels) if name == "channel" else CumulativeNorm(channels)
    return nn.GroupNorm(1, channels, eps=1e-12) if name == "layer" else nn.Identity()


def uses_batch_statistics(network: nn.Module) -> bool:
    """Return whether a network normalises by the statistics of the batch in evaluation too.

    Its prediction for a sample then depends on the other samples of the batch.

    >>> uses_batch_statistics(make_norm("batch-statistics", 3)), uses_batch_statistics(make_norm("batch", 3))
    (True, False)
    """
    kind = nn.modules.batchnorm._BatchNorm  # noqa: SLF001
    return any(isinstance(m, kind) and getattr(m, "running_mean", m) is None for m in network.modules())


@checked(x=_SIGNAL, activation=Choice("relu", "gelu") | None)
def normalise(norm: nn.Module, x: Tensor, activation: str | None = None) -> Tensor:
    """Normalise ``x`` and apply an activation, if possible in one pass.

    Args:
        norm: the norm, as :func:`make_norm` returns it, or any other module.
        x: (batch, channels, …) signal.
        activation: "relu", "gelu" or None.

    Returns:
        A signal of the shape of ``x``.

    >>> normalise(make_norm("none", 3), torch.tensor([[[-1.0, 2.0]]]), "relu")
    tensor([[[0., 2.]]])
    """
    if isinstance(norm, BatchNorm):
        if x.shape[1] != norm.num_features:
            raise ValueError(f"x must have {norm.num_features} channels, got shape {tuple(x.shape)}")
        return norm(x, activation=activation)
    return activate(norm(x), activation=activation)


def normalise_with_identity(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``norm(x)`` and ``x``; see :func:`kernelfield.ops.fused.norm_with_identity`.

    The norm may be any module, such as torch's SyncBatchNorm in networks trained on several devices.

    >>> y, same = normalise_with_identity(make_norm("batch", 3), torch.randn(2, 3, 8))
    >>> y.shape
    torch.Size([2, 3, 8])
    """
    return norm(x, with_identity=True) if isinstance(norm, BatchNorm) else (norm(x), x)


class Dropout(nn.Dropout):
    r"""Set values or whole channels to zero with probability p and multiply the rest by 1/(1 - p), in training.

    See :func:`kernelfield.ops.fused.drop`.

    Args:
        p: probability of a zero.
        kind: "values" draws once for each value; "channels" draws once for each sample and channel of a
            (batch, channels, \*space) signal, like :class:`torch.nn.Dropout1d` to :class:`torch.nn.Dropout3d`.
        few_bits: whether to draw only 16 bits per value on a CPU, which is faster. The probability is then rounded to a
            multiple of 1/65,536, and compiled code draws different numbers. False draws as torch does.

    >>> y = Dropout(0.25)(torch.ones(1000))
    >>> sorted(set(y.tolist())), bool((y == 0).float().mean() < 0.4)
    ([0.0, 1.3333333730697632], True)
    >>> Dropout(0.5, kind="channels")(torch.ones(2, 3, 5)).std(dim=2).max()
    tensor(0.)
    """

    @checked(p=PROBABILITY, kind=Choice(*DROPOUT_KINDS))
    def __init__(self, p: float = 0.5, kind: str = "values", *, few_bits: bool = True) -> None:
        super().__init__(p)
        self.few_bits = few_bits
        self.kind = kind

    @checked(x=TensorOf("float"))
    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p):
            return x
        return drop(x, self.p, channels=self.kind == "channels", few_bits=self.few_bits)

    def fused(self) -> dict[str, float | bool]:
        """Return the arguments with which operators of :mod:`kernelfield.ops.fused` apply this dropout."""
        return {"dropout": self.p if self.training else 0.0, "dropout_channels": self.kind == "channels"}

    def extra_repr(self) -> str:
        return f"p={self.p}, kind={self.kind!r}"

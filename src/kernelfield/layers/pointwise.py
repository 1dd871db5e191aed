"""Maps and norms of channels that do not care how many spatial axes follow: grids of any dimension, and points."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import check_bool, check_choice, check_int
from ..ops.fused import batch_norm, fuses, map_channels

__all__ = ["BatchNorm", "Pointwise", "make_norm"]

#: inputs of a map that are far fewer than its outputs usually are
_FEW = 16


class Pointwise(nn.Module):
    r"""A linear map of the channels at every position: :math:`y(t) = W x(t) + b`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        gain: weights are drawn from :math:`N(0, \mathrm{gain}^2 / \mathrm{in})`; √2 after a rectifying nonlinearity and
            1 after a linear map keep the variance.
        bias: whether to add one, initially zero.

    >>> Pointwise(3, 5)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 5, 8, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, gain: float = math.sqrt(2), bias: bool = True) -> None:
        super().__init__()
        self.in_channels = check_int("in_channels", in_channels)
        self.out_channels = check_int("out_channels", out_channels)
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels) * (gain / math.sqrt(in_channels)))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if check_bool("bias", bias) else None

    def forward(
        self,
        x: Tensor,
        *,
        out_channels: int | None = None,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        """Return (batch, out, *space) for ``x`` (batch, in, *space).

        Args:
            x: signal; of fewer channels than the layer takes, it meets the weights of the first ones.
            out_channels: compute only so many outputs, the first ones.
            rows: (out,) factors of the outputs, bias included.
            columns: (in,) factors of the inputs; like ``rows``, on the weights, which are smaller than signals.
        """
        weight, bias = self.part(x.shape[1], out_channels, rows, columns)
        if not fuses(x):
            return F.conv1d(x.flatten(2), weight.unsqueeze(-1), bias).unflatten(2, x.shape[2:])
        return self.apply_part(x, weight, bias)

    def shifted(
        self,
        in_channels: int,
        offset: Tensor | None,
        out_channels: int | None = None,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return :meth:`part` for a signal to which (in,) ``offset`` is still to be added, as a bias that does it."""
        weight, bias = self.part(in_channels, out_channels, rows, columns)
        if offset is not None:
            with torch.autocast(weight.device.type, enabled=False):
                bias = F.linear(offset.to(weight.dtype), weight, bias)
        return weight, bias

    @staticmethod
    def apply_part(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return W x + b at every position, on a GPU."""
        if x.shape[2:].numel() == 1:
            return F.linear(x.flatten(1), weight, bias).view(len(x), -1, *x.shape[2:])
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        flat = x.flatten(2)
        if bias is not None and x.shape[1] <= _FEW:
            # One more input, of ones, is cheaper than another pass over the outputs.
            flat = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1)
            weight, bias = torch.cat([weight, bias.unsqueeze(1)], dim=1), None
        y = map_channels(flat, weight).unflatten(2, x.shape[2:])
        return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * (y.dim() - 2))

    def part(
        self,
        in_channels: int,
        out_channels: int | None = None,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias that :meth:`forward` uses for so many channels and these factors."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if in_channels < self.in_channels:
            weight = weight.narrow(1, 0, in_channels)
        if out_channels is not None and out_channels < self.out_channels:
            weight = weight.narrow(0, 0, out_channels)
            bias = None if bias is None else bias.narrow(0, 0, out_channels)
        if columns is not None:
            weight = weight * columns.to(weight.dtype)
        if rows is not None:
            weight = weight * rows.to(weight.dtype).unsqueeze(1)
            bias = None if bias is None else bias * rows.to(bias.dtype)
        return weight, bias

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, out_channels={self.out_channels}"


class BatchNorm(nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
    """Batch normalisation of signals with any number of spatial axes.

    A signal of fewer channels than there are statistics is taken for the first of them.

    >>> BatchNorm(3)(torch.randn(2, 3, 4, 4, 4)).shape
    torch.Size([2, 3, 4, 4, 4])
    >>> BatchNorm(3)(torch.randn(2, 2, 4)).shape
    torch.Size([2, 2, 4])
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.apart(input)[0]

    def apart(self, input: Tensor, *, gelu: bool = False) -> tuple[Tensor, Tensor]:  # noqa: A002
        """Return the normalised signal, or its GELU, and the signal itself, for an identity branch.

        See :func:`kernelfield.ops.fused.batch_norm`: on a GPU the two gradients are added where one is written.
        """
        whole = input.shape[1] >= self.num_features
        if whole and (self.momentum is None or not fuses(input)):
            y = super().forward(input)
            return F.gelu(y) if gelu else y, input
        self._check_input_dim(input)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        tensors = (self.running_mean, self.running_var, self.weight, self.bias)
        mean, variance, weight, bias = (t if t is None or whole else t.narrow(0, 0, input.shape[1]) for t in tensors)
        if self.training or mean is None:
            held = None if mean is None or variance is None else (mean, variance)
            return batch_norm(input, weight, bias, held, momentum=self.momentum or 0.0, eps=self.eps, gelu=gelu)
        y = F.batch_norm(input, mean, variance, weight, bias, False, 0.0, self.eps)
        return F.gelu(y) if gelu else y, input

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"input must have shape (batch, channels, *space), got {tuple(input.shape)}")


def make_norm(name: str, channels: int) -> nn.Module:
    """Return a norm by name: "batch", "batch-statistics", "layer" (over channels and space together), or "none".

    "batch-statistics" takes the mean and variance of the batch at hand in evaluation too: chapter 6's choice for
    networks whose architecture is still moving, for which running averages come too late.

    >>> make_norm("layer", 4).num_groups
    1
    """
    check_choice("norm", name, ("batch", "batch-statistics", "layer", "none"))
    if name.startswith("batch"):
        return BatchNorm(channels, track_running_stats=name == "batch")
    return nn.GroupNorm(1, channels, eps=1e-12) if name == "layer" else nn.Identity()

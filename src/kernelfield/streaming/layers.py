"""Layers of a network that remember what they have seen, in place of those that see all of the input at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .online_conv import OnlineConv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layers import ContinuousConv
    from ..models.readout import Readout

__all__ = ["OnlineLayer", "RunningReadout", "StatefulLayer"]


class StatefulLayer(nn.Module):
    """Base class of layers with a state for each stream of the batch."""

    def reset(self, streams: Sequence[int] | slice) -> None:
        """Start some streams of the batch anew."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the state."""
        raise NotImplementedError

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a state."""
        raise NotImplementedError


class OnlineLayer(StatefulLayer):
    """A causal :class:`~kernelfield.layers.ContinuousConv` whose input arrives in pieces.

    Args:
        layer: the layer.
        step: sampling step of the input in training steps.
        batch: number of streams.
    """

    def __init__(self, layer: ContinuousConv, *, step: float, batch: int) -> None:
        super().__init__()
        dtype = layer.reach.dtype
        self.conv = OnlineConv(layer.kernel(step).to(dtype), groups=layer.groups, batch=batch)
        self.bias = layer.bias

    def forward(self, x: Tensor, *, add_bias: bool = True, **_: Any) -> Tensor:
        """Return (batch, out, n) for the next samples (batch, in, n)."""
        y = self.conv(x)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1)

    def reset(self, streams: Sequence[int] | slice) -> None:
        self.conv.reset(streams)

    def state(self) -> dict[str, Tensor]:
        return self.conv.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.conv.load_state(state)


class RunningReadout(StatefulLayer):
    r"""The predictions after each sample, (batch, out, n), with a running mean for the readout "mean".

    .. math:: y(t) = W \frac{1}{t} \sum_{\tau \le t} x(\tau) + b

    Args:
        readout: readout of the network.
        batch: number of streams.
    """

    def __init__(self, readout: Readout, *, batch: int) -> None:
        super().__init__()
        self.kind, self.linear = readout.kind, readout.linear
        weight = readout.linear.weight
        # Sums of many thousand terms: in float32 they would be worse than the mean of one forward pass.
        total = torch.zeros(batch, weight.shape[1], 1, dtype=torch.float64, device=weight.device)
        self.register_buffer("total", total, persistent=False)
        self.register_buffer(
            "count", torch.zeros(batch, 1, 1, dtype=torch.int64, device=weight.device), persistent=False
        )

    total: Tensor
    count: Tensor

    def forward(self, x: Tensor, mask: None = None) -> Tensor:  # noqa: ARG002
        """Return (batch, out, n) predictions for features (batch, channels, n)."""
        if self.kind == "mean":
            sums = self.total + x.to(self.total.dtype).cumsum(dim=-1)
            counts = self.count + torch.arange(1, x.shape[-1] + 1, device=x.device)
            self.total.copy_(sums[..., -1:])
            self.count.copy_(counts[..., -1:])
            x = (sums / counts).to(x.dtype)
        return self.linear(x)

    def reset(self, streams: Sequence[int] | slice) -> None:
        rows = streams if isinstance(streams, slice) else list(streams)
        self.total[rows] = 0
        self.count[rows] = 0

    def state(self) -> dict[str, Tensor]:
        return {"total": self.total.clone(), "count": self.count.clone()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.total.copy_(state["total"])
        self.count.copy_(state["count"])

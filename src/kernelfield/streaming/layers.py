"""Streaming layers: they remember past samples, and replace layers that read the whole input at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..ops import conv
from .online_conv import OnlineConv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layers import ContinuousConv, CumulativeNorm
    from ..models.readout import Readout
    from .clock import Clock
    from .recurrent_conv import RecurrentConv

__all__ = ["OnlineLayer", "RecurrentLayer", "RunningNorm", "RunningReadout", "StatefulLayer"]


class StatefulLayer(nn.Module):
    """Base class of layers with a state for each stream of the batch."""

    def reset(self, streams: Sequence[int] | slice) -> None:
        """Restart some streams of the batch."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the state."""
        raise NotImplementedError

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a state."""
        raise NotImplementedError


class BufferedLayer(StatefulLayer):
    """Base class of layers whose state is a few of their buffers, with the streams along the first axis."""

    #: names of integer tensors that all streams share
    shared_names: tuple[str, ...] = ()

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the tensors that change with every sample."""
        raise NotImplementedError

    # Tensors keep their addresses, since CUDA graphs of a step refer to them.

    def reset(self, streams: Sequence[int] | slice) -> None:
        rows = streams if isinstance(streams, slice) else list(streams)
        for name in self.state_names:
            getattr(self, name)[rows] = 0

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in (*self.state_names, *self.shared_names)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name in (*self.state_names, *self.shared_names):
            getattr(self, name).copy_(state[name])

    def _store(self, states: tuple[Tensor, ...]) -> None:
        """Replace the values of the state."""
        for name, state in zip(self.state_names, states, strict=True):
            getattr(self, name).copy_(state)


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
        #: if set, single samples are processed at its position
        self.clock: Clock | None = None

    def forward(self, x: Tensor, *, add_bias: bool = True, **_: Any) -> Tensor:
        """Return (batch, out, n) for the next samples (batch, in, n)."""
        y = self.conv(x) if self.clock is None else self.conv.push_at(x, self.clock)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1)

    def reset(self, streams: Sequence[int] | slice) -> None:
        self.conv.reset(streams)

    def state(self) -> dict[str, Tensor]:
        return self.conv.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.conv.load_state(state)


class RecurrentLayer(BufferedLayer):
    """A :class:`.RecurrentConv` in its recurrent form, which remembers its oscillations.

    The state is in float64: a pole is raised to the number of samples, and a kernel with an end later subtracts terms
    that it added before.

    Args:
        layer: the layer.
        step: sampling step of the input in training steps.
        batch: number of streams.
    """

    #: largest number of samples that are computed at once
    chunk = 64

    def __init__(self, layer: RecurrentConv, *, step: float, batch: int) -> None:
        super().__init__()
        self.groups, self.in_channels, self.out_channels = layer.groups, layer.in_channels, layer.out_channels
        self.bias = layer.bias
        self.delay = layer.lags(step)
        self.direct: Tensor | None
        self.register_buffer("direct", None, persistent=False)
        device = layer.cosine.device
        times = torch.arange(self.chunk + 1, device=device)
        measure = torch.full((layer.kernels, 1), step, dtype=torch.float64, device=device)
        weights = layer.cosine.double() * measure, layer.sine.double() * measure
        real, imag = layer.powers(times, step)
        buffers = {"real": real, "imag": imag, "cosine": weights[0], "sine": weights[1]}
        # A contiguous copy, since every sample reads it.
        buffers["pole_real"], buffers["pole_imag"] = real[..., 1], imag[..., 1]
        if step != 1:  # lag 0 has a weight of its own
            buffers["direct"] = (layer.first_weight(step) / step - 1) * weights[0].sum(dim=1)
        buffers["kernel"] = _kernel(real, imag, *weights)
        zeros: dict[str, Any] = {"dtype": torch.float64, "device": device}
        for name in ("state_real", "state_imag"):
            buffers[name] = torch.zeros(batch, layer.kernels, layer.order, **zeros)
        if self.delay is not None:
            end = layer.powers(torch.tensor([self.delay], device=device), step)
            buffers["end_real"], buffers["end_imag"] = end[0].squeeze(-1), end[1].squeeze(-1)
            late = layer.powers(self.delay + times, step)
            buffers["end_kernel"] = _kernel(*late, *weights)
            buffers["line"] = torch.zeros(batch, layer.in_channels, self.delay, **zeros)
            buffers["place"] = torch.zeros(1, dtype=torch.int64, device=device)
            self.shared_names = ("place",)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor.detach().contiguous(), persistent=False)

    real: Tensor
    imag: Tensor
    pole_real: Tensor
    pole_imag: Tensor
    cosine: Tensor
    sine: Tensor
    kernel: Tensor
    state_real: Tensor
    state_imag: Tensor
    end_real: Tensor
    end_imag: Tensor
    end_kernel: Tensor
    line: Tensor
    place: Tensor

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the tensors that change with every sample."""
        return ("state_real", "state_imag") if self.delay is None else ("state_real", "state_imag", "line")

    def forward(self, x: Tensor, *, add_bias: bool = True, **_: Any) -> Tensor:
        """Return (batch, out, n) for the next samples (batch, in, n)."""
        values = x.double()
        if x.shape[-1] == 1:
            y = self._push_one(values)
        else:
            pieces = []
            for piece in values.split(self.chunk, dim=-1):
                y, states = self.advance(piece, self._states())
                self._store(states)
                pieces.append(y)
            y = torch.cat(pieces, dim=-1)
        y = y.to(x.dtype)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1)

    def _push_one(self, x: Tensor) -> Tensor:
        """Process one sample; the delayed samples are a ring buffer, in which one entry is read and overwritten."""
        delayed = None
        if self.delay is not None:
            delayed = self.line.index_select(-1, self.place)
            self.line.index_copy_(-1, self.place, x)
            self.place.add_(1).remainder_(self.delay)
        y, real, imag = self._advance_one(x, delayed, self.state_real, self.state_imag)
        self.state_real.copy_(real)
        self.state_imag.copy_(imag)
        return y

    def _states(self) -> tuple[Tensor, ...]:
        """Return the state as :meth:`advance` takes it: delayed samples in order, the oldest first."""
        if self.delay is None:
            return self.state_real, self.state_imag
        order = (self.place + torch.arange(self.delay, device=self.place.device)).remainder(self.delay)
        self.place.zero_()
        return self.state_real, self.state_imag, self.line.index_select(-1, order)

    def advance(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs for at most ``chunk`` samples, and the states after them; changes nothing.

        Args:
            x: (batch, in, n) samples in float64.
            states: tensors in the order of :attr:`state_names`.
        """
        delayed: Tensor | None = None
        line: tuple[Tensor, ...] = ()
        if self.delay is not None:
            seen = torch.cat([states[2], x], dim=-1)
            delayed, line = seen[..., : x.shape[-1]], (seen[..., x.shape[-1] :],)
        advance = self._advance_one if x.shape[-1] == 1 else self._advance_many
        y, real, imag = advance(x, delayed, states[0], states[1])
        return y, (real, imag, *line)

    def _advance_one(
        self, x: Tensor, delayed: Tensor | None, real: Tensor, imag: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        new = self._to_kernels(x)
        lr, li = self.pole_real, self.pole_imag
        after_real = torch.addcmul(torch.addcmul(new, lr, real), li, imag, value=-1)
        after_imag = torch.addcmul(lr * imag, li, real)
        if delayed is not None:
            old = self._to_kernels(delayed)
            after_real = torch.addcmul(after_real, self.end_real, old, value=-1)
            after_imag = torch.addcmul(after_imag, self.end_imag, old, value=-1)
        y = torch.addcmul(self.cosine * after_real, self.sine, after_imag).sum(dim=-1, keepdim=True)
        if self.direct is not None:
            y = y + self.direct.unsqueeze(-1) * new
        return self._to_outputs(y), after_real, after_imag

    def _advance_many(
        self, x: Tensor, delayed: Tensor | None, real: Tensor, imag: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = x.shape[-1]
        # The state's contribution to each of the samples: Re c λ^(j+1) s
        ahead_real, ahead_imag = self.real[..., 1 : n + 1], self.imag[..., 1 : n + 1]
        y = torch.einsum("bkm,kmj->bkj", self.cosine * real + self.sine * imag, ahead_real)
        y = y + torch.einsum("bkm,kmj->bkj", self.sine * real - self.cosine * imag, ahead_imag)
        new = self._to_kernels(x)
        if self.direct is not None:
            y = y + self.direct.unsqueeze(-1) * new
        y = self._to_outputs(y) + self._conv(x, self.kernel[..., :n])
        # The state after them: λ^n s + Σ λ^(n-1-j) x(j)
        back_real, back_imag = self.real[..., :n].flip(-1), self.imag[..., :n].flip(-1)
        lr, li = self.real[..., n], self.imag[..., n]
        after_real = lr * real - li * imag + torch.einsum("bkj,kmj->bkm", new, back_real)
        after_imag = lr * imag + li * real + torch.einsum("bkj,kmj->bkm", new, back_imag)
        if delayed is not None:
            y = y - self._conv(delayed, self.end_kernel[..., :n])
            old = self._to_kernels(delayed)
            sum_real = torch.einsum("bkj,kmj->bkm", old, back_real)
            sum_imag = torch.einsum("bkj,kmj->bkm", old, back_imag)
            after_real = after_real - (self.end_real * sum_real - self.end_imag * sum_imag)
            after_imag = after_imag - (self.end_real * sum_imag + self.end_imag * sum_real)
        return y, after_real, after_imag

    def _to_kernels(self, x: Tensor) -> Tensor:
        """Return the input of each kernel, (batch, kernels, n)."""
        return x if self.groups > 1 else x.repeat(1, self.out_channels, 1)

    def _to_outputs(self, y: Tensor) -> Tensor:
        """Return the sums over the input channels, (batch, out, n)."""
        return y if self.groups > 1 else y.unflatten(1, (self.out_channels, self.in_channels)).sum(dim=2)

    def _conv(self, x: Tensor, kernel: Tensor) -> Tensor:
        kernel = kernel.unflatten(0, (self.out_channels, -1))
        return conv(x, kernel, causal=True, groups=self.groups)


def _kernel(real: Tensor, imag: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return Re c λ^t, (kernels, times)."""
    return (cosine.unsqueeze(-1) * real + sine.unsqueeze(-1) * imag).sum(dim=1)


class RunningNorm(BufferedLayer):
    """A :class:`~kernelfield.layers.CumulativeNorm` that continues its sums with each block.

    Args:
        norm: the norm.
        batch: number of streams.
    """

    def __init__(self, norm: CumulativeNorm, *, batch: int) -> None:
        super().__init__()
        self.norm = norm
        zeros = torch.zeros(batch, 2, 1, dtype=torch.float64, device=norm.weight.device)
        self.register_buffer("total", zeros, persistent=False)
        count = torch.zeros(batch, 1, 1, dtype=torch.int64, device=norm.weight.device)
        self.register_buffer("count", count, persistent=False)

    total: Tensor
    count: Tensor

    state_names = ("total", "count")

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised values for the next samples (batch, channels, n)."""
        y, states = self.advance(x, (self.total, self.count))
        self._store(states)
        return y

    def advance(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the normalised values, and the states after them; changes nothing."""
        sums, counts = states[0] + torch.cat(self.norm.sums(x), dim=1), _counts(states[1], x)
        mean, square = (sums / counts).split(1, dim=1)
        return self.norm.normalise(x, mean, square), (sums[..., -1:], counts[..., -1:])


class RunningReadout(BufferedLayer):
    r"""A readout that predicts after each sample, (batch, out, n), with a running mean for the readout "mean".

    .. math:: y(t) = W \frac{1}{t} \sum_{\tau \le t} x(\tau) + b

    Args:
        readout: readout of the network.
        batch: number of streams.
    """

    def __init__(self, readout: Readout, *, batch: int) -> None:
        super().__init__()
        if readout.kind == "pair":
            raise ValueError("net must read one input, got a network with readout 'pair', which compares two")
        if not readout.out_channels:
            raise ValueError("net must have a classifier to stream, got one after reset_classifier(0)")
        self.kind, self.linear = readout.kind, readout.linear
        self.out_channels = readout.out_channels
        weight = next(readout.linear.parameters())
        # Sums of many thousand terms: in float32 they would be less accurate than the mean of one forward pass.
        total = torch.zeros(batch, weight.shape[1], 1, dtype=torch.float64, device=weight.device)
        self.register_buffer("total", total, persistent=False)
        self.register_buffer(
            "count", torch.zeros(batch, 1, 1, dtype=torch.int64, device=weight.device), persistent=False
        )

    total: Tensor
    count: Tensor

    state_names = ("total", "count")

    def forward(self, x: Tensor, mask: None = None) -> Tensor:  # noqa: ARG002
        """Return (batch, out, n) predictions for features (batch, channels, n)."""
        y, states = self.advance(x, (self.total, self.count))
        self._store(states)
        return y

    def advance(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the predictions, and the states after them; changes nothing."""
        if self.kind == "mean":
            sums, counts = states[0] + _sums(x.to(states[0].dtype)), _counts(states[1], x)
            states = sums[..., -1:], counts[..., -1:]
            x = (sums / counts).to(x.dtype)
        return self.linear(x), states


def _sums(x: Tensor) -> Tensor:
    return x if x.shape[-1] == 1 else x.cumsum(dim=-1)


def _counts(before: Tensor, x: Tensor) -> Tensor:
    """Return the number of samples so far, after each sample of ``x``."""
    return before + 1 if x.shape[-1] == 1 else before + torch.arange(1, x.shape[-1] + 1, device=x.device)

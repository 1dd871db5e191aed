"""GRU-D (Che et al., 2018), a recurrent network for missing values, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["GRUD", "last_seen"]


def last_seen(observed: Tensor, *, before: bool = False) -> Tensor:
    """Return the index of the last step at which each channel was observed, (…, steps, channels); -1 for none.

    Args:
        observed: (…, steps, channels) whether a channel was observed.
        before: only steps before the current one count.

    >>> last_seen(torch.tensor([[0], [1], [0]]))[:, 0], last_seen(torch.tensor([[0], [1], [0]]), before=True)[:, 0]
    (tensor([-1,  1,  1]), tensor([-1, -1,  1]))
    """
    step = torch.arange(observed.shape[-2], device=observed.device).unsqueeze(1)
    index = torch.where(observed > 0, step, -1).cummax(dim=-2).values
    return F.pad(index[..., :-1, :], (0, 0, 1, 0), value=-1) if before else index


class GRUD(nn.Module):
    r"""A GRU whose inputs and state decay between observations.

    With the time δ since a channel was last observed, its last value :math:`x'`, its mean 0 and whether it is observed,
    m, the input of a step is

    .. math:: \hat x = m\, x + (1 - m)\, e^{-\max(0, w \delta + b)}\, x'

    The state is multiplied by :math:`e^{-\max(0, W \delta + b)}` before each step of the GRU, which reads
    :math:`[\hat x, m]`.

    Several networks of equal shape compute at once: the first axis of all parameters numbers them.

    Args:
        channels: channels of the input, of mean 0.
        hidden: width of the state.
        both: whether a second one reads the series from its end; their states are concatenated.
        dropout: on the input of the GRU.
        members: number of networks.
    """

    def __init__(
        self, channels: int, hidden: int, *, both: bool = False, dropout: float = 0.0, members: int = 1
    ) -> None:
        super().__init__()
        self.members, self.hidden = members, hidden
        self.input_decay = nn.Parameter(torch.zeros(members, 2, channels))
        self.decay_weight, self.decay_bias = _linear(members, channels, hidden, channels)
        self.input_weight, self.input_bias = _linear(members, 2 * channels, 3 * hidden, hidden)
        self.state_weight, self.state_bias = _linear(members, hidden, 3 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.other = GRUD(channels, hidden, dropout=dropout, members=members) if both else None

    def forward(self, x: Tensor, observed: Tensor, times: Tensor, state: Tensor | None = None) -> Tensor:
        """Return the state after each step, (members, batch, steps, hidden or twice as many).

        Without the axis of members, a single network reads the input, and the result has no such axis either.

        Args:
            x: (members, batch, steps, channels) values; any where not observed.
            observed: (members, batch, steps, channels) 1 where a channel was observed and 0 elsewhere.
            times: (members, batch, steps) times, ascending.
            state: (members, batch, hidden) state before the first step; zero if not given.
        """
        if x.dim() == 3:
            return self(x.unsqueeze(0), observed.unsqueeze(0), times.unsqueeze(0)).squeeze(0)
        states = self._states(x, observed, times, state)
        if self.other is None:
            return states
        back = self.other(x.flip(2), observed.flip(2), times[..., -1:] - times.flip(2))
        return torch.cat([states, back.flip(2)], dim=3)

    def _states(self, x: Tensor, observed: Tensor, times: Tensor, state: Tensor | None) -> Tensor:
        # All that does not depend on the state is computed for all steps at once.
        members, batch, steps, _ = x.shape
        index = last_seen(observed, before=True)
        known, place = index >= 0, index.clamp(min=0)
        clock = times.unsqueeze(-1).expand_as(x)
        since = clock - torch.where(known, clock.gather(2, place), clock[:, :, :1])
        weight, bias = self.input_decay[:, None, None].unbind(3)
        guess = torch.exp(-torch.relu(weight * since + bias)) * x.gather(2, place) * known
        read = self.dropout(torch.cat([torch.where(observed > 0, x, guess), observed], dim=3)).flatten(1, 2)
        read = torch.baddbmm(self.input_bias, read, self.input_weight).view(members, batch, steps, -1)
        kept = torch.baddbmm(self.decay_bias, since.flatten(1, 2), self.decay_weight)
        kept = torch.exp(-torch.relu(kept)).view(members, batch, steps, -1)
        if state is None:
            state = x.new_zeros(members, batch, self.hidden)
        states = []
        for now, share in zip(read.unbind(2), kept.unbind(2), strict=True):
            state = state * share
            own = torch.baddbmm(self.state_bias, state, self.state_weight)
            gates = torch.sigmoid(now[..., : 2 * self.hidden] + own[..., : 2 * self.hidden])
            reset, update = gates.chunk(2, dim=-1)
            fresh = torch.tanh(now[..., 2 * self.hidden :] + reset * own[..., 2 * self.hidden :])
            state = torch.lerp(fresh, state, update)
            states.append(state)
        return torch.stack(states, dim=2)


def _linear(members: int, rows: int, columns: int, fan: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Return weights (members, rows, columns) and biases (members, 1, columns), uniform up to fan^(-1/2)."""
    bound = fan**-0.5
    return tuple(nn.Parameter((2 * torch.rand(members, n, columns) - 1) * bound) for n in (rows, 1))  # type: ignore[return-value]

"""GRU-D (Che et al., 2018), a recurrent network for missing values, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["GRUD"]


class GRUD(nn.Module):
    r"""A GRU whose inputs and state decay between observations.

    With the time δ since a channel was last observed, its last value :math:`x'`, its mean 0 and whether it is observed,
    m, the input of a step is

    .. math:: \hat x = m\, x + (1 - m)\, e^{-\max(0, w \delta + b)}\, x'

    The state is multiplied by :math:`e^{-\max(0, W \delta + b)}` before each step of the GRU, which reads
    :math:`[\hat x, m]`.

    Args:
        channels: channels of the input, of mean 0.
        hidden: width of the state.
        both: whether a second one reads the series from its end; their states are concatenated.
        dropout: on the input of the GRU.
    """

    def __init__(self, channels: int, hidden: int, *, both: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.input_decay = nn.Parameter(torch.zeros(2, channels))
        self.state_decay = nn.Linear(channels, hidden)
        self.dropout = nn.Dropout(dropout)
        self.cell = nn.GRUCell(2 * channels, hidden)
        self.other = GRUD(channels, hidden, dropout=dropout) if both else None

    def forward(self, x: Tensor, observed: Tensor, times: Tensor) -> Tensor:
        """Return the state after each step, (batch, steps, hidden or twice as many).

        Args:
            x: (batch, steps, channels) values; any where not observed.
            observed: (batch, steps, channels) 1 where a channel was observed and 0 elsewhere.
            times: (batch, steps) times, ascending.
        """
        states = self._states(x, observed, times)
        if self.other is None:
            return states
        back = self.other(x.flip(1), observed.flip(1), times[:, -1:] - times.flip(1))
        return torch.cat([states, back.flip(1)], dim=2)

    def _states(self, x: Tensor, observed: Tensor, times: Tensor) -> Tensor:
        gaps = times.diff(dim=1, prepend=times[:, :1])
        state = x.new_zeros(len(x), self.cell.hidden_size)
        last, since = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        states = []
        for value, seen, gap in zip(x.unbind(1), observed.unbind(1), gaps.unbind(1), strict=True):
            since = since + gap.unsqueeze(1)
            weight, bias = self.input_decay
            guess = torch.exp(-torch.relu(weight * since + bias)) * last
            state = state * torch.exp(-torch.relu(self.state_decay(since)))
            filled = torch.where(seen > 0, value, guess)
            state = self.cell(self.dropout(torch.cat([filled, seen], dim=1)), state)
            last, since = torch.where(seen > 0, value, last), since * (1 - seen)
            states.append(state)
        return torch.stack(states, dim=1)

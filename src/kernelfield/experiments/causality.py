"""Whether a network that predicts the next token sees tokens it has to predict."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check_language_model", "leak"]

#: tokens of the probe, and the largest change of earlier outputs that rounding explains
PROBE, ROUNDING = 24, 1e-6


@torch.no_grad()
def leak(network: nn.Module, vocabulary: int, length: int) -> float:
    """Return how far outputs change with later tokens, relative to how far they change with their own.

    A copy of the network runs twice in evaluation mode, in double precision: on some tokens, and on the same with the
    second half replaced.

    Args:
        network: maps (batch, length) token ids to (batch, out, length) scores.
        vocabulary: number of tokens.
        length: of the sequence to try.

    >>> from kernelfield import CKCNN
    >>> language = {"size": 16, "channels": (4, 4), "vocabulary": 5, "readout": "dense"}
    >>> leak(CKCNN(4, 5, **language), 5, 16) < 1e-9
    True
    >>> leak(CKCNN(4, 5, causal=False, **language), 5, 16) > 1e-2
    True
    """
    device = next(network.parameters()).device
    tokens = torch.arange(length, device=device).remainder(vocabulary).unsqueeze(0)
    half = length // 2
    other = torch.cat([tokens[:, :half], (tokens[:, half:] + 1).remainder(vocabulary)], dim=1)
    network = copy.deepcopy(network).double().eval()
    changes = (network(tokens) - network(other)).abs().flatten(0, -2).amax(dim=0)
    return float(changes[:half].amax() / changes[half:].amax().clamp(min=torch.finfo(changes.dtype).tiny))


def check_language_model(network: nn.Module, vocabulary: int, length: int) -> None:
    """Raise a ValueError if a network for next-token prediction looks at later tokens."""
    found = leak(network, vocabulary, min(length, PROBE))
    if not found <= ROUNDING:
        raise ValueError(
            "model must be causal to predict the next token: with causal convolutions and a norm that does not look "
            f"ahead; later tokens change its earlier outputs by {found:.1%} of what its own tokens do"
        )

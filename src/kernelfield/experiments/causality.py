"""A test that a network for next-token prediction does not read the tokens it has to predict."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check_language_model", "leak"]

#: number of tokens of the probe, and the largest change of earlier outputs that rounding explains
PROBE, ROUNDING = 24, 1e-6


@torch.no_grad()
def leak(network: nn.Module, vocabulary: int, length: int) -> float:
    """Return how much outputs change with later tokens, relative to how much they change with their own tokens.

    A copy of the network runs twice in evaluation mode, in double precision: on some tokens, and on the same tokens
    with the second half replaced.

    Args:
        network: maps (batch, length) token ids to (batch, out, length) scores.
        vocabulary: number of tokens.
        length: length of the test sequence; a single token has no later ones.

    >>> from kernelfield import CKCNN
    >>> language = {"size": 16, "channels": (4, 4), "vocabulary": 5, "readout": "dense"}
    >>> leak(CKCNN(4, 5, **language), 5, 16) < 1e-9
    True
    >>> leak(CKCNN(4, 5, causal=False, **language), 5, 16) > 1e-2
    True
    """
    if length < 2:
        return 0.0
    device = next(network.parameters()).device
    tokens = torch.arange(length, device=device).remainder(vocabulary).unsqueeze(0)
    half = length // 2
    other = torch.cat([tokens[:, :half], (tokens[:, half:] + 1).remainder(vocabulary)], dim=1)
    network = copy.deepcopy(network).double().eval()
    changes = (network(tokens) - network(other)).abs().flatten(0, -2).amax(dim=0)
    return float(changes[:half].amax() / changes[half:].amax().clamp(min=torch.finfo(changes.dtype).tiny))


def check_language_model(network: nn.Module, vocabulary: int, length: int) -> None:
    """Raise a ValueError if a network for next-token prediction reads later tokens."""
    found = leak(network, vocabulary, min(length, PROBE))
    if not found <= ROUNDING:
        raise ValueError(
            "model must be causal to predict the next token, with causal convolutions and a causal norm; later tokens "
            f"change its earlier outputs by {found:.1%} of the change that their own tokens cause"
        )

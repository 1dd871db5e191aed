"""Generate text with causal token models, one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._arguments import checked
from .._checks import check_int
from .._kinds import NOT_NEGATIVE, SEED, Int, ListOf
from .._object_kinds import TensorOf
from ..models.readout import Embedding
from .stream import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["generate"]


@checked(
    prompt=TensorOf("int") | ListOf(Int(0)) | ListOf(ListOf(Int(0))),
    length=Int(0),
    temperature=NOT_NEGATIVE,
    seed=SEED | ListOf(SEED) | None,
)
def generate(
    net: nn.Module,
    prompt: Tensor | Sequence[int],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | Sequence[int] | None = None,
) -> Tensor:
    r"""Continue token sequences with a causal network that predicts the next token.

    Tokens are drawn from :math:`p \propto \exp(\mathrm{net}(x) / T)`, one by one. The network streams, so a new token
    needs no pass over all tokens before it.

    Args:
        net: a causal network with a vocabulary, such as "ckcnn_ptb", or a distilled one.
        prompt: (batch, n) token ids, or n ids; at least one.
        length: number of tokens to add.
        temperature: T; 0 takes the most likely token.
        top_k: draw only from this many most likely tokens.
        seed: seed of the draws, one for all sequences, or one for each, which makes them independent of each other;
            torch's global random state if not given.

    Returns:
        (batch, n + length) token ids, or n + length ids for a prompt without a batch.

    >>> import kernelfield as kf
    >>> net = kf.CKCNN(8, 20, size=32, channels=8, readout="dense", vocabulary=20, norm="batch").eval()
    >>> kf.generate(net, [1, 2, 3], 5, seed=0).shape
    torch.Size([8])
    """
    embedding = next((m for m in net.modules() if isinstance(m, Embedding)), None)
    if embedding is None:
        raise ValueError(f"net must have a vocabulary, got a {type(net).__name__} that takes signals")
    device = embedding.weight.device
    try:
        tokens = torch.as_tensor(prompt, device=device)
    except ValueError as error:
        raise ValueError(f"prompt must hold sequences of one length: {error}") from error
    single = tokens.dim() == 1
    tokens = tokens.unsqueeze(0) if single else tokens
    if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
        raise ValueError(f"prompt must be (batch, n) token ids, at least one each, got {tuple(tokens.shape)}")
    if top_k is not None:
        check_int("top_k", top_k)
    generators = _generators(seed, len(tokens), device)
    online = Stream(net, len(tokens))
    try:
        scores = online.push(tokens)[..., -1]
    except ValueError as error:
        raise ValueError(str(error).replace("block", "prompt", 1)) from None
    if scores.shape[1] != embedding.num_embeddings:
        raise ValueError(
            f"net must predict each of its {embedding.num_embeddings} tokens, got {scores.shape[1]} outputs"
        )
    sequence = [tokens]
    for i in range(length):
        new = _draw(scores, temperature, top_k, generators)
        sequence.append(new)
        if i + 1 < length:
            scores = online.push(new)[..., -1]
    joined = torch.cat(sequence, dim=1)
    return joined[0] if single else joined


def _generators(
    seed: int | Sequence[int] | None, batch: int, device: torch.device
) -> list[torch.Generator] | torch.Generator | None:
    """Return one random generator for all sequences, or one for each."""
    if seed is None:
        return None
    if isinstance(seed, int):
        return torch.Generator(device).manual_seed(seed)
    if len(seed) != batch:
        raise ValueError(f"seed must be one int, or one for each of the {batch} prompts, got {len(seed)}")
    return [torch.Generator(device).manual_seed(one) for one in seed]


def _draw(
    scores: Tensor,
    temperature: float,
    top_k: int | None,
    generators: list[torch.Generator] | torch.Generator | None,
) -> Tensor:
    """Return (batch, 1) tokens drawn from (batch, vocabulary) scores."""
    if temperature < 1e-6:  # scores divided by less would overflow
        return scores.argmax(dim=1, keepdim=True)
    scores = scores.float() / temperature
    if top_k is not None and top_k < scores.shape[1]:
        least = scores.topk(top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    shares = scores.softmax(dim=1)
    if isinstance(generators, list):
        rows = [torch.multinomial(row, 1, generator=one) for row, one in zip(shares, generators, strict=True)]
        return torch.stack(rows)
    return torch.multinomial(shares, 1, generator=generators)

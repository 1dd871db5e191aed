"""Embeddings, pooling and last linear maps of networks, and the base classes of networks that end in these.

:class:`PointClassifier` is the base class of CCNN, CKCNN and FlexNet, which read samples at any positions and predict
at any coordinates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._checks import check_choice
from .._object_kinds import TensorOf
from ..layers.pointwise import NORMS, NORMS_THAT_LOOK_AHEAD, Pointwise
from .classifier import HeadClassifier
from .point_inputs import in_time_order, original_order

if TYPE_CHECKING:
    from ..layers.group import GroupSignal

__all__ = ["PAIR", "READOUTS", "Embedding", "PointClassifier", "Readout", "ReadoutClassifier", "check_norm"]

READOUTS = ("mean", "last", "dense")
#: readout that makes one prediction for two inputs
PAIR = "pair"


def check_norm(norm: str | None, *, causal: bool, readout: str, default: str, dim: int = 1) -> str:
    """Return the norm of a network; raise a ValueError if the norm would break causality.

    A causal network with a dense readout predicts each position from the positions up to it. A norm over all positions
    would leak later ones: a language model would see the characters that it has to predict.

    Args:
        norm: name of the norm, as in :func:`kernelfield.layers.make_norm`; None for the default.
        causal: whether the convolutions are causal.
        readout: kind of the readout.
        default: default norm; causal networks use "cumulative" instead if it looks ahead.
        dim: number of spatial dimensions; "cumulative" needs dim 1.

    >>> check_norm(None, causal=True, readout="dense", default="layer")
    'cumulative'
    >>> check_norm("layer", causal=True, readout="dense", default="layer")
    Traceback (most recent call last):
    ValueError: norm must be 'batch', 'channel', 'cumulative' or 'none' for a causal network with a dense readout, ...
    """
    if norm is None:
        return "cumulative" if causal and default in NORMS_THAT_LOOK_AHEAD else default
    check_choice("norm", norm, NORMS)
    if causal and readout == "dense" and norm in NORMS_THAT_LOOK_AHEAD:
        raise ValueError(
            "norm must be 'batch', 'channel', 'cumulative' or 'none' for a causal network with a dense readout, since "
            f"others look ahead; got {norm!r}"
        )
    if norm == "cumulative" and dim != 1:
        raise ValueError(f"norm must not be 'cumulative' for dim={dim}, got {norm!r}: only dim 1 has a past")
    return norm


class Embedding(nn.Embedding):
    """Embed token ids (batch, length) as signals (batch, channels, length).

    Args:
        vocabulary: number of tokens.
        channels: length of an embedding.
        dropout: probability, in training, that all occurrences of a token in a batch are embedded as zero.

    >>> Embedding(50, 4)(torch.tensor([[3, 49, 0]])).shape
    torch.Size([1, 4, 3])
    """

    weight: nn.Parameter

    def __init__(self, vocabulary: int, channels: int, dropout: float = 0.0) -> None:
        super().__init__(vocabulary, channels)
        self.dropout = dropout
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise ValueError(f"x must be (batch, length) token ids, got {tuple(tokens.shape)} of {tokens.dtype}")
        weight: Tensor = self.weight
        if self.training and self.dropout:
            kept = torch.rand(len(weight), 1, dtype=weight.dtype, device=weight.device) >= self.dropout
            weight = weight * (kept / (1 - self.dropout))
        return nn.functional.embedding(tokens, weight).movedim(-1, 1)


class Readout(nn.Module):
    """Map features to predictions.

    Args:
        channels: channels of the features.
        out_channels: number of predictions.
        kind: "mean" averages over all positions, "last" reads the last one, "dense" predicts at every position. "pair"
            averages, takes the two halves of the batch as features X₁ and X₂ of each sample, and maps
            [X₁, X₂, X₁·X₂, X₁ - X₂] through two layers (Retrieval in chapter 6).
        weight: (out_channels, channels) parameter to share, such as an embedding's.
        gain: weights are drawn from N(0, gain²/channels); √2 as in chapters 3 and 5.

    >>> Readout(4, 10, "mean")(torch.randn(2, 4, 8, 8)).shape
    torch.Size([2, 10])
    >>> Readout(4, 10, "dense")(torch.randn(2, 4, 8, 8)).shape
    torch.Size([2, 10, 8, 8])
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        kind: str,
        weight: nn.Parameter | None = None,
        gain: float = math.sqrt(2),
    ) -> None:
        super().__init__()
        self.kind = check_choice("readout", kind, (*READOUTS, PAIR))
        self.channels, self.out_channels, self.gain = channels, out_channels, gain
        self.compare = Pointwise(4 * channels, channels) if kind == PAIR else None
        self.linear: nn.Module = Pointwise(channels, out_channels, gain=gain)
        #: whether the linear map shares the weight of an embedding
        self.tied = weight is not None
        if weight is not None:
            tokens, width = weight.shape[:2]
            if tokens != out_channels:
                raise ValueError(
                    f"out_channels must be the size of the vocabulary, {tokens}, to share its embedding, "
                    f"got {out_channels}"
                )
            if width != channels:
                raise ValueError(
                    f"channels of the last block must equal in_channels={width} to share the embedding of "
                    f"vocabulary={tokens}, got {channels}"
                )
            self.linear.weight = weight

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, out) or, dense, (batch, out, *space); positions where ``mask`` is False do not count."""
        y = self.pooled(x, mask)
        return self.linear(y) if self.kind == "dense" else self.linear(y.unsqueeze(-1)).squeeze(-1)

    def pooled(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the input of the linear map: (batch, channels) or, dense, ``x`` itself."""
        if self.kind == "dense":
            return x
        pooled = self.pool(x.flatten(2), None if mask is None else mask.flatten(1))
        if self.compare is not None:
            first, second = pooled.chunk(2)
            # Interleaved by channel, so the first columns belong to the first channels in a wider network too.
            both = torch.stack([first, second, first * second, first - second], dim=2).flatten(1)
            pooled = nn.functional.gelu(self.compare(both.unsqueeze(-1)).squeeze(-1))
        return pooled

    def reset(self, out_channels: int) -> None:
        """Replace the linear map by a new one for ``out_channels`` predictions, or by the identity for 0."""
        if self.tied:
            raise ValueError(
                f"num_classes must stay {self.out_channels}: the classifier shares the weight of the embedding, "
                f"got {out_channels}"
            )
        self.out_channels = out_channels
        self.linear = Pointwise(self.channels, out_channels, gain=self.gain) if out_channels else nn.Identity()

    def pool(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return the mean of ``x`` (batch, channels, positions) over seen positions, or the last of these."""
        if self.kind == "last":
            if seen is None:
                return x[..., -1]
            index = torch.arange(x.shape[-1], device=x.device)
            last = torch.where(seen, index, 0).amax(dim=1)
            return x.gather(2, last.view(-1, 1, 1).expand(-1, x.shape[1], 1)).squeeze(2)
        if seen is None:
            return x.mean(dim=2)
        weight = seen.unsqueeze(1).to(x.dtype)
        # Sums over many positions are not finite in float16.
        wide = torch.promote_types(x.dtype, torch.float32)
        total, count = (x * weight).sum(dim=2, dtype=wide), weight.sum(dim=2, dtype=wide)
        return (total / count.clamp(min=1)).to(x.dtype)


class ReadoutClassifier(HeadClassifier):
    """Base class of networks that end in a :class:`Readout`."""

    readout: Readout

    def _head(self) -> Readout:
        return self.readout

    def forward_head(
        self, features: Tensor | GroupSignal, *, pre_logits: bool = False, mask: Tensor | None = None
    ) -> Tensor:
        r"""Return predictions from features; positions where ``mask`` is False do not count.

        Args:
            features: as :meth:`forward_features` returns them.
            pre_logits: return pooled features; a dense readout does not pool.
            mask: (batch, \*space), True where a position was seen.
        """
        assert isinstance(features, Tensor)
        readout = self._head()
        return readout.pooled(features, mask) if pre_logits else readout(features, mask)


class PointClassifier(ReadoutClassifier):
    """Base class of networks on grids and points; a subclass defines ``_features``."""

    @checked(x=TensorOf(empty=False), mask=TensorOf("bool") | None, at=TensorOf("float") | None)
    def forward(self, x: Tensor, *, mask: Tensor | None = None, at: Tensor | None = None, **sampling: Any) -> Tensor:
        r"""Return predictions for ``x``, in the order of its samples.

        A dense network can predict ``at`` any coordinates, also between samples: (batch, out, queries). The input may
        be on a grid or at points.

        Args:
            x: (batch, in, \*space) values, or (batch, length) ids of tokens.
            mask: (batch, \*space), True where a sample was seen.
            at: (batch, queries, dim) or (queries, dim) coordinates in training steps.
            sampling: step, coords and density, as in the layers; for a :class:`~kernelfield.CCNN` also ``active``, the
                part of each block to compute. Blocks beyond the last part are skipped.
        """
        features, mask, order = self._features(x, mask=mask, at=at, **sampling)
        if at is not None:
            return self.readout(features[..., -at.shape[-2] :])
        if self.readout.kind == "last" and order is None:  # the readout takes the last sample, so sort them by time
            features, mask, _, _ = in_time_order(features, mask, sampling)
        y = self.readout(features, mask)
        return original_order(order, y) if order is not None and self.readout.kind == "dense" else y

    def forward_features(self, x: Tensor, **sampling: Any) -> Tensor:
        """Return features (batch, channels, *space) of ``x``, before pooling; arguments as in :meth:`forward`."""
        features, _, order = self._features(x, **sampling)
        return features if order is None else original_order(order, features)

    def _features(self, x: Tensor, **sampling: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the input of the readout, its mask, and the order of the samples if they were sorted by time."""
        raise NotImplementedError

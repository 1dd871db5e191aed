"""Irregular data from regular data: drop a share of the positions (chapter 2, section 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import RATE, Choice
from .batch import Chain, Observed
from .to_sequence import map_splits

if TYPE_CHECKING:
    from ..base import Data, Split

__all__ = ["drop_samples", "drop_split"]

FORMS = ("mask", "points")


@checked(share=RATE, form=Choice(*FORMS))
def drop_split(split: Split, share: float, *, form: str = "mask", seed: int = 0) -> Split:
    """Drop a random share of the positions of each sample.

    Args:
        split: signals on a grid, values at points, or tokens.
        share: share of the observed positions of each sample to drop, at least 0 and below 1.
        form: "mask" keeps the grid and masks the dropped positions; "points" removes them and adds the coords of the
            others, in training steps. Targets at every position need "mask".
        seed: seed of the random choice.

    >>> from kernelfield.data import Split
    >>> split = drop_split(Split(torch.arange(8.0).view(1, 1, 8), torch.zeros(1)), 0.5, form="points")
    >>> split.inputs.tolist(), split.coords.flatten().tolist()
    ([[[0.0, 1.0, 5.0, 7.0]]], [0.0, 1.0, 5.0, 7.0])
    >>> drop_split(Split(torch.zeros(1, 1, 8), torch.zeros(1)), 0.5).mask.sum()
    tensor(4)
    """
    tokens = split.inputs.dim() == 2
    space = split.inputs.shape[1:] if tokens else split.inputs.shape[2:]
    n, points = len(split), space.numel()
    seen = torch.ones(n, points, dtype=torch.bool) if split.mask is None else split.mask.flatten(1).cpu()
    kept = _kept(seen, share, seed).to(split.inputs.device)
    if form == "mask":
        return replace(split, mask=kept.view(n, *space))
    if split.at is None and split.target.shape[1:] and split.target.shape[-len(space) :] == space:
        raise ValueError(f"form must be 'mask' for targets at every position, shape {tuple(split.target.shape)}")
    coords = _grid(space, split.step).expand(n, -1, -1) if split.coords is None else split.coords
    longest = int(kept.sum(dim=1).max())
    # A stable sort puts the kept positions first, in their old order.
    order = torch.argsort(kept.int(), dim=1, descending=True, stable=True)[:, :longest]
    mask = kept.gather(1, order)
    flat = split.inputs if tokens else split.inputs.flatten(2)
    index = order if tokens else order.unsqueeze(1).expand(-1, flat.shape[1], -1)
    coords = coords.to(order.device).gather(1, order.unsqueeze(2).expand(-1, -1, coords.shape[2]))
    return replace(
        split,
        inputs=flat.gather(-1, index),
        coords=coords,
        mask=None if bool(mask.all()) else mask,
        step=1.0,
    )


@checked(share=RATE, form=Choice(*FORMS))
def drop_samples(data: Data, share: float, *, form: str = "mask", observed: bool = False, seed: int = 0) -> Data:
    """Drop a random share of the positions in all splits; see :func:`drop_split`.

    Args:
        data: the data set.
        share: share of the observed positions of each sample to drop.
        form: "mask" or "points".
        observed: whether to add a channel that is 1 at observed positions, as in the published networks, and to set all
            channels to zero elsewhere. For "mask" only.
        seed: seed for the training data; ``seed + 1`` and ``seed + 2`` are for validation and test data.

    >>> from kernelfield.data.sets.synthetic.chirps import chirps
    >>> data = drop_samples(chirps(128, train=4), 0.3, observed=True)
    >>> data.in_channels, data.train.batch(slice(0, 2)).inputs.shape
    (2, torch.Size([2, 2, 128]))
    """
    if observed and (form != "mask" or data.vocabulary is not None):
        raise ValueError("observed must be False for form 'points' and for tokens, got True")
    seeds = iter(range(seed, seed + 3))

    def change(split: Split) -> Split:
        dropped = drop_split(split, share, form=form, seed=next(seeds))
        if not observed:
            return dropped
        steps = (Observed(),) if split.prepare is None else (split.prepare, Observed())
        return replace(dropped, prepare=Chain(steps))

    return map_splits(data, change, in_channels=data.in_channels + int(observed))


def _kept(seen: Tensor, share: float, seed: int) -> Tensor:
    """Return the mask (n, points) of kept positions; the number of dropped ones per row is rounded down."""
    score = torch.rand(seen.shape, generator=torch.Generator().manual_seed(seed))
    # Masked positions come last, so the ranks of the others are a random order.
    rank = torch.where(seen, score, 2.0).argsort(dim=1).argsort(dim=1)
    count = seen.sum(dim=1, keepdim=True)
    return seen & (rank >= (count * share + 1e-6).floor())


def _grid(space: torch.Size, step: float | tuple[float, ...]) -> Tensor:
    """Return (1, points, dim) coordinates of a grid, in training steps."""
    steps = step if isinstance(step, tuple) else (float(step),) * len(space)
    axes = [torch.arange(n) * s for n, s in zip(space, steps, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2).unsqueeze(0)

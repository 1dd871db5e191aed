"""Synthetic transients: short events of five kinds, at random positions and scales in noise (chapter 10)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import NOT_NEGATIVE, POSITIVE, Int, ListOf
from ...base import Data, Split

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["transients"]


def _bell(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * (u / 0.3) ** 2)


#: the event of each class, as a function of its own time u in [-1, 1] and of a phase
KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rising chirp": lambda u, p: _bell(u) * torch.sin(2 * math.pi * (7 * u + 3 * u**2) + p),
    "falling chirp": lambda u, p: _bell(u) * torch.sin(2 * math.pi * (7 * u - 3 * u**2) + p),
    "ring": lambda u, p: torch.where(u > -0.8, torch.exp(-3 * (u + 0.8)), 0.0) * torch.sin(2 * math.pi * 7 * u + p),
    "swell": lambda u, p: torch.where(u < 0.8, torch.exp(3 * (u - 0.8)), 0.0) * torch.sin(2 * math.pi * 7 * u + p),
    "beat": lambda u, p: _bell(u) * torch.sin(2 * math.pi * 7 * u + p) * torch.cos(2 * math.pi * 1.8 * u),
}


@checked(length=Int(128), scales=ListOf(POSITIVE, count=2), speed=POSITIVE, noise=NOT_NEGATIVE, validation=Int(0))
def transients(
    length: int = 1_024,
    *,
    scales: tuple[float, float] = (1.0, 4.0),
    speed: float = 1.0,
    noise: float = 0.1,
    train: int = 1_000,
    validation: int = 200,
    test: int = 500,
    seed: int = 0,
) -> Data:
    r"""Return chirps and transients of five kinds, at random positions and scales, to classify by kind.

    .. math:: x(t) = a\, k_c\Big(\frac{t - t_0}{64\, s}\Big) + \epsilon

    where k_c is one of five events, t_0 a random position, and log s uniform between the logarithms of ``scales``. A
    slower event keeps its class: pitch and duration change together, as on a tape.

    Source: generated. Licence: none needed. Split: the given numbers of signals, drawn with one seed. Normalisation:
    divided by the standard deviation of training signals at speed 1.

    Args:
        length: number of samples at speed 1.
        scales: smallest and largest s; two equal numbers give a single scale.
        speed: speed of the tape; at 0.5 the same signals have twice as many samples, with other noise.
        noise: standard deviation of the noise; events have amplitudes between 0.5 and 1.
        train: number of training signals.
        validation: number of validation signals; 0 for none.
        test: number of test signals.
        seed: seed of all samples.

    Returns:
        Inputs (n, 1, length / speed), classes (n,) of five.

    >>> data = transients(512, train=10)
    >>> data.train.inputs.shape, data.classes[0]
    (torch.Size([10, 1, 512]), 'rising chirp')
    >>> transients(512, train=10, speed=0.5).train.inputs.shape
    torch.Size([10, 1, 1024])
    """
    if round(length / speed) < 1:
        raise ValueError(f"speed must leave at least one sample for length={length}, got {speed}")
    low, high = scales
    if not 0 < low <= high or 128 * high > length:
        raise ValueError(
            f"scales must be two numbers above 0, the larger one at most length / 128 = {length / 128:g}, got {scales}"
        )
    count = train, validation, test
    total, generator = sum(count), torch.Generator().manual_seed(seed)
    label = torch.randint(len(KINDS), (total,), generator=generator)
    drawn = torch.rand(4, total, 1, generator=generator)
    scale = low * (high / low) ** drawn[0]
    at = 64 * scale + (length - 128 * scale) * drawn[1]
    phase, amplitude = 2 * math.pi * drawn[2], 0.5 + 0.5 * drawn[3]
    u = (torch.arange(round(length / speed)) * speed - at) / (64 * scale)
    signals = torch.zeros(u.shape)
    for i, kind in enumerate(KINDS.values()):
        which = label == i
        signals[which] = amplitude[which] * kind(u[which], phase[which])
    signals = torch.where(u.abs() < 1, signals, 0.0)
    white_noise = torch.randn(signals.shape, generator=torch.Generator().manual_seed(seed + 1))
    signals = (signals + noise * white_noise) / _deviation(length, low, high, noise)
    return Data.from_splits("transients", Split(signals.unsqueeze(1), label).cut(count), classes=tuple(KINDS))


def _deviation(length: int, low: float, high: float, noise: float) -> float:
    """Return the expected standard deviation of such signals, which is the same at every speed."""
    u = (torch.arange(2_000) + 0.5) / 1_000 - 1
    energy = sum(float(kind(u, torch.tensor(0.7)).square().mean()) for kind in KINDS.values()) / len(KINDS)
    middle = (high - low) / math.log(high / low) if high > low else low
    share = 128 * middle / length
    return math.sqrt(energy * share * 7 / 12 + noise**2)  # 7/12: mean square of an amplitude in [0.5, 1]

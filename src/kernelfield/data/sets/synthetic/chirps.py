"""Synthetic chirps: tones that rise or fall, slowly or fast, at random positions in noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...._arguments import checked
from ...._kinds import NOT_NEGATIVE, Int
from ...base import Data, Split

__all__ = ["chirps"]

#: change of frequency of each class over the signal's length, in cycles per length
RATES = {"falls fast": -48.0, "falls": -24.0, "steady": 0.0, "rises": 24.0, "rises fast": 48.0}


@checked(length=Int(128), noise=NOT_NEGATIVE, validation=Int(0))
def chirps(
    length: int = 256, *, noise: float = 0.3, train: int = 2_000, validation: int = 500, test: int = 500, seed: int = 0
) -> Data:
    r"""Return chirps to classify by the change of their frequency.

    .. math:: x(t) = e^{-\frac12 (t - c)^2 / w^2} \sin(2\pi (f (t - c) + \tfrac{r}{2} (t - c)^2) + \phi) + \epsilon

    for t in [0, 1), where the class determines the rate r, and centre c, width w, frequency f and phase are random. The
    frequency in the middle does not depend on the class, so a network must observe an interval of time. Signals are
    continuous functions of time: the same seed with another ``length`` gives the same signals on another grid, with
    other noise.

    Source: generated. Licence: none needed. Split: the given numbers of signals, drawn with one seed. Normalisation:
    divided by the standard deviation of the training signals.

    Args:
        length: number of samples, at least 128.
        noise: standard deviation of the noise; the tone has amplitude 1.
        train: number of training signals.
        validation: number of validation signals; 0 for none.
        test: number of test signals.
        seed: seed of all samples.

    Returns:
        Inputs (n, 1, length), classes (n,) of five.

    >>> data = chirps(128, train=10)
    >>> data.train.inputs.shape, data.classes
    (torch.Size([10, 1, 128]), ('falls fast', 'falls', 'steady', 'rises', 'rises fast'))
    """
    count = train, validation, test
    generator = torch.Generator().manual_seed(seed)
    rates = torch.tensor(list(RATES.values()))
    label = torch.randint(len(RATES), (sum(count),), generator=generator)
    signals = _signals(rates[label], length, generator)
    white_noise = torch.randn(signals.shape, generator=torch.Generator().manual_seed(seed + 1))
    signals = signals + noise * white_noise
    signals = signals / signals[:train].std()
    return Data.from_splits("chirps", Split(signals.unsqueeze(1), label).cut(count), classes=tuple(RATES))


def _signals(rate: Tensor, length: int, generator: torch.Generator) -> Tensor:
    centre, width, frequency, phase = torch.rand(4, len(rate), 1, generator=generator)
    centre, width, frequency = 0.25 + 0.5 * centre, 0.08 + 0.08 * width, 12 + 8 * frequency
    t = torch.arange(length) / length - centre
    angle = 2 * math.pi * (frequency * t + 0.5 * rate.unsqueeze(1) * t.square() + phase)
    return torch.exp(-0.5 * (t / width).square()) * torch.sin(angle)

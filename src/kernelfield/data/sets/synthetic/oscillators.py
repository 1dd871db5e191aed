"""Synthetic oscillators, observed at random times, to predict at others."""

from __future__ import annotations

import math

import torch

from ...._arguments import checked
from ...._kinds import NOT_NEGATIVE, RATE, Int
from ...base import Data, Split

__all__ = ["oscillators"]

#: ranges of the number of cycles, and of the decrease of the log amplitude, over the interval
CYCLES, DECAY = (2.0, 6.0), (0.0, 2.0)


@checked(length=Int(2), seen=Int(), asked=Int(), forecast=RATE, noise=NOT_NEGATIVE, validation=Int(0))
def oscillators(
    length: int = 100,
    *,
    seen: int = 30,
    asked: int = 100,
    forecast: float = 0.0,
    noise: float = 0.0,
    train: int = 4_000,
    validation: int = 500,
    test: int = 500,
    seed: int = 0,
) -> Data:
    r"""Return damped oscillators, observed at random times, to predict at other times.

    .. math:: x(t) = e^{-\gamma t} \cos(2\pi f t + \phi), \qquad t \in [0, 1)

    with uniform random frequency f, decay γ and phase φ: 2 to 6 cycles, an amplitude that shrinks by up to
    :math:`e^{-2}`. All times are drawn uniformly and independently for each sample. The targets are exact, so a perfect
    network has zero error.

    Source: generated. Licence: none needed. Split: the given numbers of samples, drawn with one seed. Normalisation:
    none.

    Args:
        length: number of training steps in the time interval [0, 1).
        seen: number of observed times per oscillator.
        asked: number of times per oscillator at which to predict.
        forecast: share of the interval, at its end, without observations; predictions cover the whole interval.
        noise: standard deviation of the noise on the observations; targets have none.
        train: number of training samples.
        validation: number of validation samples; 0 for none.
        test: number of test samples.
        seed: seed of all samples.

    Returns:
        Inputs (n, 2, seen): the value, and a channel of ones with which a convolution can count its samples; coords (n,
        seen, 1), ascending; at (n, asked, 1), ascending; targets (n, 1, asked), task "dense-regression".

    >>> data = oscillators(train=4)
    >>> data.train.inputs.shape, data.train.at.shape, data.train.target.shape
    (torch.Size([4, 2, 30]), torch.Size([4, 100, 1]), torch.Size([4, 1, 100]))
    """
    count = train, validation, test
    generator = torch.Generator().manual_seed(seed)
    n = sum(count)
    cycles, decay, phase = (torch.rand(3, n, 1, generator=generator)).unbind()
    cycles = CYCLES[0] + (CYCLES[1] - CYCLES[0]) * cycles
    decay = DECAY[0] + (DECAY[1] - DECAY[0]) * decay

    def values(times: torch.Tensor) -> torch.Tensor:
        return torch.exp(-decay * times) * torch.cos(2 * math.pi * (cycles * times + phase))

    times = (1 - forecast) * torch.rand(n, seen, generator=generator).sort(dim=1).values
    queries = torch.rand(n, asked, generator=generator).sort(dim=1).values
    noisy = values(times) + noise * torch.randn(n, seen, generator=generator)
    every = Split(
        torch.stack([noisy, torch.ones_like(noisy)], dim=1),
        values(queries).unsqueeze(1),
        coords=length * times.unsqueeze(2),
        at=length * queries.unsqueeze(2),
    )
    return Data.from_splits("oscillators", every.cut(count), "dense-regression", out_channels=1, size=(length,))

"""Synthetic tasks of memory: copy memory and the adding problem (chapter 2, appendix)."""

from __future__ import annotations

import torch

from ...._arguments import checked
from ...._kinds import Int
from ...base import Data, Split
from ...transforms.batch import AsFloat

__all__ = ["adding", "copy_memory"]


@checked(validation=Int(0))
def copy_memory(
    T: int = 100, *, train: int = 10_000, validation: int = 1_000, test: int = 1_000, seed: int = 0
) -> Data:
    """Return the copy memory task: repeat ten digits after T steps.

    An input has length T + 20: ten digits from 1 to 8, T - 1 zeros, eleven nines. The target is zero except for the
    last ten entries, which are the ten digits. A network that has learned the task but has no memory has accuracy 1/8
    on these.

    Source: generated. Licence: none needed. Split: the given numbers of samples, drawn with one seed; the defaults are
    the usual ones for this task. Normalisation: none; the digits are the values of one channel.

    Args:
        T: number of steps over which to remember.
        train: number of training samples.
        validation: number of validation samples; 0 for none.
        test: number of test samples.
        seed: seed of all samples.

    Returns:
        Inputs (n, 1, T + 20), targets (n, T + 20) of ten classes; task "segmentation", with one class per step.

    >>> data = copy_memory(3, train=2)
    >>> batch = data.train.batch(slice(0, 1))
    >>> batch.inputs.int().flatten().tolist()
    [5, 8, 6, 1, 4, 4, 4, 8, 2, 4, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]
    >>> batch.target.flatten().tolist()
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 8, 6, 1, 4, 4, 4, 8, 2, 4]
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Split:
        digits = torch.randint(1, 9, (count, 10), generator=generator)
        inputs = torch.zeros(count, 1, T + 20, dtype=torch.uint8)
        inputs[:, 0, :10] = digits
        inputs[:, 0, T + 9 :] = 9
        target = torch.zeros(count, T + 20, dtype=torch.long)
        target[:, T + 10 :] = digits
        return Split(inputs, target, prepare=AsFloat())

    splits = [draw(count) for count in (train, validation, test)]
    return Data.from_splits("copy_memory", splits, "segmentation", out_channels=10)


@checked(T=Int(2), validation=Int(0))
def adding(T: int = 100, *, train: int = 50_000, validation: int = 1_000, test: int = 1_000, seed: int = 0) -> Data:
    """Return the adding problem: the sum of two marked numbers among T.

    An input has two channels: uniform numbers in [0, 1], and zeros with ones at two positions. The target is the sum of
    the numbers at these positions. A constant prediction of 1 has a mean squared error of 1/6.

    Source: generated. Licence: none needed. Split: the given numbers of samples, drawn with one seed. Normalisation:
    none.

    Args:
        T: length of the sequences, at least 2.
        train: number of training samples.
        validation: number of validation samples; 0 for none.
        test: number of test samples.
        seed: seed of all samples.

    Returns:
        Inputs (n, 2, T), targets (n, 1); task "regression".

    >>> batch = adding(10, train=4).train.batch(slice(0, 4))
    >>> batch.inputs[:, 1].sum(dim=1)
    tensor([2., 2., 2., 2.])
    >>> torch.allclose((batch.inputs[:, 0] * batch.inputs[:, 1]).sum(dim=1, keepdim=True), batch.target)
    True
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Split:
        inputs = torch.zeros(count, 2, T)
        inputs[:, 0] = torch.rand(count, T, generator=generator)
        first = torch.randint(T, (count, 1), generator=generator)
        second = (first + torch.randint(1, T, (count, 1), generator=generator)) % T  # two different positions
        places = torch.cat([first, second], dim=1)
        inputs[:, 1].scatter_(1, places, 1.0)
        return Split(inputs, inputs[:, 0].gather(1, places).sum(dim=1, keepdim=True))

    splits = [draw(count) for count in (train, validation, test)]
    return Data.from_splits("adding", splits, "regression", out_channels=1)

"""Functions that split, pad and normalise samples."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Choice, Int
from ..._object_kinds import SHARES, TensorOf
from ..io.cells import compare_names

if TYPE_CHECKING:
    from collections.abc import Sequence

_LABELS = TensorOf("int", "n") | TensorOf("float", "n")

__all__ = ["check_shares", "check_trained", "class_index", "divide", "hold_out", "moments", "pad"]


def check_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the shares of training, validation and test data if they are valid: not negative, with a sum of 1."""
    if len(shares) != 3 or min(shares) < 0 or shares[0] == 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"shares must be 3 numbers (training above 0, validation, test) that sum to 1, got {tuple(shares)}"
        )
    return tuple(shares)


@checked(labels=_LABELS, shares=SHARES)
def divide(labels: Tensor, shares: Sequence[float] = (0.7, 0.15, 0.15), seed: int = 0) -> tuple[Tensor, ...]:
    """Return random indices of training, validation and test samples, stratified by class.

    Every class has a training sample.

    Args:
        labels: (n,) classes. Other values are not stratified.
        shares: shares of training, validation and test samples.
        seed: seed of the split.

    >>> train, validation, test = divide(torch.tensor([0] * 10 + [1] * 10), (0.6, 0.2, 0.2))
    >>> len(train), len(validation), len(test), int((test < 10).sum())
    (12, 4, 4, 2)
    """
    shares = check_shares(shares)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    if labels.dim() == 1 and not labels.is_floating_point():
        # A stable sort keeps the order within a class random. Evenly spaced indices are then stratified by class.
        order = order[torch.argsort(labels[order], stable=True)]
    n = len(order)
    held, tested = (round(n * share) for share in shares[1:])
    if n - held - tested < 1:
        raise ValueError(f"shares must leave a sample to train on, got {shares} of {n} labels")
    part = torch.zeros(n, dtype=torch.long)
    part[_spread(torch.arange(n), held + tested)] = 2
    rest = torch.nonzero(part).flatten()
    part[_spread(rest, held)] = 1
    if labels.dim() == 1 and not labels.is_floating_point():
        _keep_in_training(part, labels[order])
    mixed = torch.randperm(n, generator=generator)
    return tuple(order[mixed[part[mixed] == i]] for i in range(3))


def _keep_in_training(part: Tensor, labels: Tensor) -> None:
    """Exchange samples between the parts, in place, until every class has a training sample, if there are enough."""
    number = labels.unique(return_inverse=True)[1]
    trained = number[part == 0].bincount(minlength=int(number.max()) + 1)
    for missing in torch.nonzero(trained == 0).flatten():
        usual = trained.argmax()
        if trained[usual] < 2:
            return
        given, taken = torch.nonzero((number == usual) & (part == 0))[0], torch.nonzero(number == missing)[0]
        part[given], part[taken] = part[taken].clone(), 0
        trained[usual] -= 1


def _spread(index: Tensor, count: int) -> Tensor:
    """Return ``count`` evenly spaced entries of ``index``."""
    if count == 0:
        return index[:0]
    return index[((torch.arange(count) + 0.5) * (len(index) / count)).long()]


@checked(labels=_LABELS, count=Int(0))
def hold_out(labels: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the indices of training samples and of ``count`` validation samples, stratified by class.

    >>> train, held = hold_out(torch.arange(100) % 10, 20)
    >>> len(train), torch.bincount(held % 10).tolist()
    (80, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    if count >= len(labels):
        raise ValueError(f"validation must be below the number of labels, {len(labels)}, got {count}")
    share = count / len(labels)
    train, held, _ = divide(labels, (1 - share, share, 0.0), seed)
    return train, held


def check_trained(target: Tensor, index: Sequence[Tensor], classes: Sequence[str], name: str) -> None:
    """Raise a ValueError if validation or test samples have a class that no training sample has.

    Args:
        target: (n,) classes of all samples.
        index: indices of training, validation and test samples.
        classes: names of the classes.
        name: name of the data set, for errors.

    >>> check_trained(torch.tensor([0, 1, 2]), [torch.tensor([0, 1]), torch.tensor([], dtype=int), torch.tensor([2])],
    ...               ["up", "down", "left"], "mine")
    Traceback (most recent call last):
    ValueError: mine must have training samples of each class, found 'left' only among others
    """
    known = target[index[0]].unique()
    others = torch.cat([target[i] for i in index[1:]]).unique()
    unknown = others[~torch.isin(others, known)]
    if len(unknown):
        found = classes[int(unknown[0])]
        raise ValueError(f"{name} must have training samples of each class, found {found!r} only among others")


def class_index(names: Sequence[str], known: Sequence[str] | None = None) -> tuple[Tensor, tuple[str, ...]]:
    """Return the class numbers (n,) of class names, and the names in the order of ``known``, or sorted.

    If all names are numbers, they are sorted as numbers. Two ways to write a number, such as 1 and 1.0, are an error.

    >>> class_index(["b", "a", "b"])
    (tensor([1, 0, 1]), ('a', 'b'))
    >>> class_index(["10", "9"])[1]
    ('9', '10')
    """
    if known is None:
        found = set(names)
        _check_numbers(found)
        compare_names(found, "the labels are classes")
        known = sorted(found)
        values = [_exact(name) for name in known]
        if None not in values:
            known = [name for _, name in sorted(zip(values, known, strict=True))]
    place = {name: i for i, name in enumerate(known)}
    return torch.tensor([place[name] for name in names], dtype=torch.long), tuple(known)


def _check_numbers(names: set[str]) -> None:
    """Raise a ValueError if two names are the same number, such as 1 and 1.0."""
    written: dict[Decimal, str] = {}
    for name in sorted(names):
        value = _exact(name)
        if value is not None and written.setdefault(value, name) != name:
            raise ValueError(f"labels must write a number in one way, found {written[value]!r} and {name!r}")


def _exact(name: str) -> Decimal | None:
    """Return the number that a name writes; None if it is not one. A float would round a long id."""
    try:
        value = Decimal(name)
    except InvalidOperation:
        return None
    return None if value.is_nan() else value


def pad(series: Sequence[np.ndarray], length: int | None = None) -> tuple[Tensor, Tensor]:
    """Pad series of unequal length to one tensor.

    Args:
        series: arrays (channels, length); NaN where a value is missing.
        length: length to pad to; by default that of the longest series.

    Returns:
        Values (n, channels, length), NaN where missing or padded, and a mask (n, length) of steps with any value.

    >>> x, mask = pad([np.ones((1, 2)), np.full((1, 3), 2.0)])
    >>> x[:, 0].tolist(), mask.tolist()
    ([[1.0, 1.0, nan], [2.0, 2.0, 2.0]], [[True, True, False], [True, True, True]])
    """
    channels = series[0].shape[0]
    longest = max(s.shape[1] for s in series)
    padded = np.full((len(series), channels, longest if length is None else length), np.nan, dtype=np.float32)
    for i, s in enumerate(series):
        padded[i, :, : s.shape[1]] = s
    values = torch.from_numpy(padded)
    return values, ~values.isnan().all(dim=1)


@checked(values=TensorOf("float", "n, channels, *space"), over=Choice("channel", "step"))
def moments(values: Tensor, over: str = "channel") -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each channel, (1, channels, 1), or of each step, (1, 1, length).

    NaN is ignored. Where there is no value, or all values are equal, the standard deviation is 1.

    Args:
        values: (n, channels, length) values.
        over: "channel", or "step" to normalise each time step over samples and channels, as in the published code of
            chapters 2 and 3 on Speech Commands and CharacterTrajectories.

    >>> mean, std = moments(torch.tensor([[[1.0, 3.0], [float("nan"), 5.0]]]))
    >>> mean.flatten().tolist(), std.flatten().tolist()
    ([2.0, 5.0], [1.0, 1.0])
    >>> moments(torch.tensor([[[-3e-13, 3e-13]]]))[1]
    tensor([[[3.0000e-13]]])
    """
    axes = (0, *range(2, values.dim())) if over == "channel" else (0, 1)
    seen = ~values.isnan()
    count = seen.sum(dim=axes, keepdim=True).clamp(min=1)
    mean = values.nan_to_num().double().sum(dim=axes, keepdim=True) / count
    square = torch.where(seen, values - mean, 0.0).double().square().sum(dim=axes, keepdim=True) / count
    std = square.sqrt()
    # Small values vary too, such as magnetic fields in tesla; a constant varies by rounding only.
    varies = (std > 1e-8) | (std > mean.abs() * 1e-6)
    return mean.to(values.dtype), torch.where(varies, std, 1.0).to(values.dtype)

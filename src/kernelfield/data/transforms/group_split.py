"""Splits that keep the samples of one group together: a patient, a machine, a speaker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch

from .split import check_shares, divide

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["divide_groups", "divide_parts", "groups_of_files"]

#: share of the training samples that are held out for validation if the test samples are given
HELD = 0.15
PARTS = ("training", "validation", "test")


def divide_parts(
    labels: Tensor,
    counts: Sequence[int],
    shares: Sequence[float],
    seed: int,
    *,
    held: float = HELD,
    groups: Sequence[str] | None = None,
) -> tuple[Tensor, ...]:
    """Return the indices of training, validation and test samples, of which some parts may be given.

    Args:
        labels: (n,) classes; other values are not stratified.
        counts: numbers of samples: of all; of training and test samples; or of training, validation and test samples.
        shares: shares of training, validation and test samples, for one count.
        seed: seed of the split.
        held: share of the training samples to hold out for validation, for two counts.
        groups: (n,) names of groups that stay together, if there are any.

    >>> [part.tolist() for part in divide_parts(torch.zeros(6), (2, 1, 3), (0.7, 0.15, 0.15), 0)]
    [[0, 1], [2], [3, 4, 5]]
    """
    classes = labels if labels.dim() == 1 else torch.zeros(len(labels), dtype=torch.long)
    given = torch.arange(sum(counts)).split(list(counts))
    if len(counts) > 1 and groups is not None:
        _check_apart([[groups[i] for i in part.tolist()] for part in given])
    if len(counts) == 3:
        return tuple(given)
    first, chosen = classes[given[0]], tuple(shares) if len(counts) == 1 else (1 - held, held, 0.0)
    together = None if groups is None else groups[: len(first)]
    found = divide(first, chosen, seed) if together is None else divide_groups(first, together, chosen, seed)
    return found if len(counts) == 1 else (found[0], found[1], given[1])


def divide_groups(
    labels: Tensor, groups: Sequence[str], shares: Sequence[float] = (0.7, 0.15, 0.15), seed: int = 0
) -> tuple[Tensor, ...]:
    """Return random indices of training, validation and test samples; a group is in one of them only.

    The largest groups come first. Each joins the part with which the classes come closest to their shares. Every class
    has a training sample, and every part with a share has a group.

    Args:
        labels: (n,) classes. Other values are not stratified.
        groups: (n,) names of the groups.
        shares: shares of training, validation and test samples.
        seed: seed of the split.

    >>> labels, groups = torch.arange(40) % 2, [str(i // 4) for i in range(40)]
    >>> parts = divide_groups(labels, groups, (0.6, 0.2, 0.2))
    >>> [len(part) for part in parts], [len({groups[i] for i in part}) for part in parts]
    ([24, 8, 8], [6, 2, 2])
    """
    wanted = np.array(check_shares(shares))
    names, member = np.unique(np.asarray(groups, dtype=object).astype(str), return_inverse=True)
    used = np.flatnonzero(wanted)
    if len(names) < len(used):
        kinds = ", ".join(PARTS[i] for i in used)
        raise ValueError(f"group must name at least {len(used)} groups, one each for {kinds}, got {len(names)}")
    classes = np.zeros(len(labels), dtype=int)
    if labels.dim() == 1 and not labels.is_floating_point():
        classes = np.unique(labels.numpy(), return_inverse=True)[1]
    counts = np.zeros((len(names), classes.max() + 1))
    np.add.at(counts, (member, classes), 1)
    part = _assigned(counts, wanted, seed)
    index = torch.from_numpy(part[member])
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return tuple(mixed[index[mixed] == i] for i in range(3))


def _assigned(counts: np.ndarray, wanted: np.ndarray, seed: int) -> np.ndarray:
    """Return the part of each group from its (groups, classes) counts."""
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed)).numpy()
    order = order[np.argsort(-counts[order].sum(axis=1), kind="stable")]
    share = counts / counts.sum(axis=0)
    part, used = np.zeros(len(counts), dtype=int), np.flatnonzero(wanted)
    held = np.zeros((3, counts.shape[1]))
    for group in order:
        # The squared distance to the wanted shares grows least in the part whose classes lack most.
        growth = [(share[group] * (share[group] + 2 * (held[i] - wanted[i]))).sum() for i in used]
        part[group] = used[int(np.argmin(growth))]
        held[part[group]] += share[group]
    for i in used:
        if not (part == i).any():  # the smallest group of the part with the most groups
            most = np.bincount(part, minlength=3).argmax()
            part[[group for group in order if part[group] == most][-1]] = i
    for missing in range(counts.shape[1]):
        if not counts[part == 0, missing].any():
            _move_to_training(part, counts, missing)
    return part


def _move_to_training(part: np.ndarray, counts: np.ndarray, missing: int) -> None:
    """Move the smallest group with a class to the training samples, in place.

    If it is the only group of its part, a training group replaces it, the smallest whose classes remain in training.
    """
    groups = np.flatnonzero(counts[:, missing])
    moved = min(groups, key=lambda g: ((part == part[g]).sum() == 1, counts[g].sum()))
    left, part[moved] = part[moved], 0
    if (part == left).any():
        return
    trained = counts[part == 0].sum(axis=0)
    spare = [g for g in np.flatnonzero(part == 0) if g != moved and (trained - counts[g] > 0)[counts[g] > 0].all()]
    if spare:
        part[min(spare, key=lambda g: counts[g].sum())] = left
    else:
        part[moved] = left


def _check_apart(parts: Sequence[Sequence[str]]) -> None:
    """Raise a ValueError if a group is in two of the given parts."""
    names = PARTS if len(parts) == 3 else (PARTS[0], PARTS[2])
    for i, first in enumerate(parts):
        for j in range(i + 1, len(parts)):
            common = sorted(set(first) & set(parts[j]))
            if common:
                raise ValueError(
                    f"group must separate the {names[i]} and {names[j]} data, got {len(common)} groups that are in "
                    f"both, such as {common[0]!r}"
                )


def groups_of_files(paths: Sequence[Path], root: Path, pattern: str) -> list[str]:
    """Return the group of each file: the part of its path that a regular expression finds.

    Args:
        paths: the files.
        root: their folder; the path is relative to it and has slashes.
        pattern: the regular expression; its first pair of parentheses, if it has one, encloses the group.

    >>> from pathlib import Path
    >>> groups_of_files([Path("a/yes/anna_1.wav"), Path("a/no/tom_1.wav")], Path("a"), "([a-z]+)_[0-9]+")
    ['anna', 'tom']
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group must be a regular expression, got {pattern!r}: {error}") from error
    found = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        match = expression.search(name)
        if match is None:
            raise ValueError(f"group must match the name of each file, got {pattern!r}, which does not match {name}")
        found.append(next((text for text in match.groups() if text is not None), match[0]))
    return found

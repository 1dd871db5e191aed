"""PhysioNet 2019: prediction of sepsis from the first 72 hours in intensive care (chapter 2, appendix)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import Int
from ...base import Data, Split
from ...io.cells import number
from ...io.files import folder, read_lines
from ...transforms.batch import Normalize
from ...transforms.split import divide, moments

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ...base import Batch

__all__ = ["physionet2019", "read_psv"]

STATIC = ("Age", "Gender", "Unit1", "Unit2", "HospAdmTime")


@checked(hours=Int(3))
def physionet2019(
    root: str | os.PathLike[str] | None,
    *,
    hours: int = 72,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
) -> Data:
    """Return stays in intensive care: hourly measurements, nine in ten missing, and whether sepsis developed.

    Source: the PhysioNet / Computing in Cardiology Challenge 2019 (Reyna et al., 2019; Goldberger et al., 2000), one
    ``.psv`` file per stay anywhere in ``root``, such as ``training/training_setA/p000001.psv``; 40,336 stays, from
    https://physionet.org/content/challenge-2019/. The checksums of the archives are not confirmed, so nothing is
    downloaded. Licence: CC BY 4.0. Split: 70, 15 and 15 percent at random with a seed, stratified by outcome.
    Normalisation: zero mean and unit variance of each channel over the observed values of the training stays.

    As in Kidger et al. (2020), the inputs are the first ``hours`` of a stay, and the target is whether sepsis develops
    at any time of the stay; stays of less than three hours are dropped. The 75 channels are 34 counts of how often each
    measurement was observed so far, divided by the number of hours; the 34 measurements (0, the mean, where not
    observed); 5 static values; and 2 channels that tell whether the unit is known.

    Args:
        root: folder of the files.
        hours: number of hours to use.
        shares: shares of training, validation and test data.
        seed: seed of the split.

    Returns:
        Inputs (n, 39, hours): raw measurements and repeated static values, from which ``prepare`` computes the 75
        channels; mask (n, hours), False after the end of a stay; targets (n, 1) of 0 and 1, task "multilabel".
    """
    where = folder(root, "PhysioNet 2019")
    paths = sorted(where.rglob("*.psv"))
    if not paths:
        raise ValueError(f"{where} must hold .psv files, directly or in subfolders, found none")
    stays = [stay for stay in (read_psv(path, hours) for path in paths) if stay[0].shape[1] > 2]
    if not stays:
        raise ValueError(f"{where} must hold stays of at least 3 hours, found {len(paths)} shorter ones")
    channels = {stay[0].shape[0] for stay in stays}
    if len(channels) > 1:
        raise ValueError(f"{where} must hold files with the same columns, found {sorted(channels)} measurements")
    padded = np.full((len(stays), channels.pop(), hours), np.nan, dtype=np.float32)
    mask = torch.zeros(len(stays), hours, dtype=torch.bool)
    for i, (measured, _, _) in enumerate(stays):
        padded[i, :, : measured.shape[1]] = measured
        mask[i, : measured.shape[1]] = True
    values = torch.from_numpy(padded)
    about = torch.from_numpy(np.stack([s for _, s, _ in stays]).astype(np.float32)).unsqueeze(2)
    target = torch.tensor([sepsis for _, _, sepsis in stays])
    index = divide(target.long(), shares, seed)
    inputs = torch.cat([values, about.expand(-1, -1, hours)], dim=1)
    prepare = _Channels(hours, Normalize(*moments(values[index[0]])), Normalize(*moments(about[index[0]])))
    splits = [Split(inputs[i], target[i].unsqueeze(1), mask=mask[i], prepare=prepare) for i in index]
    return Data.from_splits(
        "physionet2019", splits, "multilabel", in_channels=2 * values.shape[1] + len(STATIC) + 2, classes=("sepsis",)
    )


@dataclass(frozen=True, eq=False)
class _Channels:
    """Compute the 75 input channels from measured and static values (n, 39, hours), NaN where unknown."""

    hours: int
    measured: Normalize
    about: Normalize

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        values, about = batch.inputs.split((batch.inputs.shape[1] - len(STATIC), len(STATIC)), dim=1)
        seen = (~values.isnan()).float().cumsum(dim=2)
        counts = seen / torch.full_like(
            seen[:1, :1, :1], self.hours
        )  # a tensor, because a GPU would replace division by a number with multiplication by 1 / number
        known = (~about[:, 2:4].isnan()).float()
        inputs = torch.cat([counts, self.measured.values(values), self.about.values(about), known], dim=1)
        return replace(batch, inputs=inputs if batch.mask is None else inputs * batch.mask.unsqueeze(1))


def read_psv(path: Path, hours: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return measurements (34, at most hours), NaN where missing, static values (5,), and 1 if sepsis ever develops."""
    lines = read_lines(path)
    names = lines[0].split("|") if lines else []
    missing = [n for n in (*STATIC, "ICULOS", "SepsisLabel") if n not in names]
    if missing or len(lines) < 2:
        raise ValueError(
            f"{path} must start with column names that include {missing[0] if missing else names[0]}, and hold at "
            f"least one row, found {lines[0][:60] if lines else 'nothing'!r} and {max(len(lines) - 1, 0)} rows"
        )
    rows = np.empty((len(lines) - 1, len(names)))
    for i, line in enumerate(lines[1:], start=2):
        fields = line.split("|")
        if len(fields) != len(names):
            raise ValueError(f"{path}, line {i}: expected {len(names)} fields, found {len(fields)}")
        rows[i - 2] = [number(f, path, i, n) for f, n in zip(fields, names, strict=True)]
    column = {name: rows[:, i] for i, name in enumerate(names)}
    measured = [i for i, n in enumerate(names) if n not in (*STATIC, "ICULOS", "SepsisLabel")]
    hour = column["ICULOS"]
    if np.isnan(hour).any() or hour.min() < 1 or (np.diff(hour) <= 0).any():
        raise ValueError(
            f"{path}: expected hours in ICULOS that start at 1 or later and ascend, found {hour[:5].tolist()}"
        )
    kept = hour <= hours
    # The hour of a row is its position: some stays begin late or skip hours.
    values = np.full((len(measured), int(hour[kept].max()) if kept.any() else 0), np.nan)
    values[:, hour[kept].astype(int) - 1] = rows[kept][:, measured].T
    static = np.array([column[name][0] for name in STATIC])
    return values, static, float(np.nanmax(column["SepsisLabel"]) > 0)

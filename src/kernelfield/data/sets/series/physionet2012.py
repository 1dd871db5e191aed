"""PhysioNet 2012: prediction of mortality in hospital from 48 hours of measurements at irregular times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import POSITIVE, TEXT, ListOf
from ...base import Data, Split
from ...io.cells import number
from ...io.files import find, folder, read_lines
from ...transforms.batch import Normalize
from ...transforms.split import divide, moments

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from ...base import Batch

__all__ = ["physionet2012", "read_stay"]

MEASURED = (
    *("Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS"),
    *("Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "Mg", "MAP", "MechVent", "Na", "NIDiasABP", "NIMAP"),
    *("NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI"),
    *("TroponinT", "Urine", "WBC", "Weight"),
)
STATIC = ("Age", "Gender", "Height", "ICUType")


@checked(sets=ListOf(TEXT), minutes=POSITIVE)
def physionet2012(
    root: str | os.PathLike[str] | None,
    *,
    sets: Sequence[str] = ("a",),
    minutes: float = 30.0,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
) -> Data:
    """Return stays in intensive care: 37 measurements at irregular times, and whether the patient died in hospital.

    Source: the PhysioNet / Computing in Cardiology Challenge 2012 (Silva et al., 2012; Goldberger et al., 2000),
    folders ``set-a``, ``set-b``, ``set-c`` with one text file per stay, 4,000 stays each, and files ``Outcomes-a.txt``
    and so on in ``root``, from https://physionet.org/content/challenge-2012/. The checksums of the archives are not
    confirmed, so nothing is downloaded. Licence: ODC-By 1.0. Split: at random with a seed, stratified by outcome.
    Normalisation: zero mean and unit variance of each measurement over the observed values of the training stays,
    clipped at ±10.

    Every time with a measurement is a point. Its channels are the 37 measurements (0, the mean, where not observed), 37
    channels that are 1 where the measurement was observed, and the static values, which are the same at all points of a
    stay: age, gender, height, and the four kinds of unit, one-hot.

    Args:
        root: folder that holds the folders and the outcomes.
        sets: letters of the sets to join.
        minutes: one training step, the unit of the coords.
        shares: shares of training, validation and test data.
        seed: seed of the split.

    Returns:
        Inputs (n, 41, points): raw measurements and repeated static values, from which ``prepare`` computes the 81
        channels; coords (n, points, 1), mask (n, points); targets (n, 1) of 0 and 1, task "multilabel".
    """
    where = folder(root, "PhysioNet 2012", "challenge-2012/1.0.0", "predicting-mortality-of-icu-patients-1.0.0")
    paths, deaths = [], []
    for name in sets:
        outcomes = _outcomes(find(where, [f"Outcomes-{name}.txt"], f"the outcomes of set {name}"))
        stays = sorted(folder(where / f"set-{name}", f"set-{name} of PhysioNet 2012").glob("*.txt"))
        if not stays:
            raise ValueError(f"{where / f'set-{name}'} must hold one text file per stay, found none")
        for path in stays:
            if path.stem not in outcomes:
                raise ValueError(f"Outcomes-{name}.txt must hold a row for each stay, found none for {path}")
            paths.append(path)
            deaths.append(outcomes[path.stem])
    read = [read_stay(path) for path in paths]
    longest = max(len(times) for times, _, _ in read)
    values = np.full((len(read), len(MEASURED), longest), np.nan, dtype=np.float32)
    coords, mask = torch.zeros(len(read), longest, 1), torch.zeros(len(read), longest, dtype=torch.bool)
    for i, (times, seen, _) in enumerate(read):
        values[i, :, : len(times)] = seen
        mask[i, : len(times)] = True
        coords[i, :, 0] = float(times[-1]) / minutes
        coords[i, : len(times), 0] = torch.from_numpy(times / minutes)
    target = torch.tensor(deaths, dtype=torch.float32)
    index = divide(target.long(), shares, seed)
    measured = torch.from_numpy(values)
    about = torch.from_numpy(np.stack([s for _, _, s in read]).astype(np.float32)).unsqueeze(2)
    inputs = torch.cat([measured, about.expand(-1, -1, longest)], dim=1)
    channels = _Channels(
        Normalize(*moments(measured[index[0]]), limit=10), Normalize(*moments(about[index[0], :3]), limit=10)
    )
    splits = [Split(inputs[i], target[i].unsqueeze(1), coords=coords[i], mask=mask[i], prepare=channels) for i in index]
    return Data.from_splits(
        "physionet2012",
        splits,
        "multilabel",
        in_channels=2 * len(MEASURED) + 7,
        size=(int(48 * 60 / minutes) + 1,),
        classes=("died in hospital",),
    )


@dataclass(frozen=True, eq=False)
class _Channels:
    """Compute the 81 input channels from measured and static values (n, 41, points), NaN where unknown."""

    measured: Normalize
    about: Normalize

    def __call__(self, batch: Batch, training: bool) -> Batch:  # noqa: ARG002
        values, about, unit = batch.inputs.split((len(MEASURED), 3, 1), dim=1)
        kind = torch.cat([unit == k for k in range(1, 5)], dim=1).float()
        still = torch.cat([self.about.values(about), kind], dim=1)
        if batch.mask is not None:
            still = still * batch.mask.unsqueeze(1)
        return replace(batch, inputs=torch.cat([self.measured.values(values), (~values.isnan()).float(), still], dim=1))


def read_stay(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the times (points,) in minutes, the measurements (37, points), and age, gender, height and unit (4,).

    Values that were not measured are NaN; the files write -1 for unknown values. If two lines have the same time, the
    later one counts.
    """
    lines = read_lines(path)
    if not lines or lines[0].strip() != "Time,Parameter,Value":
        found = repr(lines[0][:40]) if lines else "nothing"
        raise ValueError(f"{path}, line 1: expected 'Time,Parameter,Value', found {found}")
    static = np.full(len(STATIC), np.nan)
    seen: dict[int, dict[int, float]] = {0: {}}
    for i, line in enumerate(lines[1:], start=2):
        fields = line.split(",")
        clock = fields[0].split(":")
        if len(fields) != 3 or len(clock) != 2 or not all(c.isdecimal() and len(c) < 5 for c in clock):
            raise ValueError(f"{path}, line {i}: expected 'hh:mm,parameter,value', found {line[:40]!r}")
        value = number(fields[2], path, i, fields[1])
        if fields[1] in STATIC:
            static[STATIC.index(fields[1])] = value if value >= 0 else np.nan
        elif fields[1] in MEASURED and not (fields[1] == "Weight" and value < 0):
            minute = 60 * int(clock[0]) + int(clock[1])
            seen.setdefault(minute, {})[MEASURED.index(fields[1])] = value
        elif fields[1] not in (*MEASURED, "RecordID", ""):
            raise ValueError(f"{path}, line {i}: expected a parameter of the challenge, found {fields[1]!r}")
    times = np.array(sorted(seen), dtype=np.float32)
    values = np.full((len(MEASURED), len(times)), np.nan, dtype=np.float32)
    for j, minute in enumerate(sorted(seen)):
        for channel, value in seen[minute].items():
            values[channel, j] = value
    return times, values, static


def _outcomes(path: Path) -> dict[str, float]:
    lines = read_lines(path)
    names = [n.strip() for n in lines[0].split(",")] if lines else []
    if "RecordID" not in names or "In-hospital_death" not in names:
        raise ValueError(f"{path}, line 1: expected columns RecordID and In-hospital_death, found {names}")
    record, death = names.index("RecordID"), names.index("In-hospital_death")
    outcomes = {}
    for i, line in enumerate(lines[1:], start=2):
        fields = line.split(",")
        if len(fields) != len(names) or fields[death].strip() not in ("0", "1"):
            raise ValueError(
                f"{path}, line {i}: expected {len(names)} fields and In-hospital_death of 0 or 1, found {line!r}"
            )
        outcomes[fields[record].strip()] = float(fields[death])
    return outcomes

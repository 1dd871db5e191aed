"""Groups stay in one part of the data: no patient, machine or speaker is in the training and the test samples."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.labelled import labelled_split
from kernelfield.data.sets.arrays import arrays
from kernelfield.data.sets.audio.sound_folder import wav_folder
from kernelfield.data.sets.series.csv_series import csv_samples, csv_series
from kernelfield.data.transforms.group_split import divide_groups, divide_parts, groups_of_files

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.data.base import Data

PATIENTS = 10


def groups_in(data: Data, scale: float = 1.0) -> list[set[int]]:
    """Return the groups in each part; a sample holds the number of its group."""
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    return [set((part.inputs.float().flatten(1).nanmean(dim=1) / scale).round().int().tolist()) for part in parts]


def write_long(path: Path, *, group: bool = True, per: int = 6) -> Path:
    """Write series of which each has the number of its patient as values."""
    lines = ["id,time,value,label" + (",patient" if group else "")]
    for i in range(PATIENTS * per):
        cells = [f"s{i},{t},{i // per},{'ab'[i % 2]}" for t in range(3)]
        lines += [cell + (f",p{i // per}" if group else "") for cell in cells]
    path.write_text("\n".join(lines))
    return path


def test_groups_are_divided_by_their_classes() -> None:
    torch.manual_seed(0)
    groups = [f"g{i}" for i in torch.randint(60, (600,)).tolist()]
    labels = (torch.rand(600) < 0.2).long()
    parts = divide_groups(labels, groups, seed=3)
    named = [{groups[i] for i in part.tolist()} for part in parts]
    assert sum(map(len, named)) == len(set.union(*named)) == 60
    assert sorted(torch.cat(parts).tolist()) == list(range(600))
    for part, share in zip(parts, (0.7, 0.15, 0.15), strict=True):
        assert len(part) == pytest.approx(600 * share, abs=20)
        assert float(labels[part].float().mean()) == pytest.approx(float(labels.float().mean()), abs=0.05)
    again = divide_groups(labels, groups, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not torch.equal(parts[2].sort().values, divide_groups(labels, groups, seed=4)[2].sort().values)


def test_every_class_is_trained_and_every_part_has_a_group() -> None:
    labels = torch.tensor([0] * 20 + [1] * 2)
    groups = [str(i // 5) for i in range(20)] + ["rare", "rare"]
    for seed in range(8):
        train, validation, test = divide_groups(labels, groups, seed=seed)
        assert set(labels[train].tolist()) == {0, 1}
        assert len(validation)
        assert len(test)
    large = ["all"] * 90 + ["b"] * 5 + ["c"] * 5  # one group is most of the data
    assert all(len(part) for part in divide_groups(torch.zeros(100), large))


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="group must name at least 3 groups"):
        divide_groups(torch.zeros(10), ["a"] * 5 + ["b"] * 5)
    assert [len(part) for part in divide_groups(torch.zeros(4), ["a", "a", "b", "b"], (0.5, 0.5, 0.0))] == [2, 2, 0]


def test_given_parts_that_share_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group must separate the training and test data.*'b'"):
        divide_parts(torch.zeros(4), (3, 1), (0.7, 0.15, 0.15), 0, groups=["a", "a", "b", "b"])
    train, held, test = divide_parts(torch.zeros(6), (4, 2), (0.7, 0.15, 0.15), 0, groups=[*"aabbcc"])
    assert test.tolist() == [4, 5]
    assert {*train.tolist()} in ({0, 1}, {2, 3})
    assert len(held) == 2


@pytest.mark.filterwarnings("ignore:.*are not read")
@pytest.mark.parametrize("where", ["table", "labels"])
def test_series_of_a_patient_stay_together(where: str, tmp_path: Path) -> None:
    path = write_long(tmp_path / "long.csv", group=where == "table")
    options = {}
    if where == "labels":
        rows = [f"s{i},{'ab'[i % 2]},p{i // 6}" for i in range(60)]
        (tmp_path / "labels.csv").write_text("\n".join(["id,label,patient", *rows]))
        path.write_text(path.read_text().replace("label", "other"))
        options = {"labels": "labels.csv"}
    data = csv_series(path, group="patient", **options)
    mixed = csv_series(path, **options)
    train, validation, test = groups_in(data)
    assert not train & test
    assert not train & validation
    assert not validation & test
    assert len(train | validation | test) == PATIENTS
    assert groups_in(mixed)[0] & groups_in(mixed)[2]  # without groups, patients are in both


def test_the_column_of_groups_is_no_step_and_no_channel(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    lines = ["t0,machine,t1,t2,label", *(f"{m},m{m},{m},{m},{'ab'[i % 2]}" for m in range(8) for i in range(4))]
    path.write_text("\n".join(lines))
    data = csv_series(path, group="machine")
    assert data.columns == ("t0", "t1", "t2")
    parts = groups_in(data)
    assert not parts[0] & parts[2]
    batch = csv_samples(path, data, group="machine")
    assert batch is not None
    assert batch.inputs.shape == (32, 1, 3)
    source = {"name": "csv_series", "root": str(path), "group": "machine"}
    assert len(labelled_split(data, path, source)) == 32


@pytest.mark.filterwarnings("ignore:.*are not read")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("p0\ns0,1", "p1\ns0,1"), "line 3: expected patient 'p1' for series 's0', as before, found 'p0'"),
        ((",p3", ","), "expected a patient, the group of the series, found none"),
        (("patient", "doctor"), "include 'patient', the group"),
    ],
)
def test_groups_in_doubt_are_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = write_long(tmp_path / "long.csv")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ValueError, match=message):
        csv_series(path, group="patient")


@pytest.mark.parametrize("name", ["id", "label"])
def test_groups_need_a_column_of_their_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="group must be a column of its own"):
        csv_series(write_long(tmp_path / "long.csv"), group=name)


def test_arrays_of_a_group_stay_together(tmp_path: Path) -> None:
    group = np.arange(40) // 4
    inputs = np.repeat(group[:, None, None], 6, axis=2).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=inputs, y=np.arange(40) % 2, group=group)
    parts = groups_in(arrays(tmp_path / "a.npz"))
    assert not parts[0] & parts[2]
    np.savez(tmp_path / "b.npz", x=inputs, y=np.arange(40) % 2, group=group + 0.5)
    with pytest.raises(ValueError, match="whole number for each sample in group"):
        arrays(tmp_path / "b.npz")


def test_sounds_of_a_speaker_stay_together(tmp_path: Path) -> None:
    for label in ("no", "yes"):
        (tmp_path / label).mkdir()
        for speaker in range(6):
            for i in range(2):
                with wave.open(str(tmp_path / label / f"{i}_speaker{speaker}.wav"), "wb") as file:
                    file.setparams((1, 2, 8000, 0, "NONE", ""))
                    file.writeframes(np.full(20, 100 * (speaker + 1), dtype="<i2").tobytes())
    data = wav_folder(tmp_path, rate=8000, group="_(speaker[0-9]+)")
    parts = groups_in(data, 100)
    assert not parts[0] & parts[2]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] | parts[2] == set(range(1, 7))
    with pytest.raises(ValueError, match="group must match the name of each file"):
        wav_folder(tmp_path, rate=8000, group="person")
    with pytest.raises(ValueError, match="group must be a regular expression"):
        groups_of_files([], tmp_path, "(")

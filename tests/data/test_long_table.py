"""Tables of one measurement a line: channels at their own times, labels and targets in a second file, parquet."""

from __future__ import annotations

import datetime as dt
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield.data.io.parquet import read_parquet
from kernelfield.data.labelled import labelled_split
from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.sets.series.csv_series import csv_samples, csv_series, read_labelled
from kernelfield.data.sets.series.long_table import read_queries

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, *rows: str, names: str = "id,time,channel,value") -> Path:
    path.write_text("\n".join([names, *rows]) + "\n")
    return path


def series(n: int = 20) -> list[str]:
    """Return series whose channel x is measured at 0, 1.5 and 4, and y at 0.7 and 3.1, from 100 i on."""
    times = {"x": (0, 1.5, 4), "y": (0.7, 3.1)}
    return [f"s{i},{100 * i + t},{c},{i + t}" for i in range(n) for c in times for t in times[c]]


def test_channels_at_different_times_are_not_interpolated(tmp_path: Path) -> None:
    labels = write(tmp_path / "labels.csv", *(f"s{i},{'ab'[i % 2]}" for i in range(20)), names="id,label")
    data = csv_series(write(tmp_path / "long.csv", *series()), labels=labels, unit=1)
    assert data.in_channels == 4  # and one for each that says where it was observed
    batch = data.train.batch(slice(0, 1))
    assert torch.allclose(batch.coords.flatten(), torch.tensor([0, 0.7, 1.5, 3.1, 4]), atol=1e-4)
    assert batch.inputs[0, 2:].tolist() == [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]]
    assert (batch.inputs[0, :2][batch.inputs[0, 2:] == 0] == 0).all()
    assert csv_series(tmp_path / "long.csv", labels="labels.csv", observed=False).in_channels == 2


def test_channels_observed_together_have_no_further_ones(tmp_path: Path) -> None:
    rows = [f"{i},{t},{c},{i + t},{i % 2}" for i in range(20) for t in (0, 0.3, 1.1) for c in "xy"]
    data = csv_series(write(tmp_path / "long.csv", *rows, names="id,time,channel,value,label"))
    assert data.in_channels == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["s0,a", "s0,b"], r"labels.csv, line 3: .*'s0'"),
        (["s0,a", "s1,"], r"labels.csv, line 3: .*label"),
        (["s0,a"], r"long.csv, line \d+: .*'s1'"),
    ],
)
def test_bad_files_of_labels(tmp_path: Path, rows: list[str], message: str) -> None:
    write(tmp_path / "labels.csv", *rows, names="id,label")
    with pytest.raises(ValueError, match=message):
        csv_series(write(tmp_path / "long.csv", *series()), labels="labels.csv")


def test_the_last_share_of_a_series_is_asked_for(tmp_path: Path) -> None:
    data = csv_series(write(tmp_path / "long.csv", *series()), forecast=0.4, unit=1)
    assert data.task == "dense-regression"
    assert (data.in_channels, data.out_channels) == (4, 2)
    batch = data.train.batch(slice(0, 1))
    assert torch.allclose(batch.coords.flatten(), torch.tensor([0, 0.7, 1.5]), atol=1e-4)
    assert torch.allclose(batch.at.flatten(), torch.tensor([3.1, 4.0]), atol=1e-4)
    assert batch.target.isnan().tolist() == [[[True, False], [False, True]]]
    assert data.size == (5,)


def test_targets_of_a_second_file(tmp_path: Path) -> None:
    asked = [f"s{i},{100 * i + t},z,{i}" for i in range(20) for t in ((-2, 9) if i else (5,))]
    write(tmp_path / "asked.csv", *asked)
    data = csv_series(write(tmp_path / "long.csv", *series()), targets="asked.csv", unit=1, standardize=True)
    assert data.out_channels == 1
    assert data.size == (12,)  # from -2 to 9
    every = [data.train, data.validation, data.test]
    at = torch.cat([split.at for split in every])
    target = torch.cat([split.target for split in every])
    one = target.isnan().any(dim=2).flatten()
    assert int(one.sum()) == 1
    assert torch.allclose(at[one].flatten(), torch.tensor([5.0, 5.0]), atol=1e-4)
    assert torch.allclose(at[~one], torch.tensor([[-2.0], [9.0]]), atol=1e-3)
    scaled = data.train.batch(slice(None)).target
    assert abs(float(scaled.nanmean())) < 0.1
    # New files are read in the same way.
    source = {"name": "csv_series", "targets": "asked.csv", "unit": 1}
    again = labelled_split(data, tmp_path / "long.csv", source)
    assert again.at.shape == (20, 2, 1)
    assert again.target.shape == (20, 1, 2)


def test_ids_that_match_in_part_are_announced(tmp_path: Path) -> None:
    path = write(tmp_path / "long.csv", *series())
    write(tmp_path / "asked.csv", *(f"s{i},{100 * i + 9},x,{i}" for i in range(5, 23)))
    message = r"targets of .*asked.csv: 5 of 20 series .* such as 's0'; 3 of 18 ids are not in the data, such as 's20'"
    with pytest.warns(UserWarning, match=message):
        data = csv_series(path, targets="asked.csv", unit=1)
    assert len(data.train) + len(data.validation) + len(data.test) == 15
    with pytest.warns(UserWarning, match=r"5 of 20 series have no targets and are left out, such as 's0'$"):
        assert len(labelled_split(data, path, {"name": "csv_series", "targets": "asked.csv"})) == 15
    write(tmp_path / "labels.csv", *(f"s{i},{i % 2}" for i in range(22)), names="id,label")
    with pytest.warns(UserWarning, match=r"labels of .*labels.csv: 2 of 22 ids are not in the data, such as 's20'"):
        csv_series(path, labels="labels.csv")
    write(path, *series(), "lone,0,x,1")
    with pytest.warns(UserWarning, match=r"forecast 0.4: 1 of 21 series have too few times .*series lone"):
        csv_series(path, forecast=0.4)


def test_forecasts_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "long.csv", *series())
    write(tmp_path / "other.csv", "q,1,x,2")
    with pytest.raises(ValueError, match=r"targets .*'q'"):
        csv_series(path, targets="other.csv")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        csv_series(path, targets="nowhere.csv")
    with pytest.raises(ValueError, match=r"forecast must"):
        csv_series(path, targets="other.csv", forecast=0.5)
    with pytest.raises(ValueError, match=r"task must be 'forecast'"):
        csv_series(path, task="regression", forecast=0.5)
    with pytest.raises(ValueError, match=r"task must be 'forecast'"):
        csv_series(path, task="forecast")
    with pytest.raises(ValueError, match=r"forecast must"):
        csv_series(write(tmp_path / "short.csv", "a,0,x,1", "b,0,x,1"), forecast=0.5)
    with pytest.raises(ValueError, match=r"wide.csv, line 1: .*id, time"):
        csv_series(write(tmp_path / "wide.csv", "a,1,2", names="label,0,1"), forecast=0.5)


@pytest.mark.parametrize("time", ["nan", "inf", "", "noon"])
def test_times_that_are_not_finite_are_refused_with_their_line(tmp_path: Path, time: str) -> None:
    with pytest.raises(ValueError, match=r"long.csv, line 3"):
        csv_series(write(tmp_path / "long.csv", "a,0,x,1", f"a,{time},x,1"), forecast=0.5)


def test_numbers_are_no_dates(tmp_path: Path) -> None:
    # Minutes since 1970: some of these are also digits of a date in the year 2840.
    minutes = [28401120, 28401130, 28401131, 28401132]
    path = write(tmp_path / "long.csv", *(f"{i},{t},x,1" for i in "abcdef" for t in minutes))
    data = csv_series(path, forecast=0.25, unit=1)
    assert data.train.coords[0].flatten().tolist() == [0, 10, 11]
    assert data.train.at[0].flatten().tolist() == [12]
    for time in ("20240131", "20240131235959"):
        with pytest.raises(ValueError, match=rf"long.csv, line 2: .*found '{time}', which may be either"):
            csv_series(write(tmp_path / "long.csv", f"a,{time},x,1", "a,20240201,x,1"), forecast=0.5)
    with pytest.raises(ValueError, match="line 2, column value: expected a number"):
        csv_series(write(tmp_path / "long.csv", "a,0,x,1_000"), forecast=0.5)


@pytest.mark.parametrize(
    ("names", "row", "message"),
    [
        ("id,time,channel,value,label", ",5,x,1,0", r"line 162: expected an id, found ''"),
        ("id,time,channel,value,label", "nan,5,x,1,0", r"line 162: expected an id, found 'nan'"),
        ("id,time,channel,value,label", "3,50, ,1,1", r"line 162: expected a channel, found ''"),
        ("id,time,channel,value,label", "20,5,x,,0", r"series 20: expected at least one value"),
        (
            "id,time,channel,value,valueuom,label",
            "3,50,x,1,mmol,1",
            r"line 162: expected valueuom 'mg' for 'x', as before",
        ),
    ],
)
def test_names_and_units_that_are_missing_or_change(names: str, row: str, message: str, tmp_path: Path) -> None:
    unit = ",mg" if "uom" in names else ""
    rows = [f"{i},{t},x,{i + t}{unit},{i % 2}" for i in range(20) for t in range(8)]
    assert csv_series(write(tmp_path / "a.csv", *rows, names=names)).channels == ("x",)
    with pytest.raises(ValueError, match=message):
        csv_series(write(tmp_path / "a.csv", *rows, row, names=names))


@pytest.mark.parametrize(
    "names", ["id,time,pulse,label", "patient,charttime,pulse,label", "pid,a,pulse,label", "stayId,a,pulse,label"]
)
def test_measurements_with_a_column_per_channel_are_no_steps(names: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", *(f"{i},{t},{i + t},{i % 2}" for i in range(20) for t in range(8)), names=names)
    with pytest.raises(ValueError, match=r"a.csv, line 1: expected columns .*id, time, channel and value"):
        csv_series(path)


def test_names_of_channels_and_columns_in_doubt_are_announced(tmp_path: Path) -> None:
    rows = [f"{i},{t},{c},{i + t},A,{i % 2}" for i in range(20) for t in range(8) for c in ("HR", "hr")]
    path = write(tmp_path / "a.csv", *rows, names="id,time,channel,value,ward,label")
    with pytest.warns(UserWarning, match="columns ward are not read"), pytest.warns(UserWarning, match="'HR' and 'hr'"):
        csv_series(path)


def test_dates_with_and_without_a_time_zone_are_not_mixed(tmp_path: Path) -> None:
    def rows(zone: str, label: str = ",{}") -> list[str]:
        return [
            f"{i},2024-03-31T{t:02}:00{zone if t % 2 else ''},x,1{label.format(i % 2)}"
            for i in range(9)
            for t in range(4)
        ]

    names = "id,time,channel,value,label"
    with pytest.raises(ValueError, match=r"line 3: expected a date without a time zone for a time, as before"):
        csv_series(write(tmp_path / "a.csv", *rows("+02:00"), names=names))
    path = write(tmp_path / "a.csv", *rows(""), names=names)
    data = csv_series(path, forecast=0.5)
    assert data.unit == 3600
    write(tmp_path / "asked.csv", *(f"{i},2024-03-31T09:00+02:00,x,1" for i in range(9)))
    with pytest.raises(ValueError, match="targets must have dates without a time zone"):
        csv_series(path, targets="asked.csv")
    at = "2024-03-31T03:00"
    assert csv_samples(path, data, at=read_queries(at)).at.shape == (9, 1, 1)
    with pytest.raises(ValueError, match=r"at must be a date without a time zone .* got a date with a time zone"):
        csv_samples(path, data, at=read_queries(f"{at}+02:00"))
    with pytest.raises(ValueError, match="at must hold times of one kind"):
        read_queries(f"{at}+02:00,{at}")


def test_dates_and_numbers_are_not_mixed(tmp_path: Path) -> None:
    rows = [f"{i},2024-01-0{d},x,1" for i in "abcdef" for d in range(1, 5)]
    path = write(tmp_path / "long.csv", *rows)
    data = csv_series(path, forecast=0.25)
    assert (data.dates, data.unit) == (True, 86_400)
    with pytest.raises(ValueError, match=r"mixed.csv, line 26: expected a date"):
        csv_series(write(tmp_path / "mixed.csv", *rows, "a,5,x,1"), forecast=0.25)
    write(tmp_path / "asked.csv", "a,5,x,1")
    with pytest.raises(ValueError, match=r"targets must have times that are dates"):
        csv_series(path, targets="asked.csv")
    with pytest.raises(ValueError, match="at must hold times of one kind"):
        read_queries("1,2024-01-31")
    # Samples to predict have the kind of times of training.
    hours = write(tmp_path / "hours.csv", *(f"a,{24 * d},x,1" for d in range(4)))
    with pytest.raises(ValueError, match=r"hours.csv, series a: expected times that are dates"):
        csv_samples(hours, data)
    with pytest.raises(ValueError, match="at must be a date"):
        csv_samples(path, data, at=read_queries("24,48"))
    assert csv_samples(path, data, at=read_queries("2024-01-05")).at[0].tolist() == [[4.0]]


def test_times_in_another_unit_are_warned_of(tmp_path: Path) -> None:
    path = write(tmp_path / "long.csv", *(f"{i},{t},x,1" for i in "abcdef" for t in (0, 1.1, 2, 3)))
    data = csv_series(path, forecast=0.25)
    assert csv_samples(path, data) is not None
    for factor in (60, 1 / 60):
        other = write(tmp_path / "other.csv", *(f"a,{factor * t},x,1" for t in (0, 1.1, 2, 3)))
        with pytest.warns(UserWarning, match=r"times of .*other.csv"):
            csv_samples(other, data)


def test_names_of_long_tables_in_any_case(tmp_path: Path) -> None:
    rows = [f"{i},{t},{t * i},{'ab'[i % 2]}" for i in range(20) for t in range(3)]
    path = write(tmp_path / "long.csv", *rows, names="ID,Time,Value,label")
    assert csv_series(path).train.inputs.shape == (14, 1, 3)  # 20 series of 3 times, not 60 of 3 values
    assert read_queries(write(tmp_path / "at.csv", "7,1", names="Id,TIME")).by_series["7"].tolist() == [1]
    with pytest.raises(ValueError, match=r"long.csv, line 1: .*'value' twice"):
        csv_series(write(tmp_path / "long.csv", "1,0,2,3,a", names="id,time,value,Value,label"))


def test_channels_that_training_did_not_have_or_always_had(tmp_path: Path) -> None:
    rows = [f"{i},{t},{c},{t * i},{'ab'[i % 2]}" for i in range(20) for t in range(3) for c in "xy"]
    names = "id,time,channel,value,label"
    write(tmp_path / "train.csv", *rows, names=names)
    write(tmp_path / "test.csv", *rows[:12], "1,9,z,1,b", names=names)
    with pytest.raises(ValueError, match=r"test.csv must hold only channels of train.csv, x, y, found 'z'"):
        csv_series(tmp_path)
    (tmp_path / "test.csv").unlink()
    only = write(tmp_path / "only.csv", *(row for row in rows if ",x," in row), names=names)
    together = csv_series(tmp_path / "train.csv")
    with pytest.raises(ValueError, match=r"only.csv must hold all channels .* found no 'y'"):
        csv_samples(only, together)
    # A network that reads which channels were observed can do without one.
    apart = csv_series(tmp_path / "train.csv", observed=True)
    with pytest.warns(UserWarning, match="20 of 20 series have no value of 'y', such as .*; all training series had"):
        assert csv_samples(only, apart).inputs[:, 1].isnan().all()
    # Series without a channel are as strange if other series of the file have it.
    write(only, *(row for row in rows if ",x," in row or not row.startswith("3,")), names=names)
    with pytest.warns(UserWarning, match="1 of 20 series have no value of 'y', such as .*series 3; all training"):
        csv_samples(only, together)
    # A channel that some training series lack may be absent.
    gaps = csv_series(
        write(tmp_path / "gaps.csv", *(row for row in rows if ",x," in row or row[:2] == "0,"), names=names)
    )
    assert gaps.always == ("x",)
    assert csv_samples(write(tmp_path / "one.csv", "1,0,x,1", "1,1,x,2", names="id,time,channel,value"), gaps)


def test_new_targets_are_found_by_their_channel(tmp_path: Path) -> None:
    path = write(tmp_path / "long.csv", *(f"{i},{t},x,{t}" for i in "abcdef" for t in range(3)))
    write(tmp_path / "asked.csv", *(f"{i},4,{c},{ord(c)}" for i in "abcdef" for c in "uv"))
    data = csv_series(path, targets="asked.csv")
    assert data.targets == ("u", "v")
    write(tmp_path / "asked.csv", "a,4,v,7")
    write(path, *(f"a,{t},x,{t}" for t in range(3)))
    (found,) = read_labelled(path, data, {"targets": "asked.csv"})
    assert np.nan_to_num(found.query_values, nan=-1).tolist() == [[-1], [7]]
    write(tmp_path / "asked.csv", "a,4,w,7")
    with pytest.raises(ValueError, match=r"asked.csv must hold only channels .* found 'w'"):
        read_labelled(path, data, {"targets": "asked.csv"})


def test_query_times_beyond_training_are_announced(tmp_path: Path) -> None:
    rows = [f"{i},{t},{t * i}" for i in range(12) for t in (0, 0.5, 1.5, 2, 3, 4)]
    write(tmp_path / "long.csv", *rows, names="id,time,value")
    data = csv_series(tmp_path / "long.csv", forecast=0.3)
    assert data.reach == (3 / data.unit, 4 / data.unit)
    new = write(tmp_path / "new.csv", *rows[:6], names="id,time,value")
    csv_samples(new, data, at=read_queries("3,3.5,4"))
    with pytest.warns(UserWarning, match="2 of 3 query times lie 180 to 240 after .* in training 3 to 4; .* same unit"):
        csv_samples(new, data, at=read_queries("180,4,240"))
    with pytest.warns(UserWarning, match="1 of 1 query times lie 0.5 to 0.5"):
        csv_samples(new, data, at=read_queries("0.5"))
    stored = from_metadata(metadata(data))
    assert (stored.reach, stored.always) == (data.reach, data.always)


def test_query_times(tmp_path: Path) -> None:
    assert read_queries("3, 1.5").common.tolist() == [3, 1.5]
    assert read_queries(write(tmp_path / "at.csv", "1", "2", names="time")).common.tolist() == [1, 2]
    own = read_queries(write(tmp_path / "own.csv", "a,1", "b,5", "a,2", names="id,time"))
    assert {key: times.tolist() for key, times in own.by_series.items()} == {"a": [1, 2], "b": [5]}
    np.save(tmp_path / "at.npy", np.ones((4, 2)))
    assert read_queries(tmp_path / "at.npy").common.shape == (4, 2)
    for bad in ("nan", "1,inf", "", "soon"):
        with pytest.raises(ValueError, match="at"):
            read_queries(bad)
    with pytest.raises(ValueError, match=r"bad.csv, line 1: .*time"):
        read_queries(write(tmp_path / "bad.csv", "1", names="when"))


class Column:
    """A column of the stand-in for pyarrow's table."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def to_pylist(self) -> list[Any]:
        return self.values


def test_parquet_files_are_read_as_csv_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "long.csv", *series())
    names, *rows = [line.split(",") for line in path.read_text().splitlines()]
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = types.SimpleNamespace(
        column_names=names,
        columns=[
            Column(columns[0]),
            Column([*map(float, columns[1])]),
            Column(columns[2]),
            Column([*map(float, columns[3])]),
        ],
    )
    stub = types.ModuleType("pyarrow.parquet")
    stub.read_table = lambda source: table if source.read() == b"PAR1" else None  # type: ignore[attr-defined]
    package = types.ModuleType("pyarrow")
    package.parquet = stub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", stub)
    (tmp_path / "long.parquet").write_bytes(b"PAR1")
    one, other = (csv_series(tmp_path / f"long.{kind}", forecast=0.4) for kind in ("csv", "parquet"))
    assert torch.equal(one.train.inputs.nan_to_num(), other.train.inputs.nan_to_num())
    assert torch.equal(one.train.at, other.train.at)
    (tmp_path / "broken.parquet").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"broken.parquet"):
        csv_series(tmp_path / "broken.parquet", forecast=0.4)


def test_parquet_files_of_pyarrow(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write(tmp_path / "long.csv", *series())
    names, *rows = [line.split(",") for line in path.read_text().splitlines()]
    series_id, times, channel, values = (list(column) for column in zip(*rows, strict=True))
    columns = [
        arrow.array(series_id).dictionary_encode(),
        arrow.array([float(t) for t in times]),
        arrow.array(channel),
        arrow.array([float(v) for v in values]),
    ]
    for compression in ("none", "snappy", "zstd"):
        parquet.write_table(arrow.table(columns, names=names), tmp_path / "long.parquet", compression=compression)
        one, other = (csv_series(tmp_path / f"long.{kind}", forecast=0.4) for kind in ("csv", "parquet"))
        torch.testing.assert_close(one.train.inputs, other.train.inputs, equal_nan=True)
        torch.testing.assert_close(one.train.at, other.train.at)
    dates = arrow.array([dt.datetime(2024, 1, 1 + i) for i in range(3)])
    table = arrow.table([dates, arrow.array(["a", None, "b"])], names=["time", "id"])
    parquet.write_table(table, tmp_path / "at.parquet")
    assert read_parquet(tmp_path / "at.parquet")[1:3] == [["2024-01-01T00:00:00", "a"], ["2024-01-02T00:00:00", ""]]
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "long.parquet").read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"cut.parquet"):
        csv_series(tmp_path / "cut.parquet", forecast=0.4)


def test_parquet_files_name_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "long.parquet").write_bytes(b"PAR1")
    with pytest.raises(ModuleNotFoundError, match="pyarrow"):
        csv_series(tmp_path / "long.parquet", forecast=0.4)

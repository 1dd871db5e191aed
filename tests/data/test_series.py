"""Series read from files: .ts, CSV, PhysioNet; unequal, missing, irregular, truncated and corrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.sets.series.csv_series import csv_series
from kernelfield.data.sets.series.physionet2012 import MEASURED, physionet2012
from kernelfield.data.sets.series.physionet2019 import physionet2019
from kernelfield.data.sets.series.ts_archive import character_trajectories, read_ts, ts

if TYPE_CHECKING:
    from pathlib import Path

HEADER = """# made for a test
@problemName Made
@timeStamps false
@missing true
@univariate false
@dimensions 2
@equalLength false
@classLabel true b a
@data
"""


def write_ts(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text(header + "\n".join(lines) + "\n")
    return path


def test_ts_of_unequal_length_with_missing_values(tmp_path: Path) -> None:
    lines = ["1,2,?:4,5,?:a", "1,2,3,4:?,6,7,8:b"] * 10
    write_ts(tmp_path / "Made_TRAIN.ts", lines)
    write_ts(tmp_path / "Made_TEST.ts", lines[:4])
    data = ts(tmp_path)
    assert data.classes == ("b", "a")
    assert (data.in_channels, data.out_channels, data.size) == (2, 2, (4,))
    assert [len(s) for s in (data.train, data.validation, data.test)] == [17, 3, 4]
    assert data.test.target.tolist() == [1, 0, 1, 0]
    assert data.test.mask[:2].tolist() == [[True, True, False, False], [True] * 4]
    x = data.test.batch(slice(None)).inputs
    assert (x[0, :, 2:] == 0).all()  # padded and missing
    assert x[1, 1, 0] == 0  # missing in one channel: the mean
    assert torch.isfinite(x).all()
    seen = ts(tmp_path, observed=True)
    assert seen.in_channels == 4
    assert seen.test.batch(slice(None)).inputs[1, 2:].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]


def test_ts_is_normalised_by_training_statistics(tmp_path: Path) -> None:
    header = HEADER.replace("false\n@dimensions 2", "true")
    write_ts(tmp_path / "Made_TRAIN.ts", ["0,2:a", "0,2:b"] * 4, header)
    write_ts(tmp_path / "Made_TEST.ts", ["3:a", "1,1:b"], header)
    data = ts(tmp_path, "Made")
    assert data.test.batch(slice(None)).inputs[:, 0].tolist() == [[2, 0], [0, 0]]
    assert data.test.mask.tolist() == [[True, False], [True, True]]
    assert data.train.mask is not None  # in all splits, if in one


def test_ts_can_be_normalised_by_step(tmp_path: Path) -> None:
    write_ts(tmp_path / "CharacterTrajectories_TRAIN.ts", ["0,5,1:2,5,3:a", "4,9,1:2,9:b".replace("9:b", "9,3:b")] * 10)
    write_ts(tmp_path / "CharacterTrajectories_TEST.ts", ["0,5,1:2,5,3:a"])
    data = character_trajectories(tmp_path, split="archive", normalize="step")
    x = data.train.batch(slice(None)).inputs
    assert x.mean(dim=(0, 1)).abs().max() < 0.2
    values = data.train.inputs
    wanted = (values - values.mean(dim=(0, 1))) / values.std(dim=(0, 1), correction=0)
    torch.testing.assert_close(x, wanted)
    with pytest.raises(ValueError, match=r"\bnormalize must"):
        character_trajectories(tmp_path, normalize="sample")


def test_ts_splits_can_be_joined_and_divided_again(tmp_path: Path) -> None:
    for part in ("TRAIN", "TEST"):
        write_ts(tmp_path / f"CharacterTrajectories_{part}.ts", ["1,2:3,4:a", "5,6:7,8:b"] * 10)
    data = character_trajectories(tmp_path)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [28, 6, 6]
    assert data.train.mask is None
    assert data.test.target.sum() == 3
    again = character_trajectories(tmp_path)
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert [len(s) for s in (ts(tmp_path, split="archive").train, ts(tmp_path).test)] == [17, 20]


def test_ts_with_times_and_targets(tmp_path: Path) -> None:
    header = "@timeStamps true\n@univariate true\n@targetLabel true\n@data\n"
    path = write_ts(tmp_path / "one.ts", [f"(0,1),(0.7,2),(2.0,3):{i}.5" for i in range(20)], header)
    data = ts(path, unit=0.5)
    assert data.task == "regression"
    assert data.train.target.shape == (14, 1)
    torch.testing.assert_close(data.train.coords[0, :, 0], torch.tensor([0.0, 1.4, 4.0]))
    assert data.size == (5,)
    path = write_ts(tmp_path / "two.ts", ["(0,1),(1,2):(1,5),(2,3):a"] * 20, HEADER.replace("mps false", "mps true"))
    data = ts(path)
    assert data.train.coords is None  # on a grid
    assert data.train.inputs.shape == (14, 2, 3)


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (["1,2:3,4:a"], "", r"line 1\b.*found '1,2:3,4:a'"),
        ([], "@problemName x\n", "must"),
        ([], HEADER, ".*found none"),
        (["1,2:3,4:a"], HEADER.replace("@classLabel true b a\n", ""), "must"),
        (["1,2:3:a"], HEADER, r"line 10\b.*found .1, 2."),
        (["1,2:3,4:a", "1,2:b"], HEADER, ".*found .1, 2."),
        (["1,2:b"], HEADER, ".*found 1"),
        (["1,2:3,4:c"], HEADER, ".*found c"),
        (["1,2:3,x:a"], HEADER, r"line 10\b.*found 'x'"),
        (["1,2"], HEADER, r"line 10\b.*found '1,2'"),
        (["1,2:a"], HEADER.replace("mps false", "mps true"), r"line 10\b.*found '1,2'"),
        (
            ["1:2:x"],
            HEADER.replace("@classLabel true b a", "@targetLabel true"),
            r"line 10\b.*found 'x'",
        ),
    ],
)
def test_broken_ts(tmp_path: Path, lines: list[str], header: str, message: str) -> None:
    path = write_ts(tmp_path / "broken.ts", lines, header)
    with pytest.raises(ValueError, match=f"broken.ts,? {message}"):
        read_ts(path)


def test_missing_ts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\bproblem must"):
        ts(tmp_path)
    write_ts(tmp_path / "Made_TRAIN.ts", ["1:2:a"])
    with pytest.raises(ValueError, match=r"found Made_TRAIN.ts"):
        ts(tmp_path)
    (tmp_path / "latin.ts").write_bytes("@problemName é".encode("latin1"))
    with pytest.raises(ValueError, match=r"latin.ts must"):
        ts(tmp_path / "latin.ts")


def test_wide_csv(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("0,1,2,label\n" + "1,,3,up\n1,2,,down\n" * 10)
    data = csv_series(path)
    assert (data.name, data.classes, data.size) == ("mine", ("down", "up"), (3,))
    up = data.train.target == 1
    assert data.train.mask[up].unique(dim=0).tolist() == [[True, False, True]]
    assert data.train.mask[~up].unique(dim=0).tolist() == [[True, True, False]]
    assert [len(s) for s in (data.train, data.validation, data.test)] == [14, 3, 3]
    assert csv_series(path, seed=1).train.inputs.shape == data.train.inputs.shape


def test_long_csv_on_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = [
        f"{i},{t},{c},{i + t},{i % 2}" for i in range(20) for t in (10, 12, 16) for c in "xy" if (t, c) != (12, "y")
    ]
    path.write_text("id,time,channel,value,label\n" + "\n".join(rows))
    data = csv_series(path, unit=2)
    assert data.train.coords is None
    assert data.train.inputs.shape == (14, 2, 4)
    assert data.train.mask[0].tolist() == [True, True, False, True]
    assert data.classes == ("0", "1")


def test_long_csv_at_irregular_times(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = [f"{i},{t},{t * i},{i + 0.5}" for i in range(20) for t in ((0, 0.33, 1.1) if i % 2 else (0, 0.5))]
    path.write_text("id,time,value,label\n" + "\n".join(rows))
    data = csv_series(path, unit=0.1)
    assert data.task == "regression"
    assert data.train.coords.shape == (14, 3, 1)
    assert data.size == (12,)
    short = ~data.train.mask.all(dim=1)
    torch.testing.assert_close(data.train.coords[short][0].flatten(), torch.tensor([0.0, 5.0, 5.0]))
    assert csv_series(path, task="classification").out_channels == 20


def test_long_csv_of_dates(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = [f"{i},2020-01-{d:02},{d * i},{'ab'[i % 2]}" for i in range(20) for d in (1, 2, 5)]
    path.write_text("id,time,value,label\n" + "\n".join(rows))
    data = csv_series(path, unit=86_400)
    assert data.train.mask[0].tolist() == [True, True, False, False, True]
    path.write_text("id,time,value,label\n1,yesterday,2,a")
    with pytest.raises(ValueError, match=r"mine.csv, line 2: .*found 'yesterday'"):
        csv_series(path)


def test_csv_split_by_file_names(tmp_path: Path) -> None:
    for part, n in (("train", 20), ("test", 6)):
        (tmp_path / f"{part}.csv").write_text("label,0,1\n" + "a,1,2\nb,3,4\n" * (n // 2))
    data = csv_series(tmp_path)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [17, 3, 6]
    assert data.name == tmp_path.name
    (tmp_path / "validation.csv").write_text("label,0,1\na,1,2\nb,3,4\n")
    assert [len(s) for s in (csv_series(tmp_path).train, csv_series(tmp_path).validation)] == [20, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1\b.*found nothing"),
        ("a,b\n1,2", r"line 1\b.*found a, b"),
        ("label,0\n", "must"),
        ("label,0\nup,x", r"line 2\b.*found 'x'"),
        ("label,0\nup,1\nup,1,2", r"line 3\b.*found 3"),
        ("label,0\n,1", r"line 2\b.*found none"),
        ("label,0\nup,", r"line 2\b.*found none"),
        ("id,time,value,label\n", "must"),
        ("id,time,value,label\n1,0,1", r"line 2\b.*found 3"),
        ("id,time,value,label\n1,,1,a", r"line 2\b.*found ''"),
        ("id,time,value,label\n1,0,1,a\n1,1,1,b", r"line 3\b.*found 'b'"),
        ("id,time,value,label\n1,0,1,a\n1,0,2,a", r"line 3\b.*found two"),
    ],
)
def test_broken_csv(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"mine.csv,? {message}"):
        csv_series(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (",t1,t2,t3,label", "column 1; leave out an index"),  # the index of pandas
        ("Unnamed: 0,a,b,c,label", "column 1; leave out an index"),
        ("id,t1,t2,t3,label", "t1 to t3, found 'id'"),
        ("t1,t2,t3,age,label", "t1 to t3, found 'age'"),
        ("t1,t10,t2,t3,label", "steps in order, found t1, t10, t2"),  # sorted as text
        ("x1,x2,y1,y2,label", "one channel, found columns of 2"),
        ("a,b,label,a,label", "'a' twice"),
        ("a,b,c,label,label", "'label' twice"),
    ],
)
def test_columns_that_are_no_steps_are_refused(tmp_path: Path, names: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{names}\n" + "0,1,2,3,0\n1,4,5,6,1\n" * 10)
    with pytest.raises(ValueError, match=f"mine.csv, line 1: .*{message}"):
        csv_series(path)


@pytest.mark.parametrize("names", ["0,1,2", "0.0,0.5,1.0", "lag3,lag2,lag1", "a,b,c", "a,b2,c", "t1,t2,t3,"])
def test_columns_of_steps(tmp_path: Path, names: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"label,{names}\n" + "up,1,2,3\ndown,4,5,6\n" * 10)
    data = csv_series(path)
    assert data.size == (3,)
    assert data.columns == tuple(name for name in names.split(",") if name)
    assert data.train.inputs[data.train.target == 1][0].tolist() == [[1, 2, 3]]


def test_columns_of_test_files_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label,low,high\n" + "a,1,2\nb,3,4\n" * 10)
    (tmp_path / "test.csv").write_text("high,low,label\n2,1,a\n4,3,b\n")
    assert csv_series(tmp_path).test.inputs.tolist() == [[[1, 2]], [[3, 4]]]
    (tmp_path / "test.csv").write_text("tall,low,label\n2,1,a\n4,3,b\n")
    with pytest.raises(ValueError, match=r"test.csv, line 1: .*low, high, found 'tall'"):
        csv_series(tmp_path)


def test_labels_that_are_missing_or_written_in_two_ways(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("label,0,1\n" + "1,1,2\n1.0,3,4\n2,5,6\n" * 4)
    with pytest.raises(ValueError, match=r"labels must .*'1' and '1.0'"):
        csv_series(path)
    for label in ("?", "NaN"):
        path.write_text("label,0,1\n" + f"up,1,2\n{label},3,4\n" * 4)
        with pytest.raises(ValueError, match=r"mine.csv, line 3: expected a label"):
            csv_series(path)


def test_ts_with_two_values_at_one_time_or_dates_among_numbers(tmp_path: Path) -> None:
    head = ["@timeStamps true", "@classLabel true a b", "@data"]
    for line, message in (("(0,1),(0,2):a", "found two"), ("(0,1),(2020-01-01,2):a", "found both")):
        (tmp_path / "made.ts").write_text("\n".join([*head, line]))
        with pytest.raises(ValueError, match=f"made.ts, line 4: .*{message}"):
            ts(tmp_path / "made.ts")


def test_missing_csv(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found nothing"):
        csv_series(tmp_path)
    with pytest.raises(ValueError, match=r"\broot must"):
        csv_series(tmp_path / "none.csv")


def stay(path: Path, age: int, rows: list[str]) -> None:
    general = [
        f"00:00,{k},{v}"
        for k, v in (("RecordID", path.stem), ("Age", age), ("Gender", 1), ("Height", -1), ("ICUType", 3))
    ]
    path.write_text("\n".join(["Time,Parameter,Value", *general, "00:00,Weight,-1", *rows]) + "\n")


@pytest.fixture
def icu(tmp_path: Path) -> Path:
    (tmp_path / "set-a").mkdir()
    outcomes = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
    for i in range(20):
        rows = ["00:07,HR,80", f"01:30,HR,{80 + i}", "01:30,Temp,37", "47:00,HR,90"][: 4 - i % 2]
        stay(tmp_path / "set-a" / f"{132539 + i}.txt", 40 + i, rows)
        outcomes.append(f"{132539 + i},6,1,5,-1,{int(i % 4 == 0)}")
    (tmp_path / "Outcomes-a.txt").write_text("\n".join(outcomes))
    return tmp_path


def test_physionet2012(icu: Path) -> None:
    data = physionet2012(icu, minutes=30)
    assert (data.in_channels, data.size, data.task) == (81, (97,), "multilabel")
    assert data.train.inputs.shape == (14, 41, 4)  # as measured; a batch is as the network takes it
    assert (data.train.inputs[:, MEASURED.index("HR"), 1] == 80).all()
    split = data.train.batch(slice(None))
    assert split.inputs.shape == (14, 81, 4)
    assert split.target.shape == (14, 1)
    long = split.mask.all(dim=1)
    assert long.any()
    assert not long.all()
    torch.testing.assert_close(split.coords[long][0, :, 0], torch.tensor([0.0, 7.0, 90.0, 47 * 60.0]) / 30)
    assert split.mask[~long][0].tolist() == [True, True, True, False]
    hr, temperature = MEASURED.index("HR"), MEASURED.index("Temp")
    observed = split.inputs[:, len(MEASURED) : 2 * len(MEASURED)]
    assert observed[long][0, hr].tolist() == [0, 1, 1, 1]
    assert observed[long][0, temperature].tolist() == [0, 0, 1, 0]
    assert (split.inputs[long][0, 74 + 3 : 74 + 7, 0]).tolist() == [0, 0, 1, 0]  # the third kind of unit
    assert (split.inputs[~long][0, :, 3] == 0).all()
    assert torch.equal(split.inputs, physionet2012(icu).train.batch(slice(None)).inputs)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("set-a/132540.txt", "", r"line 1\b.*found nothing"),
        ("set-a/132540.txt", "Time,Parameter,Value\n00:00,HR", "line 2:"),
        ("set-a/132540.txt", "Time,Parameter,Value\n0000,HR,3", "line 2:"),
        ("set-a/132540.txt", "Time,Parameter,Value\n00:00,HR,fast", r"line 2\b.*found 'fast'"),
        ("set-a/132540.txt", "Time,Parameter,Value\n00:00,Mood,3", "line 2:"),
        ("Outcomes-a.txt", "RecordID,Death\n1,0", "line 1:"),
        ("Outcomes-a.txt", "RecordID,In-hospital_death\n1,dead", "line 2:"),
        ("Outcomes-a.txt", "RecordID,In-hospital_death\n1,0", ".*found none for .*132539"),
    ],
)
def test_broken_physionet2012(icu: Path, name: str, text: str, message: str) -> None:
    (icu / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name},? {message}"):
        physionet2012(icu)


def test_missing_physionet2012(icu: Path) -> None:
    with pytest.raises(ValueError, match=r"Outcomes-b.txt"):
        physionet2012(icu, sets=("a", "b"))


NAMES = [*(f"M{i}" for i in range(34)), "Age", "Gender", "Unit1", "Unit2", "HospAdmTime", "ICULOS", "SepsisLabel"]


def psv(path: Path, hours: list[int], sepsis: int) -> None:
    rows = [
        "|".join([str(h), *["NaN"] * 33, "60", "1", "NaN", "NaN", "-3", str(h), str(int(sepsis and h == hours[-1]))])
        for h in hours
    ]
    path.write_text("\n".join(["|".join(NAMES), *rows]))


def test_physionet2019(tmp_path: Path) -> None:
    folder = tmp_path / "training" / "training_setA"
    folder.mkdir(parents=True)
    for i in range(20):
        # The sixth hour is missing; what happens after the tenth still counts for the label.
        psv(folder / f"p{i:06}.psv", [1, 2, 3, 4, 5, 7, 12], sepsis=i % 2)
    psv(folder / "p000020.psv", [1, 2], sepsis=0)  # too short
    data = physionet2019(tmp_path, hours=10)
    assert (data.in_channels, data.size, data.task) == (75, (10,), "multilabel")
    assert [len(s) for s in (data.train, data.validation, data.test)] == [14, 3, 3]
    assert data.train.inputs[0, 0, :5].tolist() == [1, 2, 3, 4, 5]  # as measured
    assert data.train.target.mean() == 0.5
    assert data.train.mask[0].tolist() == [True] * 7 + [False] * 3
    inputs = data.train.batch(slice(None)).inputs
    counts = inputs[0, 0] * 10
    torch.testing.assert_close(counts, torch.tensor([1.0, 2, 3, 4, 5, 5, 6, 0, 0, 0]))
    assert inputs[0, 34, 5] == 0
    assert (inputs[0, 73:, :7] == 0).all()  # units not known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ".*found 'nothing' and 0 rows"),
        ("|".join(NAMES), "must"),
        ("|".join(NAMES) + "\n1|2", r"line 2\b.*found 2"),
        ("|".join(NAMES) + "\n" + "|".join(["x"] * 41), r"line 2\b.*found 'x'"),
        ("|".join(NAMES) + "\n" + "|".join(["0"] * 41), "expected hours in ICULOS"),
    ],
)
def test_broken_physionet2019(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p1.psv").write_text(text)
    with pytest.raises(ValueError, match=f"p1.psv[,:]? {message}"):
        physionet2019(tmp_path)


def test_missing_physionet2019(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found none"):
        physionet2019(tmp_path)


def test_padded_series_are_finite_in_every_loader(icu: Path) -> None:
    data = physionet2012(icu)
    for split in (s.batch(slice(None)) for s in (data.train, data.validation, data.test)):
        assert torch.isfinite(split.inputs).all()
        assert torch.isfinite(split.coords).all()
        assert np.all(np.diff(split.coords[..., 0].numpy(), axis=1) >= 0)


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e39", "-1e400"])
def test_one_bad_cell_is_refused_or_missing(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "mine.csv"
    rows = [f"{'up' if i % 2 else 'down'},{i}.0,{i + 1}.5,2" for i in range(20)]
    rows[7] = f"up,7.0,{cell},2"
    path.write_text("\n".join(["label,a,b,c", *rows]))
    with pytest.raises(ValueError, match=r"mine\.csv, line 9, column b: .*nonfinite"):
        csv_series(path)
    data = csv_series(path, nonfinite="missing")
    values = torch.cat([split.inputs for split in (data.train, data.validation, data.test)])
    assert int(values.isnan().sum()) == 1
    assert bool(torch.isfinite(data.train.batch(slice(None)).inputs).all())
    with pytest.raises(ValueError, match=r"\bnonfinite must"):
        csv_series(path, nonfinite="zero")
    (tmp_path / "long.csv").write_text(f"id,time,value,label\n1,0,1,a\n1,1,{cell},a\n2,0,1,b\n2,1,3,b\n")
    with pytest.raises(ValueError, match=r"long\.csv, line 3, column value"):
        csv_series(tmp_path / "long.csv")
    (tmp_path / "x.ts").write_text(HEADER + f"1,2:3,{cell}:a\n")
    with pytest.raises(ValueError, match=r"x\.ts, line 10, column 2: .* channel 2"):
        read_ts(tmp_path / "x.ts")
    assert np.isnan(read_ts(tmp_path / "x.ts", "missing")[0][0].values[1, 1])


def test_a_target_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    for label in ("inf", "nan", "1e39", "1.2.3"):
        path.write_text(f"label,a,b\n0.5,1,2\n1.5,1,2\n{label},1,2\n2.5,1,2\n")
        with pytest.raises(ValueError, match=r"mine\.csv, line 4: expected a (finite number for a )?label"):
            csv_series(path, task="regression")

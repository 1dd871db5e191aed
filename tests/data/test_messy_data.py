"""Tables and arrays as other programs write them: every value is read as it was meant, or a message names the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.base import TargetScale
from kernelfield.data.io.arrays import as_numbers
from kernelfield.data.io.files import read_table
from kernelfield.data.sets.arrays import arrays
from kernelfield.data.sets.clouds.cloud_folder import read_clouds
from kernelfield.data.sets.images.image_folder import list_classes
from kernelfield.data.sets.series.csv_series import csv_series
from kernelfield.data.sets.series.long_table import read_queries
from kernelfield.data.transforms.series import Series
from kernelfield.data.transforms.split import class_index
from kernelfield.experiments.custom_data import load_path

if TYPE_CHECKING:
    from pathlib import Path


def long_table(path: Path, times: list[str], end: str = "") -> Path:
    """Write two channels of ten series at these times; ``end`` is the rest of each line."""
    lines = [
        f"{i},{time},{channel},{np.sin(i + k):.3f},{'ab'[i % 2]}{end}"
        for i in range(10)
        for k, time in enumerate(times)
        for channel in "xy"
    ]
    path.write_text("\n".join([f"id,time,channel,value,label{',note' if end else ''}", *lines]) + "\n")
    return path


def test_a_quotation_mark_that_is_not_closed_does_not_swallow_lines(tmp_path: Path) -> None:
    # Between two lines with a note of 5" every other measurement was lost.
    with pytest.raises(ValueError, match="up to line 3"):
        csv_series(long_table(tmp_path / "a.csv", ["0", "1", "2"], ',"5 inch'))
    (tmp_path / "b.csv").write_text('label,t0\n"a,1\nb,2\n')
    with pytest.raises(ValueError, match=r"b\.csv, up to line 3"):
        read_table(tmp_path / "b.csv")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_marks_between_cells_are_named(mark: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"label{mark}t0{mark}t1\na{mark}0,5{mark}1,5\n")
    with pytest.raises(ValueError, match="line 1: expected commas between cells"):
        csv_series(tmp_path / "a.csv")


def test_a_cloud_without_extent_is_refused(tmp_path: Path) -> None:
    for points in (np.zeros((1, 3)), np.ones((9, 3))):
        np.save(tmp_path / "a.npy", points)
        with pytest.raises(ValueError, match=r"a\.npy must hold two or more different points"):
            read_clouds([tmp_path / "a.npy"], 16)


def test_a_quoted_cell_may_hold_several_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('label,t0\n"left\nhand",1\r\n"5"" pipe",2\n')
    assert read_table(tmp_path / "a.csv")[1:] == [["left\nhand", "1"], ['5" pipe', "2"]]


@pytest.mark.parametrize("gap", [1, 10, 100])
def test_dates_are_exact_to_a_microsecond(gap: int, tmp_path: Path) -> None:
    times = [f"2024-03-31T01:00:00.{gap * k:06d}" for k in range(6)]
    data = csv_series(long_table(tmp_path / "a.csv", times))
    assert data.unit == pytest.approx(gap * 1e-6, rel=1e-9)
    assert data.train.coords is None  # on a grid
    assert data.size == (6,)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([f"2024-03-31T01:00:00.{300 * k:09d}" for k in range(1, 6)], "six decimals of a second"),
        ([str(1_700_000_000_000_000_000 + 300 * k) for k in range(6)], "float64 can tell apart"),
        (["31.03.2024 12:00"], "a number or a date such as"),
        (["2024-03-31 12:00"] * 2, "at time 2024-03-31 12:00, found two"),
    ],
)
def test_times_that_would_be_rounded_or_misread_are_refused(times: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        csv_series(long_table(tmp_path / "a.csv", times))


def test_query_times_are_exact_too(tmp_path: Path) -> None:
    path = long_table(tmp_path / "a.csv", [f"2024-03-31T01:00:00.{10 * k:06d}" for k in range(10)])
    at = csv_series(path, forecast=0.3).train.at
    assert at is not None
    torch.testing.assert_close(at[0, :, 0], torch.tensor([7.0, 8.0, 9.0]), rtol=0, atol=1e-6)


def test_query_times_in_memory_are_of_the_kind_of_the_series() -> None:
    dated = Series(np.zeros((1, 2)), "", np.array([0.0, 3600.0]), dates=True)
    noon = "2024-03-31 12:00"
    for given in ([noon], noon, np.array([noon], dtype="M8[ns]")):
        assert read_queries(given).of(dated).tolist() == [1711886400.0]
    for wrong in ([24.0, 36.0], torch.tensor([24.0]), "24", f"{noon}+01:00"):
        with pytest.raises(ValueError, match="at must be a date without a time zone"):
            read_queries(wrong).of(dated)


def test_a_short_line_of_query_times_is_named(tmp_path: Path) -> None:
    (tmp_path / "at.csv").write_text("id,time\n7,1.5\n8\n")
    with pytest.raises(ValueError, match="line 3: expected 2 fields, found 1"):
        read_queries(tmp_path / "at.csv")


@pytest.mark.parametrize("names", [("Yes", "yes"), ("caf\u00e9", "cafe\u0301"), ("type 1", "type  1")])
def test_names_that_look_alike_are_announced(names: tuple[str, str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="count as two"):
        class_index([*names, "no"])
    for name in (*names, "no"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    with pytest.warns(UserWarning, match="has classes .* which count as two"):
        list_classes(tmp_path, (".png",), "images", (0.7, 0.15, 0.15), 0)


def test_files_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.heic", "dog/1.png", "loose.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=r"2 of 4 files are not read, such as cat/2\.heic"):
        paths = list_classes(tmp_path, (".png",), "images", (0.7, 0.15, 0.15), 0)[0]
    assert len(paths) == 2


def test_long_ids_are_classes_of_their_own() -> None:
    names = [str(2**60 + i) for i in (2, 0, 1)]
    index, known = class_index(names)
    assert known == tuple(sorted(names))
    assert index.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match=r"'1' and '1\.0'"):
        class_index(["1", "1.0"])


def test_names_in_another_encoding_do_not_become_one_class(tmp_path: Path) -> None:
    target = np.array([b"\xe9t\xe9", b"\xe8t\xe9"] * 8)
    np.savez(tmp_path / "a.npz", inputs=np.random.default_rng(0).normal(size=(16, 1, 8)), target=target)
    with pytest.raises(ValueError, match="UTF-8"):
        arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("size", [1e-13, 1e-20, 1e-30])
def test_targets_in_a_unit_that_is_too_large_are_refused_or_announced(size: float) -> None:
    small = size * torch.randn(20, 1, dtype=torch.float64)
    if size > 1e-15:
        with pytest.raises(ValueError, match="target must have a standard deviation"):
            TargetScale.of(small)
    else:  # differences of equal numbers have such values
        with pytest.warns(UserWarning, match="target .* rescale it"):
            assert TargetScale.of(small).std == (1.0,)
    assert TargetScale.of(torch.full((20, 1), size)).std == (1.0,)
    with pytest.raises(ValueError, match=r"target must have a mean and a standard deviation .* rescale it"):
        TargetScale.of(torch.randn(20, 1, dtype=torch.float64) / size)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (np.full(24, 2.5), r"the target is 2\.5 in all training samples"),
        (np.stack([np.full(24, -1.0), np.arange(24.0)], 1), "target 0 is -1 in all training samples"),
        (1000 * np.arange(24), "24 classes of 24 samples; data.task=regression"),
    ],
)
def test_targets_that_are_hardly_meant_are_announced(target: np.ndarray, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.random.default_rng(0).normal(size=(24, 1, 8)), target=target)
    with pytest.warns(UserWarning, match=message):
        load_path(tmp_path / "a.npz")


def test_arrays_in_memory_become_native_numbers() -> None:
    x = np.arange(12.0).reshape(2, 2, 3)
    forms = [x.astype(">f4"), np.asfortranarray(x), x[..., ::-1][..., ::-1], x.astype(object), x.astype(np.longdouble)]
    forms += [x.tolist(), list(x), list(torch.from_numpy(x)), np.ma.masked_greater(x, 99)]
    for form in forms:
        torch.testing.assert_close(torch.as_tensor(as_numbers(form, "x")).double(), torch.from_numpy(x))
    assert torch.as_tensor(as_numbers(x[..., ::-1], "x"))[0, 0].tolist() == [2, 1, 0]
    wrong = [1j * x, torch.from_numpy(1j * x), x.astype(str), x.astype("M8[s]"), [[1, 2], [3]], [{"a": 1}]]
    for other in wrong:
        with pytest.raises(TypeError, match="x must hold"):
            as_numbers(other, "x")


def test_classes_without_a_training_sample_are_refused(tmp_path: Path) -> None:
    for folder, names in (("held", ("validation", "test")), ("tested", ("test",))):
        (tmp_path / folder).mkdir()
        for name in ("train", "test", *names):
            lines = [f"{'abc'[i % (3 if name == names[0] else 2)]},{i},{i * i}" for i in range(12)]
            (tmp_path / folder / f"{name}.csv").write_text("\n".join(["label,t0,t1", *lines]))
            target = np.array([line[0] for line in lines])
            np.savez(tmp_path / folder / f"{name}.npz", inputs=np.arange(24.0).reshape(12, 1, 2), target=target)
        for load in (csv_series, arrays):
            path = tmp_path / folder / ("train.csv" if load is csv_series else "train.npz")
            with pytest.raises(ValueError, match="training samples of each class, found 'c'"):
                load(path)

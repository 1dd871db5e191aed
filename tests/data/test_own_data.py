"""Data of one's own: pairs of files, .tsv, .arff, .ply and .npz files, and new samples with labels."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.base import TargetScale
from kernelfield.data.io.pairs import split_files
from kernelfield.data.io.ply import read_ply
from kernelfield.data.labelled import labelled_split
from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.registry import load
from kernelfield.experiments.custom_data import own_data

if TYPE_CHECKING:
    from pathlib import Path

CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=np.float32)
FACES = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]


def write_series(folder: Path, ending: str, name: str, count: int = 20) -> Path:
    """Write two classes of series in one of the archive's formats."""
    path = folder / f"{name}{ending}"
    values = [np.arange(6) * (1 - 2 * (i % 2)) + 0.1 * i for i in range(count)]
    labels = [("a", "b")[i % 2] for i in range(count)]
    rows = [",".join(f"{v:.3f}" for v in row) for row in values]
    if ending == ".tsv":
        lines = ["\t".join([label, *row.split(",")]) for label, row in zip(labels, rows, strict=True)]
    elif ending == ".arff":
        steps = [f"@attribute t{i} numeric" for i in range(6)]
        lines = ["% a comment", "@relation waves", *steps, "@attribute target {a,b}", "@data"]
        lines += [f"{row},{label}" for label, row in zip(labels, rows, strict=True)]
    elif ending == ".ts":
        lines = ["@problemName waves", "@classLabel true a b", "@data"]
        lines += [f"{row}:{label}" for label, row in zip(labels, rows, strict=True)]
    else:
        lines = ["label," + ",".join(map(str, range(6)))]
        lines += [f"{label},{row}" for label, row in zip(labels, rows, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("ending", [".ts", ".tsv", ".arff", ".csv"])
def test_a_training_file_is_read_with_the_test_file_beside_it(ending: str, tmp_path: Path) -> None:
    train, test = (write_series(tmp_path, ending, f"waves_{part}", n) for part, n in (("TRAIN", 20), ("TEST", 8)))
    for path in (train, tmp_path) if ending != ".csv" else (train,):
        kind, options = own_data(path)
        data = load(kind, **options)
        assert (len(data.train), len(data.validation), len(data.test)) == (17, 3, 8)
        assert data.classes == ("a", "b")
    # A file of another name stands alone.
    alone = load(*own_data(test)[:1], **own_data(test)[1])
    assert len(alone.train) + len(alone.validation) + len(alone.test) == 8
    torch.testing.assert_close(data.test.inputs[1, 0], torch.arange(6) * -1.0 + 0.1)


def test_a_folder_with_arrays_for_training_and_testing(tmp_path: Path) -> None:
    for name, count in (("train", 20), ("test", 6)):
        inputs = np.random.default_rng(0).normal(size=(count, 2, 5)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, target=np.arange(count) % 2)
    kind, options = own_data(tmp_path)
    data = load(kind, **options)
    assert (kind, len(data.train) + len(data.validation), len(data.test)) == ("arrays", 20, 6)


def test_pairs_of_train_and_test_files_are_found_by_name(tmp_path: Path) -> None:
    for name in (
        "Train.csv",
        "Test.csv",
        "train.csv",
        "val.csv",
        "x-train.npz",
        "x-test.npz",
        "strain.csv",
        "stest.csv",
    ):
        (tmp_path / name).write_text("")
    assert [p.name for p in split_files(tmp_path / "Train.csv")] == ["Train.csv", "Test.csv"]
    assert [p.name for p in split_files(tmp_path / "train.csv")] == ["train.csv"]  # test.csv is not there
    assert [p.name for p in split_files(tmp_path / "x-train.npz")] == ["x-train.npz", "x-test.npz"]
    assert [p.name for p in split_files(tmp_path / "strain.csv")] == ["strain.csv"]


def test_channels_of_relational_arff(tmp_path: Path) -> None:
    path = tmp_path / "two.arff"
    head = "@relation r\n@attribute both relational\n  @attribute t numeric\n@end both\n@attribute class {1,2}\n@data\n"
    path.write_text(head + "'1,2,?\\n4,5,6',1\n'7,8,9\\n1,2,3','2'\n" * 4)
    data = load("ts", path)
    assert data.test.inputs.shape[1:] == (2, 3)
    assert data.classes == ("1", "2")
    path.write_text(head + "1,2,3,1\n")
    with pytest.raises(ValueError, match=r"two.arff, line 7: expected channels in quotes"):
        load("ts", path)


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply(form: str, tmp_path: Path) -> None:
    path = tmp_path / "cube.ply"
    header = (
        f"ply\nformat {form} 1.0\ncomment a cube\nelement vertex 8\nproperty float x\nproperty float y\n"
        "property float z\nproperty uchar red\nelement face 6\nproperty list uchar int vertex_indices\nend_header\n"
    )
    if form == "ascii":
        lines = [f"{x:g} {y:g} {z:g} 7" for x, y, z in CUBE] + ["4 " + " ".join(map(str, face)) for face in FACES]
        path.write_text(header + "\n".join(lines) + "\n")
    else:
        order = "<" if "little" in form else ">"
        body = b"".join(struct.pack(f"{order}fffB", *corner, 7) for corner in CUBE)
        body += b"".join(struct.pack(f"{order}B4i", 4, *face) for face in FACES)
        path.write_bytes(header.encode() + body)
    vertices, triangles = read_ply(path)
    torch.testing.assert_close(vertices, torch.from_numpy(CUBE))
    assert triangles.shape == (12, 3)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"cube.ply must be a PLY file"):
        read_ply(path)


def write_clouds(folder: Path, count: int = 7) -> Path:
    """Write a folder of two classes: lines as .npy and cubes as .off, .ply without faces among them."""
    source = np.random.default_rng(0)
    for name in ("cube", "line"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    off = "\n".join(f"{x} {y} {z}" for x, y, z in CUBE) + "\n" + "\n".join("4 " + " ".join(map(str, f)) for f in FACES)
    for i in range(count):
        (folder / "cube" / f"{i}.off").write_text(f"OFF\n8 6 0\n{off}\n")
        line = np.outer(np.linspace(-1, 1, 20), [1, 0, 0]) + 0.01 * source.normal(size=(20, 3))
        np.save(folder / "line" / f"{i}.npy", line)
    points = "\n".join(f"{x} {y} {z}" for x, y, z in source.uniform(size=(30, 3)))
    head = (
        "ply\nformat ascii 1.0\nelement vertex 30\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    )
    (folder / "cube" / "points.ply").write_text(head + points + "\n")
    return folder


def test_folders_of_clouds(tmp_path: Path) -> None:
    folder = write_clouds(tmp_path / "clouds")
    kind, options = own_data(folder)
    data = load(kind, **options, points=16)
    assert (kind, data.classes, data.in_channels, data.dim) == ("cloud_folder", ("cube", "line"), 3, 3)
    batch = data.train.batch(slice(0, 3), training=True)
    assert batch.inputs.shape == (3, 3, 16)
    assert batch.coords.abs().max() <= 1.001
    np.save(folder / "line" / "0.npy", np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"0.npy must hold points \(n, 3\)"):
        load(kind, **options)


@pytest.mark.parametrize(
    ("target", "task", "out"),
    [
        (np.arange(20) % 3, "classification", 3),
        (np.array(["no", "yes"] * 10), "classification", 2),
        (np.linspace(0, 1, 20), "regression", 1),
        (np.ones((20, 4)), "regression", 4),
        (np.arange(60).reshape(20, 3) % 2, "multilabel", 3),
        (np.arange(20 * 64).reshape(20, 8, 8) % 5, "segmentation", 5),
        (np.random.default_rng(0).normal(size=(20, 8, 8)), "dense-regression", 1),
        (np.random.default_rng(0).normal(size=(20, 2, 8, 8)), "dense-regression", 2),
    ],
)
def test_arrays(target: np.ndarray, task: str, out: int, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(3, 2, size=(20, 3, 8, 8))
    np.savez(tmp_path / "data.npz", x=x, y=target)
    kind, options = own_data(tmp_path / "data.npz")
    data = load(kind, **options, standardize="regression" in task)
    assert (kind, data.task, data.out_channels, data.size) == ("arrays", task, out, (8, 8))
    batch = data.train.batch(slice(None))
    assert abs(float(batch.inputs.mean())) < 1e-4
    if batch.scale is not None:
        undone = batch.scale.undo(batch.target)
        torch.testing.assert_close(undone.float(), data.train.target)
        assert batch.scale == TargetScale.of(data.train.target)


@pytest.mark.parametrize("channels", [1, 3])
def test_classes_with_an_axis_of_channels_are_announced(channels: int, tmp_path: Path) -> None:
    classes = np.arange(20 * 64).reshape(20, 8, 8) % 3
    target = classes[:, None] if channels == 1 else (classes[:, None] == np.arange(3)[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(1).normal(size=(20, 1, 8, 8)), y=target)
    with pytest.warns(UserWarning, match=r"target of shape .* whole numbers, .* store shape \(20, 8, 8\)"):
        assert load("arrays", tmp_path / "data.npz").task == "dense-regression"
    assert load("arrays", tmp_path / "data.npz", task="dense-regression").out_channels == channels
    if channels == 1:
        data = load("arrays", tmp_path / "data.npz", task="segmentation")
        assert (data.task, data.classes, tuple(data.train.target.shape[1:])) == (
            "segmentation",
            ("0", "1", "2"),
            (8, 8),
        )


def test_masked_positions_do_not_count_in_the_normalisation(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    x, y = source.normal(3, 2, size=(20, 2, 30)), source.normal(-5, 4, size=(20, 1, 30))
    mask = np.arange(30) < source.integers(10, 30, size=(20, 1))
    x, y = (np.where(mask[:, None], values, -999.0) for values in (x, y))
    np.savez(tmp_path / "data.npz", x=x, y=y, mask=mask)
    data = load("arrays", tmp_path / "data.npz", standardize=True)
    batch = data.train.batch(slice(None))
    for values in (batch.inputs, batch.target):
        seen = values.movedim(1, -1)[batch.mask]
        torch.testing.assert_close(seen.mean(dim=0), torch.zeros(values.shape[1]), rtol=0, atol=1e-5)
        torch.testing.assert_close(seen.std(dim=0, correction=0), torch.ones(values.shape[1]))


def test_mismatched_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1, 8)))
    with pytest.raises(ValueError, match=r"a\.npz must hold inputs and target"):
        load("arrays", tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1, 8)), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"a\.npz must hold 4 samples in target"):
        load("arrays", tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("target", "classes"),
    [
        (np.arange(20)[:, None] % 3, ("0", "1", "2")),  # one column
        (np.array([["no"], ["yes"]] * 10), ("no", "yes")),
        (np.arange(20)[:, None] % 2, ("0", "1")),
        (np.array([b"no", b"yes"] * 10), ("no", "yes")),
        (np.arange(20).astype(">i4") % 3, ("0", "1", "2")),
    ],
)
def test_classes_of_arrays(target: np.ndarray, classes: tuple[str, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 3, 8)), y=target)
    data = load("arrays", tmp_path / "data.npz")
    assert (data.task, data.classes) == ("classification", classes)
    again = labelled_split(data, tmp_path / "data.npz", {"name": "arrays"})
    names = [str(v if isinstance(v, (str, np.integer)) else v.decode()) for v in target.ravel()]
    assert [data.classes[i] for i in again.target] == names


def test_the_preferred_name_of_an_array_counts(tmp_path: Path) -> None:
    x, y = np.ones((20, 3, 8)), np.arange(20) % 2
    np.savez(tmp_path / "data.npz", inputs=x, X=x[:, :1], target=y, labels=y * 0)
    with pytest.warns(UserWarning, match="arrays X, labels are not read"):
        data = load("arrays", tmp_path / "data.npz")
    assert (data.in_channels, data.classes) == (3, ("0", "1"))


@pytest.mark.parametrize(
    ("x", "y", "task", "message"),
    [
        (np.zeros((6, 3, 8)), np.arange(6) / 2, "classification", "whole numbers or names in target .* found 0.5"),
        (np.zeros((6, 3, 8)), np.full(6, np.nan), "classification", "whole numbers or names in target .* found nan"),
        (np.zeros((6, 3, 8)), np.full((6, 2), 2), "multilabel", "zeros and ones for multilabel, found 2 to 2"),
        (np.zeros((6, 3, 8)), np.full((6, 2), "a"), "regression", "finite numbers in target for regression, found <U1"),
        (np.zeros((6, 32, 24, 3)), np.arange(6) % 2, "auto", r"\(6, 32, 24, 3\), whose channels seem to be last"),
        (np.zeros((6, 100, 2)), np.arange(6) % 2, "auto", r"\(6, 100, 2\), whose channels seem to be last"),
        (1.7e9 + np.arange(48.0).reshape(6, 1, 8), np.arange(6) % 2, "auto", "array inputs, .* float32 can tell apart"),
        (np.zeros((6, 3, 8)), 1.7e9 + np.arange(6.0), "auto", "array target, .* float32 can tell apart"),
    ],
)
def test_arrays_of_another_meaning_are_refused(
    x: np.ndarray, y: np.ndarray, task: str, message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", x=x, y=y)
    with pytest.raises(ValueError, match=f"data.npz.*{message}"):
        load("arrays", tmp_path / "data.npz", task=task)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array(["a", "a "] * 10)}, r"t.npz must hold at least two classes, found only 'a'"),
        ({"y": np.array(["a", ""] * 10)}, r"t.npz must hold a label for each sample in target, found ''"),
        ({"y": np.array(["a", np.nan] * 10)}, r"t.npz must hold a label for each sample in target, found 'nan'"),
        ({"mask": np.full((20, 6), np.nan)}, r"t.npz must hold a mask of zeros and ones, found nan"),
        ({"mask": np.full((20, 6), 255)}, r"t.npz must hold a mask of zeros and ones, found 255"),
        ({"mask": np.arange(20)[:, None] * np.ones(6) != 7}, r"t.npz must hold at least one value .* in sample 7"),
        ({"x": np.where(np.arange(20)[:, None, None] == 3, np.nan, np.ones((20, 1, 6)))}, r"at least one .* sample 3"),
    ],
)
def test_labels_masks_and_samples_that_hold_nothing(changes: dict, message: str, tmp_path: Path) -> None:
    whole = {"x": np.random.default_rng(0).normal(size=(20, 1, 6)), "y": np.arange(20) % 2}
    np.savez(tmp_path / "t.npz", **{**whole, **changes})
    with pytest.raises(ValueError, match=message):
        load("arrays", tmp_path / "t.npz")


def test_small_units_are_normalised(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2, 6))
    np.savez(tmp_path / "t.npz", x=np.stack([1e-13 * x[:, 0], np.full((20, 6), 1e-10)], axis=1), y=np.arange(20) % 2)
    found = load("arrays", tmp_path / "t.npz").train.batch(slice(None)).inputs
    assert found[:, 0].std() == pytest.approx(1, abs=0.05)
    assert float(found[:, 1].abs().max()) < 1e-3
    np.savez(tmp_path / "t.npz", x=x, y=1e-14 * x[:, 0, 0])
    with pytest.raises(ValueError, match="target must have a standard deviation above 1e-12, got"):
        load("arrays", tmp_path / "t.npz", standardize=True)


def test_targets_that_are_classes_are_not_normalised(tmp_path: Path) -> None:
    """The option would do nothing. Nor have series without times a unit, whatever the option says."""
    x, y = np.random.default_rng(0).normal(size=(20, 1, 4)), np.arange(20) % 2
    np.savez(tmp_path / "t.npz", x=x, y=y)
    lines = [f"{label},{','.join(map(str, row))}" for label, row in zip(y, x[:, 0], strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["label,0,1,2,3", *lines]))
    for kind, name in (("arrays", "t.npz"), ("csv_series", "t.csv")):
        with pytest.raises(ValueError, match=r"standardize must be False for .* \(classification\)"):
            load(kind, tmp_path / name, standardize=True)
    assert load("csv_series", tmp_path / "t.csv", unit=0.5).unit is None


def test_images_without_an_axis_of_channels_are_announced(tmp_path: Path) -> None:
    for space in ((8, 8), (6, 6, 6)):
        x = np.random.default_rng(0).normal(size=(20, *space))
        np.savez(tmp_path / "t.npz", x=x, y=np.arange(20) % 2)
        with pytest.warns(UserWarning, match=rf"read as {space[0]} channels of size .* have shape \(20, 1, {space[0]}"):
            load("arrays", tmp_path / "t.npz")
        np.savez(tmp_path / "t.npz", x=x[:, None], y=np.arange(20) % 2)
        assert load("arrays", tmp_path / "t.npz").in_channels == 1


def test_arrays_that_are_not_read_are_announced(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2, 6))
    np.savez(tmp_path / "t.npz", x=x, y=np.array(["a", "a ", "b", "b"] * 5), weights=np.arange(20))
    with pytest.warns(UserWarning, match="arrays weights are not read"):
        assert load("arrays", tmp_path / "t.npz").classes == ("a", "b")
    x[:, 1] = np.nan
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(20) % 2)
    with pytest.warns(UserWarning, match="channel 1 of inputs holds no value"):
        load("arrays", tmp_path / "t.npz")
    x[:, 1, 2:] = 1.0
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(20) % 2)
    with pytest.warns(UserWarning, match="40 positions"):
        load("arrays", tmp_path / "t.npz")


def test_series_that_float32_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    rows = [",".join(f"{1.7e9 + (i * j) % 7}" for j in range(6)) for i in range(20)]
    path = tmp_path / "waves.csv"
    path.write_text("\n".join(["label,0,1,2,3,4,5", *(f"{'ab'[i % 2]},{row}" for i, row in enumerate(rows))]))
    with pytest.raises(ValueError, match="series of waves must hold values that float32 can tell apart"):
        load("csv_series", path)


def test_new_samples_are_those_of_the_test_split(tmp_path: Path) -> None:
    """All samples of the training data, read again as new ones, with the metadata alone, hold the test samples."""
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(1).normal(size=(20, 2, 6)), y=np.arange(20) % 2)
    for path in (write_series(tmp_path, ".ts", "waves"), write_series(tmp_path, ".csv", "waves"),
                 write_clouds(tmp_path / "clouds"), tmp_path / "data.npz"):  # fmt: skip
        kind, options = own_data(path)
        data = load(kind, **options)
        split = labelled_split(from_metadata(metadata(data)), path, {"name": kind, **options})
        assert len(split) == len(data.train) + len(data.validation) + len(data.test)
        ours, theirs = split.batch(slice(None)), data.test.batch(slice(None))
        for x, y in zip(theirs.inputs, theirs.target, strict=True):
            same = [i for i in range(len(ours)) if torch.equal(ours.inputs[i], x)]
            assert same
            assert all(torch.equal(ours.target[i], y) for i in same)


def test_new_images_are_resized_to_the_run(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    source = np.random.default_rng(0)
    for name in ("train", "new"):
        side = 8 if name == "train" else 16
        for label in ("dark", "light"):
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(6):
                pixels = source.integers(0, 120, (side, side, 3), dtype=np.uint8) + 120 * (label == "light")
                image.fromarray(pixels.astype(np.uint8)).save(tmp_path / name / label / f"{i}.png")
    data = from_metadata(metadata(load("image_folder", tmp_path / "train")))
    split = labelled_split(data, tmp_path / "new", {"name": "image_folder"})
    assert split.inputs.shape == (12, 3, 8, 8)
    batch = split.batch(slice(None))
    assert torch.equal(batch.inputs.mean(dim=(1, 2, 3)) > 0, batch.target == 1)


def test_new_samples_of_unknown_classes_are_refused(tmp_path: Path) -> None:
    path = write_series(tmp_path, ".csv", "waves")
    data = load("csv_series", path)
    (tmp_path / "other.csv").write_text(path.read_text().replace("\nb,", "\nc,"))
    with pytest.raises(ValueError, match=r"other.csv must hold only the classes of the run, a, b, found 'c'"):
        labelled_split(data, tmp_path / "other.csv", {"name": "csv_series"})

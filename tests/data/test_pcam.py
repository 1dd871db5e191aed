"""PatchCamelyon from files made here, whole and broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield.data import load
from kernelfield.data.sets.images import pcam as module

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = {"train": 7, "valid": 3, "test": 2}
STEM = "camelyonpatch_level_2_split"


@pytest.fixture
def h5py() -> Any:
    return pytest.importorskip("h5py", reason="PatchCamelyon is read with h5py, from the extra 'data'")


def write(h5py: Any, path: Path, key: str, array: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file[key] = array


@pytest.fixture
def root(h5py: Any, tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for part, n in COUNTS.items():
        write(h5py, tmp_path / f"{STEM}_{part}_x.h5", "x", rng.integers(0, 256, (n, 96, 96, 3), dtype=np.uint8))
        write(h5py, tmp_path / f"{STEM}_{part}_y.h5", "y", rng.integers(0, 2, (n, 1, 1, 1), dtype=np.uint8))
    return tmp_path


def test_reads_all_samples(h5py: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 2)  # more than one reading, the last one shorter
    data = load("pcam", root)
    assert [len(s) for s in (data.train, data.validation, data.test)] == list(COUNTS.values())
    assert data.train.inputs.shape == (7, 3, 96, 96)
    assert data.train.inputs.dtype == torch.uint8
    with h5py.File(root / f"{STEM}_test_x.h5") as file:
        assert torch.equal(data.test.inputs[1, 2], torch.from_numpy(file["x"][1, :, :, 2]))
    assert data.train.target.shape == (7,)
    batch = data.train.batch(slice(None)).inputs
    torch.testing.assert_close(batch.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(batch.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_reads_some_samples_from_an_inner_folder(root: Path, tmp_path: Path) -> None:
    inner = tmp_path / "there" / "pcam"
    inner.mkdir(parents=True)
    for file in root.glob("*.h5"):
        file.rename(inner / file.name)
    data = load("pcam", inner.parent, samples=2)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [2, 2, 2]


def test_truncated_files_are_refused(root: Path) -> None:
    path = root / f"{STEM}_valid_x.h5"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"valid_x\.h5 must"):
        load("pcam", root)


def test_other_formats_are_refused(root: Path) -> None:
    (root / f"{STEM}_test_y.h5").write_bytes(b"not this")
    with pytest.raises(ValueError, match=r"test_y\.h5 must"):
        load("pcam", root)


@pytest.mark.parametrize(
    ("kind", "key", "array", "message"),
    [
        (
            "x",
            "images",
            np.zeros((7, 96, 96, 3), np.uint8),
            ".*found im",
        ),
        ("x", "x", np.zeros((7, 64, 96, 3), np.uint8), r"found uint8 \(7, 64, 96, 3\)"),
        ("x", "x", np.zeros((7, 96, 96, 3), np.float32), "found float32"),
        ("x", "x", np.zeros((0, 96, 96, 3), np.uint8), "at least one sample"),
        ("y", "y", np.zeros((6, 1, 1, 1), np.uint8), "one label for each of 7 patches, found 6"),
        ("y", "y", np.full((7, 1, 1, 1), 2, np.uint8), "labels of 0 and 1, found 2"),
    ],
)
def test_other_contents_are_refused(
    h5py: Any, root: Path, kind: str, key: str, array: np.ndarray, message: str
) -> None:
    write(h5py, root / f"{STEM}_train_{kind}.h5", key, array)
    with pytest.raises(ValueError, match=message):
        load("pcam", root)


def test_packed_and_missing_files_are_refused(root: Path) -> None:
    path = root / f"{STEM}_test_y.h5"
    path.rename(path.with_name(path.name + ".gz"))
    with pytest.raises(ValueError, match="unpack it"):
        load("pcam", root)
    path.with_name(path.name + ".gz").unlink()
    with pytest.raises(ValueError, match=r"test_y.h5"):
        load("pcam", root)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in COUNTS:
        for kind in "xy":
            (tmp_path / f"{STEM}_{part}_{kind}.h5").touch()
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match=r"kernelfield\[data\]"):
        load("pcam", tmp_path)

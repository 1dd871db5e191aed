"""Recordings of motors in MAT files: valid, truncated, mislabelled and reshaped ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.io.mat import read_mat
from kernelfield.data.sets.series.bearings import bearing_faults
from kernelfield.models import create_model
from kernelfield.testing import count_parameters

if TYPE_CHECKING:
    from pathlib import Path

scipy_io = pytest.importorskip("scipy.io")
RNG = np.random.default_rng(0)
SMALL = {"length": 50, "validation": 0.25}


def clip(n: int = 60) -> np.ndarray:
    return RNG.normal(3.0, 2.0, (6, n))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for part, count in (("train", 6), ("test", 3)):
        for name in ("healthy", "faulty"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                # One matrix, time along either axis; or one vector for each channel.
                values = clip()
                held = {"data": values if i % 2 else values.T, "note": "text", "rate": 20_000.0}
                if i == 2:
                    held = {f"channel_{c}": values[c] for c in range(6)}
                scipy_io.savemat(folder / f"{i}.mat", held, do_compression=i % 2 == 0)
    return tmp_path


def test_recordings_are_read_in_every_layout(root: Path) -> None:
    data = bearing_faults(root, **SMALL)
    assert (len(data.train), len(data.validation), len(data.test)) == (9, 3, 6)
    assert data.test.target.tolist() == [0, 0, 0, 1, 1, 1]
    batch = data.train.batch(slice(None))
    assert batch.inputs.shape == (9, 6, 50)
    torch.testing.assert_close(batch.inputs.mean(dim=(0, 2)), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.inputs.std(dim=(0, 2)), torch.ones(6), atol=1e-2, rtol=0)
    whole = scipy_io.loadmat(root / "test" / "healthy" / "0.mat")["data"]
    torch.testing.assert_close(data.test.inputs[0], torch.from_numpy(whole.T[:, :50]).float())


def test_variables_are_chosen_by_the_end_of_their_names(root: Path) -> None:
    for path in root.rglob("*.mat"):
        values = {f"X097_{end}_time": clip()[0].reshape(-1, 1) for end in ("BA", "DE", "FE")}
        scipy_io.savemat(path, {**values, "X097RPM": 1797.0})
    data = bearing_faults(root, variables=["FE_time", "DE_time"], channels=2, **SMALL)
    held = read_mat(root / "test" / "healthy" / "0.mat")
    wanted = np.stack([held["X097_FE_time"][:50, 0], held["X097_DE_time"][:50, 0]])
    torch.testing.assert_close(data.test.inputs[0], torch.from_numpy(wanted).float())
    with pytest.raises(ValueError, match=r"0\.mat must hold one variable whose name ends in 'GE_time'"):
        bearing_faults(root, variables=["GE_time"], channels=1, **SMALL)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"data": clip(40)}, "at least 50 samples"),
        ({"data": clip()[:5]}, "6 channels"),
        ({"data": clip(), "more": clip()}, "6 channels"),
        ({"data": "text"}, "6 channels"),
        ({"data": np.where(clip() > 4, np.inf, 0.0)}, "finite"),
        ({"data": np.where(clip() > 4, np.nan, 0.0)}, "finite"),
        ({"data": clip() + 1j}, "6 channels"),
    ],
    ids=["short", "few", "many", "text", "infinite", "missing", "complex"],
)
def test_other_contents_are_refused_by_the_name_of_the_file(root: Path, held: dict, message: str) -> None:
    scipy_io.savemat(root / "train" / "faulty" / "3.mat", held)
    with pytest.raises(ValueError, match=rf"3\.mat must .*{message}"):
        bearing_faults(root, **SMALL)


def test_damaged_files_are_refused_by_name(root: Path) -> None:
    path = root / "train" / "healthy" / "1.mat"
    content = path.read_bytes()
    for damaged in (content[:-100], content[:60], b"", b"MATLAB 7.3 MAT-file" + content[19:], b"\x00" * 400):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"1\.mat must"):
            bearing_faults(root, **SMALL)


def test_folders_name_the_classes(root: Path) -> None:
    (root / "test" / "faulty").rename(root / "test" / "broken")
    with pytest.raises(ValueError, match=r"test must hold a folder 'faulty'"):
        bearing_faults(root, **SMALL)
    with pytest.raises(ValueError, match=r"\bvalidation must"):
        bearing_faults(root, length=50, validation=1.0)
    with pytest.raises(ValueError, match=r"\broot must"):
        bearing_faults(root / "nowhere")


@pytest.mark.parametrize(("name", "count"), [("m11", 1_805_696), ("w11", 1_823_250)])
def test_published_sizes(name: str, count: int) -> None:
    assert count_parameters(create_model(name, in_channels=6, out_channels=2)) == count

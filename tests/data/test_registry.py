"""Data by name: every entry described, options checked, downloads only with checksums."""

from __future__ import annotations

import pickle
import re
import sys
import tarfile
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield.data import describe, list_data, load, register, registry
from kernelfield.data.io import files

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "copy_memory": {"train": 4, "T": 5},
    "adding": {"train": 4, "T": 5},
    "chirps": {"train": 4},
    "oscillators": {"train": 4},
    "shapes": {"train": 4, "resolution": 8},
    "listops": {"train": 4, "validation": 1, "test": 2, "min_length": 4, "max_length": 30},
    "pathfinder": {"train": 4, "validation": 1, "test": 2, "resolution": 24},
    "darcy_synthetic": {"train": 4, "validation": 1, "test": 2, "resolution": 8, "solve_at": 8},
}


@pytest.mark.parametrize("name", list_data())
def test_every_entry_documents_its_source(name: str) -> None:
    said = describe(name)
    assert said.summary
    for what in (said.source, said.licence, said.split, said.normalisation):
        assert what.endswith(".")
        assert "`" not in what
    assert said.download == ("download" in registry._ENTRIES[name].takes)


@pytest.mark.parametrize("name", [n for n in list_data() if describe(n).root != "a folder or file"])
def test_synthetic_sets_need_no_files(name: str) -> None:
    data = load(name, **SMALL.get(name, {}))
    # Splits travel to other processes as they are.
    again = pickle.loads(pickle.dumps(data.train))
    assert torch.equal(again.batch(slice(0, 2)).inputs, data.train.batch(slice(0, 2)).inputs)


@pytest.mark.parametrize("name", [n for n in list_data() if describe(n).root == "a folder or file"])
def test_sets_of_files_ask_for_a_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\broot must"):
        load(name)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        load(name, tmp_path)
    with pytest.raises(ValueError, match=r"\broot must"):
        load(name, tmp_path / "nowhere")


def test_names_and_options() -> None:
    with pytest.raises(ValueError, match=r"\bname must"):
        load("cifar")
    with pytest.raises(TypeError, match="'mnist' takes no option 'sequnce'; the closest is 'sequence'"):
        load("mnist", sequnce=True)
    with pytest.raises(ValueError, match=r"\broot must"):
        load("digits", "x")
    with pytest.raises(ValueError, match=r"\bdownload must"):
        load("physionet2012", "x", download=True)
    with pytest.raises(ValueError, match=r"\bname must"):
        register("digits", load, "again")
    assert describe("pmnist").options["permute"] == 0
    assert describe("mnist").options["permute"] is None


def fake_pooch(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a pooch in place that only takes notes."""
    calls: list[dict[str, Any]] = []

    def retrieve(url: str, **rest: Any) -> None:
        calls.append({"url": url, **rest})
        if rest["fname"].endswith(".tar.gz"):
            with tarfile.open(rest["path"] / rest["fname"], "w:gz") as tar:
                tar.add(__file__, "inside/file.py")

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    return calls


@pytest.mark.parametrize("name", [n for n in list_data() if describe(n).download])
def test_downloads_have_checksums(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_pooch(monkeypatch)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "new"))):  # nothing was really fetched
        load(name, tmp_path / "new", download=True)
    assert calls
    for call in calls:
        kind, _, digits = call["known_hash"].partition(":")
        assert len(digits) == {"md5": 32, "sha256": 64}[kind]
        assert call["url"].startswith("http")
        assert call["path"] == tmp_path / "new"
        assert call["url"].endswith(call["fname"])
        assert (tmp_path / "new" / "inside" / "file.py").exists() == call["fname"].endswith(".tar.gz")


def test_downloads_need_pooch_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"\broot must"):
        load("mnist", download=True)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'kernelfield\[data\]'"):
        files.fetch(tmp_path, [("http://localhost/a", "md5:0")])


def test_existing_files_are_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    for name in ("a", "b"):
        (tmp_path / name).touch()
    files.fetch(tmp_path, [("http://localhost/a", "md5:0")], unless=["a", "b"])


def test_archives_stay_in_their_folder(tmp_path: Path) -> None:
    where, archive = tmp_path / "where", tmp_path / "bad.tar"
    where.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(__file__, "../outside.py")
    with pytest.raises(ValueError, match=r"bad.tar .*found '../outside.py'"):
        files.untar(archive, where)
    assert not (tmp_path / "outside.py").exists()
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"bad.tar must"):
        files.untar(archive, where)

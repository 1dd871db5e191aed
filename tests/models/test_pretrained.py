"""Pretrained weights: every file that ships, the format, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelfield import create_model, list_models
from kernelfield.data import describe, preprocessing
from kernelfield.experiments.datasets import synthetic_data
from kernelfield.experiments.run import make_task
from kernelfield.experiments.weight import weight_recipe, weight_score
from kernelfield.models import pretrained
from kernelfield.models.pretrained import catalog, describe_weight, find_weight, read_weight, write_weight
from kernelfield.models.pretrained.weight_file import ENTRIES

pytest.importorskip("safetensors")

ROOT = Path(__file__).parents[2]
NAMES = list_models(pretrained=True)
#: environment variable: folder of the data's files, with a folder for each data set in it
DATA = "KERNELFIELD_DATA"


def folder_of(name: str) -> str | None:
    """Return the folder of the files of a weight's data; None if it needs none; skip the test if it is missing."""
    data = weight_recipe(name).data["name"]
    if describe(data).root == "nothing":
        return None
    base = Path(os.environ.get(DATA, ROOT / ".data"))
    known = ("mnist",) if data.endswith("mnist") else (data, f"small/{data}")
    found = [base / place for place in known if (base / place).exists()]
    if not found:
        pytest.skip(f"the files of {data} are not in {base}")
    return str(found[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of weights of the user's, with one file in it."""
    monkeypatch.setenv(catalog.FOLDERS, str(tmp_path))
    shutil.copy(find_weight("ckcnn_copy.copy_100"), tmp_path / "ckcnn_copy.mine.safetensors")
    return tmp_path


class TestShipped:
    def test_there_are_some_and_they_are_small(self) -> None:
        files = list((ROOT / "weights").glob("*.safetensors"))
        assert len(files) >= 20
        assert sum(file.stat().st_size for file in files) < 64 * 2**20

    def test_every_system_has_one(self) -> None:
        models = {name.partition(".")[0].partition("_")[0] for name in NAMES}
        # Chapters 2 to 6; 7 to 9; 10 and 11.
        assert {"ckcnn", "ccnn", "gridified", "flextcn", "dnarch"} <= models
        assert {"dren", "p4cnn", "gsanet"} <= models
        assert {"w5", "partial"} <= models

    @pytest.mark.parametrize("name", NAMES)
    def test_loads_and_predicts(self, name: str) -> None:
        net = create_model(name, pretrained=True).eval()  # compares the checksum
        recipe = weight_recipe(name)
        batch = synthetic_data(recipe.shape, samples=1).test.batch(slice(0, 1))
        with torch.no_grad():
            y = make_task(recipe, net)(batch)
        assert y.isfinite().all()
        assert y.shape[1] == recipe.shape.out_channels

    @pytest.mark.parametrize("name", NAMES)
    def test_description_is_complete(self, name: str) -> None:
        described = describe_weight(name)
        assert set(ENTRIES) <= set(described)
        assert described["name"] == name == f"{described['model']}.{name.partition('.')[2]}"
        assert {"metric", "value", "split", "samples", "first"} <= set(described["score"])
        assert {"seed", "epochs", "device"} <= set(described["training"])
        assert "/" not in described["recipe"]["training"]["start_from"]  # no folder of another machine
        if described["task"] == "classification":
            assert len(described["classes"]) == described["arguments"].get("out_channels", 10)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", NAMES)
    def test_score_is_reproduced(self, name: str) -> None:
        found, recorded = weight_score(name, folder=folder_of(name))
        assert found == pytest.approx(recorded, rel=2e-3, abs=1e-6)


class TestNames:
    def test_a_model_stands_for_its_default_weight(self, folder: Path) -> None:
        assert find_weight("flextcn_2").name == "flextcn_2.smnist.safetensors"
        assert find_weight("ckcnn_copy").name == "ckcnn_copy.copy_100.safetensors"
        described, tensors = read_weight(folder / "ckcnn_copy.mine.safetensors")
        write_weight(folder / "ckcnn_copy.mine.safetensors", tensors, {**described, "default": True})
        assert find_weight("ckcnn_copy") == folder / "ckcnn_copy.mine.safetensors"

    def test_an_unknown_tag_lists_near_ones(self) -> None:
        with pytest.raises(ValueError, match=r"name .*'flextcn_2\.smnst'.*'flextcn_2\.smnist'"):
            create_model("flextcn_2.smnst", pretrained=True)
        with pytest.raises(ValueError, match=r"name .*'ckcnn_copy\.zzz'.*'ckcnn_copy\.copy_100'"):
            create_model("ckcnn_copy.zzz", pretrained=True)
        with pytest.raises(ValueError, match=r"pretrained .*'p4cnn_19'.*'p4cnn\.rotdigits_small'"):
            create_model("p4cnn_19", pretrained=True)
        with pytest.raises(ValueError, match=r"name .*'p4cmn'.*'p4cnn\.rotdigits_small'"):
            create_model("p4cmn", pretrained=True)
        with pytest.raises(ValueError, match=r"name .*'scifar'.*'ccnn_4_140\.scifar10'"):
            create_model("scifar", pretrained=True)
        with pytest.raises(ValueError, match=r"name .*'zzz\.zzz'; kernelfield list weights"):
            create_model("zzz.zzz", pretrained=True)

    def test_own_folders_come_first(self, folder: Path) -> None:
        assert "ckcnn_copy.mine" in list_models(pretrained=True)
        shutil.copy(find_weight("flextcn_2.smnist"), folder)
        assert find_weight("flextcn_2.smnist").parent == folder

    def test_an_installed_package_finds_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = tmp_path / "site-packages" / "kernelfield"
        (installed / "weights").mkdir(parents=True)
        shutil.copy(find_weight("ckcnn_copy.copy_100"), installed / "weights")
        monkeypatch.setattr(catalog, "_PACKAGE", installed)
        monkeypatch.delenv(catalog.FOLDERS, raising=False)
        assert list_models(pretrained=True) == ["ckcnn_copy.copy_100"]
        assert create_model("ckcnn_copy", pretrained=True).pretrained_config["name"] == "ckcnn_copy.copy_100"

    def test_wheels_and_archives_hold_the_weights(self) -> None:
        tomllib = pytest.importorskip("tomllib")
        targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
        assert targets["targets"]["wheel"]["force-include"] == {"weights": "kernelfield/weights"}
        assert "weights" in targets["targets"]["sdist"]["include"]

    def test_a_tag_without_pretrained_builds_a_fresh_network(self) -> None:
        torch.manual_seed(0)
        fresh = create_model("flextcn_2.smnist")
        trained = create_model("flextcn_2.smnist", pretrained=True)
        assert fresh.state_dict().keys() == trained.state_dict().keys()
        assert not torch.equal(fresh.readout.linear.weight, trained.readout.linear.weight)
        assert create_model("flextcn_2.smnist", num_classes=4).num_classes == 4


class TestOverrides:
    def test_another_number_of_classes_says_what_to_do(self) -> None:
        with pytest.raises(ValueError, match=r"out_channels .*num_classes=5 .*reset_classifier\(5\)"):
            create_model("flextcn_2.smnist", pretrained=True, out_channels=5)
        with pytest.raises(ValueError, match="num_classes"):
            create_model("flextcn_2.smnist", pretrained=True, out_channels=10, num_classes=5)

    @torch.no_grad()
    def test_num_classes_loads_all_but_the_classifier(self) -> None:
        full = create_model("flextcn_2.smnist", pretrained=True).eval()
        other = create_model("flextcn_2.smnist", pretrained=True, num_classes=5).eval()
        x = torch.randn(1, 1, 784)
        assert other(x).shape == (1, 5)
        torch.testing.assert_close(other.forward_features(x), full.forward_features(x))
        assert other.pretrained_config["classes"] == []
        assert preprocessing(other).classes == ()

    def test_a_new_classifier_has_no_class_names(self) -> None:
        net = create_model("flextcn_2.smnist", pretrained=True)
        net.reset_classifier(10)
        assert preprocessing(net).classes == ()
        assert preprocessing(create_model("flextcn_2.smnist", out_channels=3)).classes == ()
        assert preprocessing(create_model("flextcn_2.smnist", pretrained=True)).classes == tuple("0123456789")

    @pytest.mark.parametrize(("argument", "value"), [("size", 100), ("in_channels", 3), ("dim", 2)])
    def test_another_input_is_refused_by_name(self, argument: str, value: int) -> None:
        with pytest.raises(ValueError, match=f"{argument} must be .*preprocessing"):
            create_model("flextcn_2.smnist", pretrained=True, **{argument: value})

    def test_other_arguments_are_free_where_the_weights_fit(self) -> None:
        create_model("ckcnn_copy.copy_100", pretrained=True, dropout=0.5)
        with pytest.raises(ValueError, match=r"ckcnn_copy\.copy_100\.safetensors .*blocks"):
            create_model("ckcnn_copy.copy_100", pretrained=True, channels=20)


class TestDamage:
    @pytest.mark.parametrize("where", [0.1, 0.5, 0.999])
    def test_a_changed_byte_is_refused_with_the_name_of_the_file(self, folder: Path, where: float) -> None:
        path = folder / "ckcnn_copy.mine.safetensors"
        content = bytearray(path.read_bytes())
        content[int(where * len(content))] ^= 0x01
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"ckcnn_copy\.mine\.safetensors"):
            create_model("ckcnn_copy.mine", pretrained=True)

    @pytest.mark.parametrize("size", [0, 7, 100, 60_000])
    def test_a_short_file_is_refused(self, folder: Path, size: int) -> None:
        path = folder / "ckcnn_copy.mine.safetensors"
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match=r"ckcnn_copy\.mine\.safetensors is damaged"):
            create_model("ckcnn_copy.mine", pretrained=True)

    def test_a_file_of_another_program_is_refused(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file  # noqa: PLC0415

        save_file({"a": torch.zeros(2)}, tmp_path / "a.b.safetensors")
        with pytest.raises(ValueError, match=r"a\.b\.safetensors must be a weight file"):
            read_weight(tmp_path / "a.b.safetensors")

    @pytest.mark.parametrize("entry", ENTRIES)
    def test_an_incomplete_description_is_not_written(self, tmp_path: Path, entry: str) -> None:
        described = {key: value for key, value in describe_weight("ckcnn_copy.copy_100").items() if key != entry}
        with pytest.raises(ValueError, match=entry):
            write_weight(tmp_path / "a.b.safetensors", {}, described)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_of_every_kind_return(tmp_path: Path, dtype: torch.dtype) -> None:
    described: dict[str, Any] = describe_weight("ckcnn_copy.copy_100")
    weight = torch.arange(6).view(2, 3).to(dtype)
    tensors = {"scalar": weight[0, 1], "tied": weight, "also": weight, "view": weight.T, "empty": weight[:0]}
    _, read = pretrained.read_weight(write_weight(tmp_path / "a.b.safetensors", tensors, described))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[key], tensors[key]) for key in tensors)

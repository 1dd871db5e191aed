"""Networks in folders of the hub's layout, and what is refused."""

from __future__ import annotations

import json
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

import kernelfield as kf
from kernelfield.data import preprocessing

pytest.importorskip("safetensors")

if TYPE_CHECKING:
    from pathlib import Path


@torch.no_grad()
def same(a: torch.nn.Module, b: torch.nn.Module, x: torch.Tensor) -> bool:
    return torch.equal(a.eval()(x), b.eval()(x))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return kf.create_model("ckcnn_2_30", in_channels=1, out_channels=3, size=16, channels=4, hidden=4).save_pretrained(
        tmp_path / "net"
    )


class FakeHub(types.ModuleType):
    """A hub whose repositories are folders."""

    def __init__(self, repositories: dict[str, str]) -> None:
        super().__init__("huggingface_hub")
        self.repositories = repositories
        self.uploaded: list[dict[str, Any]] = []

    def snapshot_download(self, *, repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert allow_patterns == ["config.json", "model.safetensors"]
        return self.repositories[repo_id]

    def HfApi(self) -> FakeHub:
        return self

    def create_repo(self, repo_id: str, *, exist_ok: bool) -> Any:
        return types.SimpleNamespace(repo_id=f"me/{repo_id}")

    def upload_folder(self, **options: Any) -> None:
        self.uploaded.append(options)


class TestFolders:
    def test_round_trip_of_a_pretrained_network(self, tmp_path: Path) -> None:
        net = kf.create_model("flextcn_2.smnist", pretrained=True)
        folder = kf.save_pretrained(net, tmp_path / "net")
        back = kf.from_pretrained(folder)
        assert same(net, back, torch.randn(1, 1, 784))
        assert preprocessing(back).classes == tuple("0123456789")
        assert kf.from_pretrained(kf.save_pretrained(back, tmp_path / "again")).pretrained_config["name"] == (
            "flextcn_2.smnist"
        )

    def test_round_trip_after_another_classifier(self, tmp_path: Path) -> None:
        net = kf.create_model("flextcn_2.smnist", pretrained=True, num_classes=4)
        back = kf.FlexTCN.from_pretrained(net.save_pretrained(tmp_path / "net"))
        assert same(net, back, torch.randn(1, 1, 784))
        assert (back.num_classes, back.pretrained_config["classes"]) == (4, [])
        assert preprocessing(back).classes == ()

    @torch.no_grad()
    def test_a_score_stays_with_the_tensors_that_have_it(self, tmp_path: Path) -> None:
        net = kf.create_model("flextcn_2.smnist", pretrained=True)
        kept = kf.from_pretrained(net.save_pretrained(tmp_path / "same")).pretrained_config
        assert kept["score"] == net.pretrained_config["score"]
        for changed in (kf.create_model("flextcn_2.smnist"), kf.from_pretrained(tmp_path / "same")):
            next(changed.parameters()).add_(0.1)
            saved = kf.from_pretrained(changed.save_pretrained(tmp_path / "changed"))
            assert not {"score", "training", "recipe", "name"} & {*saved.pretrained_config}
            assert saved.pretrained_config["started_from"] == "flextcn_2.smnist"
            assert preprocessing(saved).classes == tuple("0123456789")
            again = kf.from_pretrained(saved.save_pretrained(tmp_path / "again")).pretrained_config
            assert again["started_from"] == "flextcn_2.smnist"

    def test_fields_and_groups_by_name(self, tmp_path: Path) -> None:
        net = kf.create_model("p4cnn", group="Cyclic(2)", channels=3)
        assert same(net, kf.from_pretrained(kf.save_pretrained(net, tmp_path)), torch.randn(1, 1, 28, 28))
        with pytest.raises(ValueError, match="group"):
            kf.save_pretrained(kf.create_model("p4cnn", group=kf.groups.Cyclic(2)), tmp_path)

    def test_num_classes_replaces_the_classifier(self, saved: Path) -> None:
        assert kf.from_pretrained(saved, num_classes=7).num_classes == 7
        with pytest.raises(ValueError, match=r"out_channels .*num_classes"):
            kf.from_pretrained(saved, out_channels=7)

    def test_networks_that_cannot_be_rebuilt_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="network must come from create_model"):
            kf.save_pretrained(kf.CCNN(1, 2, size=8, channels=4, blocks=1, hidden=4), tmp_path)
        net = kf.create_model("p4cnn", channels=3)
        net.reset_classifier(0)
        with pytest.raises(ValueError, match="classifier"):
            kf.save_pretrained(net, tmp_path)

    def test_another_class_is_refused_by_name(self, saved: Path) -> None:
        with pytest.raises(TypeError, match=r"GCNN.*CKCNN"):
            kf.GCNN.from_pretrained(saved)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_missing_file_is_named(self, saved: Path, name: str) -> None:
        (saved / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            kf.from_pretrained(saved)

    def test_damage_is_refused_with_the_name_of_the_file(self, saved: Path) -> None:
        content = bytearray((saved / "model.safetensors").read_bytes())
        content[-3] ^= 1
        (saved / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            kf.from_pretrained(saved)
        (saved / "config.json").write_text("{", encoding="utf-8")
        with pytest.raises(ValueError, match=r"config\.json is damaged"):
            kf.from_pretrained(saved)
        (saved / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
        with pytest.raises(ValueError, match=r"config\.json must name a model"):
            kf.from_pretrained(saved)

    def test_a_stored_name_imports_nothing(self, saved: Path) -> None:
        config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
        (saved / "config.json").write_text(json.dumps({**config, "model": "os:system"}), encoding="utf-8")
        with pytest.raises(ValueError, match="not imported"):
            kf.from_pretrained(saved)


class TestHub:
    def test_downloads_a_repository(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub({"someone/net": str(saved)}))
        assert same(kf.from_pretrained("someone/net"), kf.from_pretrained(saved), torch.randn(1, 1, 16))
        with pytest.raises(OSError, match="'someone/other'"):
            kf.from_pretrained("someone/other")

    def test_uploads_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hub = FakeHub({})
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        net = kf.create_model("p4cnn", channels=3)
        kf.save_pretrained(net, tmp_path / "net", push_to_hub=True, commit_message="first")
        where = {"folder_path": str(tmp_path / "net"), "repo_id": "me/net", "commit_message": "first"}
        assert hub.uploaded == [{**where, "allow_patterns": ["config.json", "model.safetensors"]}]

    def test_options_of_an_upload_need_one(self, tmp_path: Path) -> None:
        net = kf.create_model("p4cnn", channels=3)
        for options in ({"push_to_hubb": True}, {"repo_id": "me/net"}):
            with pytest.raises(TypeError, match=rf"push_to_hub .*{next(iter(options))}"):
                kf.save_pretrained(net, tmp_path, **options)

    def test_without_the_package_a_folder_works_and_the_hub_is_refused(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        kf.from_pretrained(saved)
        with pytest.raises(ModuleNotFoundError, match=r"huggingface_hub.*kernelfield\[hub\]"):
            kf.from_pretrained("someone/net")
        with pytest.raises(ModuleNotFoundError, match="push_to_hub"):
            kf.save_pretrained(kf.from_pretrained(saved), saved, push_to_hub=True)

    @pytest.mark.parametrize("path", ["nowhere", "a/b/c", "../up", ""])
    def test_what_is_no_folder_and_no_repository_is_refused(self, path: str) -> None:
        with pytest.raises((FileNotFoundError, ValueError), match="path"):
            kf.from_pretrained(path)


def test_without_safetensors_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"safetensors.*kernelfield\[hub\]"):
        kf.create_model("flextcn_2.smnist", pretrained=True)

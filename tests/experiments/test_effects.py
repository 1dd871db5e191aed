"""Settings that do nothing: refused if the user gave them, announced if a recipe inherits them."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield.experiments import fit
from kernelfield.experiments.effects import ALWAYS, CHECKED, check_effects, effective, without_effect
from kernelfield.experiments.recipe import TESTS, Recipe, read_recipe, recipe_from, with_settings
from kernelfield.experiments.regularizers import REGULARIZERS, missing_part, read_penalties
from kernelfield.experiments.run import make_network, make_task
from kernelfield.experiments.settings import Optimizer, Schedule, Training
from kernelfield.experiments.task import Task

from ..commands import call
from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path

SERIES, IMAGES = [16], [9, 9]
_SMALL = {"channels": 4, "blocks": 1, "hidden": 4}
_GROUP = {"channels": [2, 2, 2, 2], "kernel_size": 3}
#: small networks by the part that they have or lack, each with the size of its inputs
NETWORKS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "masks": (SERIES, {"name": "ccnn_4_140", **_SMALL, "sigma": 0.2}),
    "no masks": (SERIES, {"name": "ccnn_4_140", **_SMALL, "sigma": None}),
    "images": (IMAGES, {"name": "ccnn_4_140", **_SMALL}),
    "image data": (IMAGES, {"name": "ccnn_4_140", **_SMALL}),
    "siren": (SERIES, {"name": "ckcnn_2_30", "channels": 4, "hidden": 4, "norm": "layer"}),
    "architecture": (SERIES, {"name": "dnarch_4_140", **_SMALL, "budget": 1.0}),
    "fixed architecture": (SERIES, {"name": "dnarch_4_140", **_SMALL, "budget": 1.0, "learn": []}),
    "partial": (IMAGES, {"name": "partial_gcnn_se2", "samples": 2, **_GROUP}),
    "full": (IMAGES, {"name": "full_gcnn_se2", "samples": 2, **_GROUP}),
    "mirror": (IMAGES, {"name": "partial_gcnn_mirror", **_GROUP}),
    "augerino": (IMAGES, {"name": "augerino_se2", "samples": 2, **_GROUP}),
    "wavelets": ([64], {"name": "w3", "stages": [[2, 9], [2, 3, 3]], "scales": 3}),
    "no wavelets": ([64], {"name": "m3", "stages": [[2, 9], [2, 3]]}),
    "no kernels": ([28, 28], {"name": "gsanet_rotmnist_z2"}),
}
#: setting without effect: its value, further settings, the network that lacks the part, and one that has it
CASES: dict[str, tuple[str, list[str], str, str]] = {
    "optimizer.mask_lr": ("0.5", [], "no masks", "masks"),
    "optimizer.subset_lr": ("0.5", [], "full", "partial"),
    "optimizer.weight_decay": ("0.5", ["optimizer.decayed=[subsets]"], "full", "partial"),
    "optimizer.decayed": ("[weights, masks]", ["optimizer.weight_decay=0.5"], "no masks", "masks"),
    "schedule.final": ("0.5", ["schedule.name=constant"], "masks", ""),
    "schedule.factor": ("0.5", [], "masks", ""),
    "schedule.patience": ("5", [], "masks", ""),
    "schedule.milestones": ("[1]", [], "masks", ""),
    "schedule.monitor": ("loss", [], "masks", ""),
    "schedule.split": ("train", [], "masks", ""),
    "training.norm_batches": ("5", [], "siren", "masks"),
    "training.patience": ("5", [], "masks", ""),
    "training.average_last": ("3", [], "masks", ""),
    "training.temperature": ("[0.5, 0.1]", [], "partial", "mirror"),
    "data.padding": ("symmetric", [], "image data", ""),
    "data.noise": ("shared", [], "image data", ""),
    "data.unit": ("0.5", ["data.name=csv_series"], "masks", ""),
    "model.kernel_dropout": ("0.1", ["shape.irregular=true"], "masks", ""),
    "test.step": ("[2.0]", [], "partial", "masks"),
    "test.drop": ("0.5", [], "partial", "masks"),
    "test.turn": ("[90]", [], "masks", "images"),
    "test.speed": ("0.7", [], "images", "masks"),
    "regularizers.kernel_l2": ("0.1", [], "no kernels", "full"),
    "regularizers.kernel_norm": ("{weight: 0.1, parameters: biases}", [], "no kernels", "full"),
    "regularizers.aliasing": ("0.1", [], "siren", "masks"),
    "regularizers.augerino": ("0.1", [], "partial", "augerino"),
    "regularizers.monotonicity": ("0.1", [], "full", "partial"),
    "regularizers.complexity": ("0.1", [], "fixed architecture", "architecture"),
    "regularizers.wavelet": ("0.1", [], "no wavelets", "wavelets"),
}
#: cases in which another setting would give the setting an effect
OTHER_SETTINGS = {
    "data.padding": ["data.augment=true"],
    "data.noise": ["data.name=npcifar10"],
    "model.kernel_dropout": [],  # on a grid
    "schedule.final": ["schedule.name=cosine"],
    "schedule.factor": ["schedule.name=plateau"],
    "schedule.patience": ["schedule.name=plateau"],
    "schedule.milestones": ["schedule.name=steps"],
    "schedule.monitor": ["schedule.name=plateau"],
    "schedule.split": ["schedule.name=plateau", "schedule.monitor=loss"],
    "training.average_last": ["training.select=average"],
}
#: settings that the settings themselves refuse beside another schedule
REFUSED_ALONE = ("schedule.final", "schedule.milestones", "schedule.monitor", "schedule.split")


def recipe_with(part: str) -> Recipe:
    size, model = NETWORKS[part]
    shape = {"in_channels": 1, "out_channels": 3, "size": size}
    data = "cifar10" if part == "image data" else "digits"
    mapping = {"name": "a", "data": {"name": data}, "shape": shape, "model": model, "training": {"epochs": 3}}
    return recipe_from(mapping)


def without_validation() -> Any:
    return replace(small_data(), validation=None)


def test_every_setting_of_a_training_is_known_to_act_or_checked() -> None:
    sections = {"optimizer": Optimizer, "schedule": Schedule, "training": Training}
    settings = {f"{name}.{f.name}" for name, kind in sections.items() for f in dataclasses.fields(kind)}
    settings |= {f"test.{kind}" for kind in TESTS} | {"regularizers", "metric"}
    # Other options of loaders and arguments of networks act alone, or the loader or the network refuses them.
    settings |= {"data.padding", "data.noise", "data.unit", "model.kernel_dropout"}
    assert settings == CHECKED | ALWAYS
    assert not CHECKED & ALWAYS
    assert set(CASES) == CHECKED - {"regularizers"} | {f"regularizers.{name}" for name in REGULARIZERS}


@pytest.mark.parametrize("key", CASES)
def test_a_given_setting_without_effect_is_refused(key: str) -> None:
    value, others, lacking, _ = CASES[key]
    recipe, data = recipe_with(lacking), without_validation() if key == "training.patience" else small_data()
    with pytest.raises(ValueError, match=rf"\b{key} must"):
        check_effects(with_settings(recipe, [f"{key}={value}", *others]), make_network(recipe), data)


@pytest.mark.parametrize("key", [key for key in CASES if key not in REFUSED_ALONE])
def test_an_inherited_setting_without_effect_is_announced(key: str) -> None:
    value, others, lacking, _ = CASES[key]
    recipe, data = recipe_with(lacking), without_validation() if key == "training.patience" else small_data()
    inherited = replace(with_settings(recipe, [f"{key}={value}", *others]), given=frozenset())
    network = make_network(recipe)
    (line,) = check_effects(inherited, network, data)
    assert line.startswith(f"without effect: {key} (")
    make_task(inherited, network, data)
    assert check_effects(effective(inherited, network, data), network, data) == []


@pytest.mark.parametrize("key", [key for key in CASES if CASES[key][3]])
def test_a_setting_acts_on_a_network_with_the_part(key: str) -> None:
    value, others, _, having = CASES[key]
    recipe = with_settings(recipe_with(having), [f"{key}={value}", *others])
    assert check_effects(recipe, make_network(recipe), small_data()) == []


@pytest.mark.parametrize("key", OTHER_SETTINGS)
def test_a_setting_acts_beside_the_setting_that_it_needs(key: str) -> None:
    value, _, part, _ = CASES[key]
    recipe = with_settings(recipe_with(part), [f"{key}={value}", *OTHER_SETTINGS[key]])
    assert check_effects(recipe, make_network(recipe), small_data()) == []


@pytest.mark.parametrize("part", NETWORKS)
def test_defaults_and_zero_weights_are_never_refused(part: str) -> None:
    plain = recipe_with(part)
    settings = [f"regularizers.{name}=0" for name in REGULARIZERS]
    settings += ["optimizer.mask_lr=1", "optimizer.subset_lr=0.1", "training.temperature=[]", "schedule.patience=20"]
    assert check_effects(with_settings(plain, settings), make_network(plain), without_validation()) == []


@pytest.mark.parametrize("part", NETWORKS)
def test_the_part_of_a_penalty_is_missing_where_the_penalty_has_no_gradient(part: str) -> None:
    torch.manual_seed(0)
    network = make_network(recipe_with(part))
    for name in REGULARIZERS:
        for arguments in [{"parameters": "biases"}, {}] if name == "kernel_norm" else [{}]:
            (penalty,) = read_penalties({name: {"weight": 1.0, **arguments}})
            assert penalty(network).requires_grad == (not missing_part(penalty, network)), name


def test_a_plateau_without_validation_data_watches_no_metric() -> None:
    recipe = with_settings(recipe_with("masks"), ["schedule.name=plateau", "schedule.monitor=accuracy"])
    network = make_network(recipe)
    assert check_effects(recipe, network, small_data()) == []
    with pytest.raises(ValueError, match=r"schedule.monitor must .*watches the training loss"):
        check_effects(recipe, network, without_validation())


def test_a_task_refuses_what_its_network_lacks() -> None:
    network = make_network(recipe_with("no masks"))
    with pytest.raises(ValueError, match=r"optimizer.mask_lr must .*CCNN.*no masks"):
        Task(network, out_channels=3, optimizer=Optimizer(mask_lr=0.5))
    with pytest.raises(ValueError, match=r"regularizers.wavelet must .*CCNN.*dilations"):
        Task(network, out_channels=3, regularizers={"wavelet": 1.0})
    with pytest.raises(ValueError, match=r"schedule.monitor must be one of loss, accuracy .*got 'psnr'"):
        Task(network, out_channels=3, schedule=Schedule("plateau", monitor="psnr"))


def test_a_training_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training.temperature must"):
        fit(small_recipe(), tmp_path / "run", settings=["training.temperature=[1, 0.1]"], data=small_data())
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_inherited_settings_are_announced_and_the_training_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    settings = ["model.sigma=null", "training.epochs=1"]
    run = fit(small_recipe(*settings), tmp_path / "run", data=small_data(), on_message=lines.append, report=False)
    assert run.finished
    assert lines == ["without effect: optimizer.mask_lr (the network has no masks to train)"]
    assert lines[0] in (tmp_path / "run" / "log.txt").read_text("utf-8")


def test_settings_of_a_file_are_given_unless_the_network_is_another(tmp_path: Path) -> None:
    recipe = with_settings(recipe_with("masks"), ["optimizer.mask_lr=0.5"])
    (tmp_path / "mine.yaml").write_text(recipe.to_yaml(), "utf-8")
    mine = read_recipe(tmp_path / "mine.yaml")
    assert "optimizer.mask_lr" in mine.given
    assert "optimizer.mask_lr" in with_settings(mine, ["training.epochs=1"]).given
    assert with_settings(mine, ["model.name=ckcnn_2_30"]).given == {"model.name"}
    assert "given" not in mine.to_dict()
    with pytest.raises(ValueError, match="'given' is not a key of a recipe"):
        recipe_from({**mine.to_dict(), "given": ["a"]})


def test_a_copied_recipe_can_be_trained(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    call("new-recipe", path, "--recipe", "ch05-cifar10-flexnet-16-k3")
    copied = read_recipe(path)
    assert without_effect(copied, make_network(copied)) == {}
    assert copied.optimizer.mask_lr == 1.0
    assert copied.optimizer.lr == 0.01

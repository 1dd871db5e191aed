"""Every recipe: read, compared with its frozen settings, built, and stepped once on synthetic data of its shape."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelfield.data.registry import describe, list_data
from kernelfield.experiments.datasets import synthetic_data
from kernelfield.experiments.evaluation import evaluate
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.recipe import (
    find_recipe,
    list_recipes,
    read_recipe,
    recipe_from,
    recipe_titles,
    with_settings,
)
from kernelfield.experiments.recipe_files import FOLDER, bundled_names, family_rows, read_yaml, recipe_text, write_yaml
from kernelfield.experiments.reproduce import reproduce
from kernelfield.experiments.run import make_network, make_task
from kernelfield.experiments.settings import Schedule
from kernelfield.models import list_models
from kernelfield.models.registry import configuration

from .recipe_changes import CHANGES

RECIPES = list_recipes()
MINIMAL = {
    "name": "a",
    "data": {"name": "digits"},
    "model": {"name": "ccnn_4_140"},
    "shape": {"in_channels": 1, "out_channels": 10, "size": [64]},
}
COUNTS = ("epochs", "batch", "evaluate_every", "log_every", "checkpoint_every")


#: every recipe's settings, defaults written out, as they were before they were grouped into families
BEFORE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("recipes_before.json").read_text("utf-8"))


def expected_settings(name: str) -> dict[str, Any]:
    settings = json.loads(json.dumps(BEFORE[name]))
    for pattern, changes in CHANGES.items():
        if fnmatch(name, pattern):
            for key, value in changes.items():
                *path, last = key.split(".")
                inner = settings
                for part in path:
                    inner = inner.setdefault(part, {})
                inner[last] = value
    return settings


def test_all_recorded_names_still_exist() -> None:
    assert set(BEFORE) <= set(RECIPES)


def settings_with_defaults(name: str) -> dict[str, Any]:
    """Return the settings expected of a recipe; settings that did not exist before hold their defaults."""
    expected, defaults = expected_settings(name), recipe_from(MINIMAL).to_dict()
    for section in ("shape", "optimizer", "schedule", "training"):
        expected[section] = {**defaults[section], **expected[section]}
    return {**defaults, **expected, "name": name}


def test_settings_equal_the_record_except_for_intended_changes() -> None:
    differences = {}
    for name in BEFORE:
        now, expected = find_recipe(name).to_dict(), settings_with_defaults(name)
        keys = (now.keys() | expected.keys()) - {"title", "notes"}  # which may be reworded
        if different := {key for key in keys if now.get(key) != expected.get(key)}:
            differences[name] = different
    assert differences == {}


def test_every_intended_change_names_a_recipe() -> None:
    assert [pattern for pattern in CHANGES if not any(fnmatch(name, pattern) for name in BEFORE)] == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda p: p.stem)
def test_rows_found_by_their_lines_are_the_rows_of_the_file(path: Path) -> None:
    rows = family_rows(path)
    assert list(rows) == [name for name, file in bundled_names().items() if file == path]
    assert all(name.partition("-")[0] == path.stem.partition("-")[0] for name in rows)
    assert "shape" not in {key for row in rows.values() for key in row}


def test_families_are_short() -> None:
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) <= len(RECIPES) / 8
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= 7.5 * len(RECIPES)


def test_titles_are_those_of_the_recipes() -> None:
    assert recipe_titles("ch09-*") == {name: find_recipe(name).title for name in list_recipes("ch09-*")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: {}\nrows:\n  x:\n    title: a\n  y:\n    title: b\n", "got a family of 2: x, y"),
        ("base: 3\nrows:\n  x:\n    title: a\n", "base .*got 3"),
        ("base: {}\nrows:\n  x: 3\n", r"rows\.x .*got 3"),
        ("bass: {}\nrows:\n  x:\n    title: a\n", "base and rows, got 'bass'"),
    ],
)
def test_bad_families(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "family.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"family\.yaml: .*{message}"):
        read_recipe(path)


def test_shape_follows_the_options_of_the_data() -> None:
    recipe = with_settings(find_recipe("ch02-copy-100"), ["data.T=50"])
    assert recipe.shape.size == [70]
    assert with_settings(recipe, ["data.drop=0.5"]).shape.in_channels == 2
    own = with_settings(recipe, ["shape.size=[80]", "data.T=60"])
    assert own.shape.size == [80]


def test_shape_must_be_given_where_the_data_set_declares_none() -> None:
    without = {key: value for key, value in MINIMAL.items() if key != "shape"}
    assert recipe_from(without).shape.size == [8, 8]
    with pytest.raises(ValueError, match="recipe: shape must"):
        recipe_from({**without, "data": {"name": "csv_series", "root": "x.csv"}})
    with pytest.raises(ValueError, match=r"recipe: data: name .*'digits'"):
        recipe_from({**without, "data": {"name": "digit"}})


def check_names(name: str) -> list[str]:
    """Return what a recipe names that does not exist, or names wrongly."""
    recipe = find_recipe(name)
    options = set(recipe.data) - {"name", "root", "download", "drop", "step", "subsample", "share"}
    checks = {
        "title": bool(recipe.title),
        "model": recipe.model["name"] in list_models(),
        "data": recipe.data["name"] in list_data(),
        "options of the data": options <= set(describe(recipe.data["name"]).options),
        "chapter": not recipe.chapter or name.startswith(f"ch{recipe.chapter:02d}-"),
        "settings": with_settings(recipe, []) == recipe,
        "YAML": recipe_from(read_yaml(recipe.to_yaml())) == recipe,
    }
    return [check for check, passed in checks.items() if not passed]


def test_recipes_are_named_by_chapter_and_name_what_exists() -> None:
    assert {name: failed for name in RECIPES if (failed := check_names(name))} == {}


def test_wrong_names_in_recipes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "find_recipe", lambda _: recipe_from({**MINIMAL, "chapter": 3}))
    assert check_names("ch02-a") == ["title", "chapter"]


# A step of these takes a CPU seconds: large maps, attention between all of their positions, 2M parameters and more.
HEAVY = re.compile(
    "ch05-cifar10-cknet-16|ch07-cifar10|ch08-cifar10|ch08-pcam|ch09-cifar10|ch09-pcam|ch09-rotmnist-r|ch06-.*(6-380$|cosmic|darcy-(?!small))"
    "|ch10-.*(w18|w34|w39|-wl)|ch11-.*13-layers|.*(speech|-16-|modelnet)"
)


def family_and_dim(name: str) -> tuple[str, int]:
    recipe = find_recipe(name)
    return configuration(recipe.model["name"]).build.__name__, len(recipe.shape.size)


#: a row of each family of networks on lines, planes and volumes
FIRST = {family_and_dim(name): name for name in reversed(RECIPES) if not HEAVY.match(name)}


@pytest.mark.parametrize(
    "name", [name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow) for name in RECIPES]
)
def test_recipe_steps_once_on_synthetic_data(name: str) -> None:
    recipe = find_recipe(name)
    recipe = with_settings(recipe, ["training.batch=2", "training.epochs=1", "training.precision=32"])
    # One second of sound takes a CPU a few seconds for every sample; the network is the whole one all the same.
    # Networks of chapter 8 pad nothing: smaller images would end before they do.
    most = 1024 if len(recipe.shape.size) == 1 else 96 if recipe.chapter == 8 else 64
    size = [min(n, most) for n in recipe.shape.size]
    if recipe.model.get("samples", 0) > 2:
        # Kernels on a group grow with the square of the number of its elements; two show what sixteen would.
        recipe = with_settings(recipe, ["model.samples=2"])
    data = synthetic_data(replace(recipe.shape, size=size), samples=2)
    task = make_task(recipe, make_network(recipe), data)
    before = [p.detach().clone() for p in task.network.parameters()]
    loop = Loop(task, data.train, None, recipe.training, name=name)
    state = loop.run()
    assert state.step == 1
    after = list(task.network.parameters())
    assert all(bool(torch.isfinite(p).all()) for p in after)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    metrics = evaluate(task, data.test, 2).compute()
    assert recipe.metric in ("", *metrics)
    for key in recipe.published:
        assert key.split(" ")[0] in metrics


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"trainign": {}}, "'trainign' .*'training'"),
        ({"training": {"epoch": 3}}, "'epoch' .*'epochs'"),
        ({"training": {"epochs": "many"}}, r"training\.epochs .*got 'many'"),
        ({"training": {"epochs": 1.5}}, r"training\.epochs .*got 1\.5"),
        ({"training": {"clip": "x"}}, r"training\.clip .*got 'x'"),
        ({"training": {"compile": 1}}, r"training\.compile .*got 1"),
        ({"training": 3}, "training .*got 3"),
        ({"schedule": {"name": "cos"}}, r"schedule\.name .*got 'cos'.*'cosine'"),
        ({"shape": {"in_channels": 1, "size": [4]}}, r"shape\.out_channels must"),
        ({"shape": {"in_channels": 1, "out_channels": 1, "size": 4}}, r"shape\.size .*got 4"),
        ({"data": {}}, r"data\.name must"),
        ({"optimizer": {"betas": [0.9, "b"]}}, r"optimizer\.betas .*got \[0\.9, 'b'\]"),
    ],
)
def test_errors_name_the_key_and_the_closest(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^recipe: {named}"):
        recipe_from({**MINIMAL, **change})


@pytest.mark.parametrize(
    ("setting", "got"),
    [
        *((f"training.{name}=0", "0") for name in COUNTS),
        ("training.eval_batch=-1", "-1"),
        ("training.patience=0", "0"),
        ("training.seed=-1", "-1"),
        ("training.clip=0", "0.0"),
        ("training.ema=1", "1.0"),
        ("training.label_smoothing=2", "2.0"),
        ("optimizer.lr=-1", "-1.0"),
        ("optimizer.lr=0", "0.0"),
        ("optimizer.lr=.nan", "nan"),
        ("optimizer.lr=.inf", "inf"),
        ("optimizer.weight_decay=-1", "-1.0"),
        ("optimizer.mask_lr=-1", "-1.0"),
        ("optimizer.subset_lr=-1", "-1.0"),
        ("optimizer.momentum=1", "1.0"),
        ("optimizer.betas=[0.9]", "[0.9]"),
        ("optimizer.betas=[1, 2]", "[1.0, 2.0]"),
        ("schedule.warmup=-1", "-1.0"),
        ("schedule.final=-1", "-1.0"),
        ("schedule.factor=1", "1.0"),
        ("schedule.patience=-1", "-1"),
        ("shape.size=[]", "[]"),
        ("shape.size=[4, 0]", "[4, 0]"),
        ("shape.out_channels=0", "0"),
        ("test.step=[2, 0]", "[2, 0]"),
        ("test.drop=1", "1"),
        ("test.turn=east", "'east'"),
        ("test.data=3", "3"),
    ],
)
def test_numbers_have_ranges(setting: str, got: str) -> None:
    key = setting.split("=", maxsplit=1)[0]
    with pytest.raises(
        ValueError, match=rf"^--set {re.escape(setting)}: {re.escape(key)} must .*got {re.escape(got)}$"
    ):
        with_settings(recipe_from(MINIMAL), [setting])


def test_an_unknown_test_names_the_closest() -> None:
    with pytest.raises(ValueError, match=r"--set test.steps=\[2\]: 'steps' .*'step'"):
        with_settings(recipe_from(MINIMAL), ["test.steps=[2]"])


def test_ends_of_ranges_are_accepted() -> None:
    taken = ["optimizer.mask_lr=0", "optimizer.betas=[0, 0.5]", "schedule.patience=0"]
    taken += ["training.eval_batch=null", "training.clip=null", "training.label_smoothing=1", "training.batch=1"]
    taken += ["test.step=[]", "test.turn=[-45, 400]", "test.drop=0", "shape.vocabulary=null"]
    assert with_settings(recipe_from(MINIMAL), taken).test == {"step": [], "turn": [-45, 400], "drop": 0}


def test_a_penalty_without_a_weight_is_an_error_of_the_recipe() -> None:
    recipe = with_settings(recipe_from(MINIMAL), ["regularizers.kernel_l2=much"])
    with pytest.raises(ValueError, match=r"recipe 'a': regularizers\.kernel_l2 must"):
        make_task(recipe, torch.nn.Identity())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.epochs", r"--set .*got 'training\.epochs'"),
        ("trainin.epochs=3", "'trainin' .*'training'"),
        ("training.epochs=x", r"training\.epochs .*got 'x'"),
        ("training.epochs.more=x", "'epochs'"),
    ],
)
def test_bad_settings(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^--set .*{message}|^{message}"):
        with_settings(recipe_from(MINIMAL), [setting])


def test_settings_reach_everything() -> None:
    recipe = with_settings(
        recipe_from(MINIMAL),
        ["model.channels=8", "data.resolution=16", "regularizers.aliasing.weight=0.1", "training.ema=0.99"],
    )
    assert recipe.model["channels"] == 8
    assert recipe.data["resolution"] == 16
    assert recipe.regularizers == {"aliasing": {"weight": 0.1}}
    assert recipe.training.ema == 0.99


def test_another_schedule_or_optimizer_has_none_of_the_settings_of_the_first() -> None:
    plateau = find_recipe("ch10-fsdd-w5")
    assert plateau.schedule.monitor == "loss"
    cosine = with_settings(plateau, ["schedule.final=0.1", "schedule.name=cosine"]).schedule
    assert (cosine.monitor, cosine.patience, cosine.final) == ("", Schedule().patience, 0.1)
    same = with_settings(plateau, ["schedule.name=plateau", "schedule.patience=3"]).schedule
    assert (same.monitor, same.patience) == ("loss", 3)
    steps = find_recipe("ch07-rotmnist-dren")
    assert with_settings(steps, {"schedule.name": "constant"}).schedule.milestones == []
    sgd = with_settings(recipe_from(MINIMAL), ["optimizer.name=sgd", "optimizer.nesterov=true"])
    assert with_settings(sgd, ["optimizer.name=adam"]).optimizer.nesterov is False
    with pytest.raises(ValueError, match=r"schedule\.monitor .*'plateau'"):
        with_settings(plateau, ["schedule.name=cosine", "schedule.monitor=loss"])


def test_unknown_model_option_is_named() -> None:
    with pytest.raises(ValueError, match=r"model of recipe 'a': .*widht"):
        make_network(with_settings(recipe_from(MINIMAL), ["model.widht=3"]))


def test_own_recipe_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(write_yaml({k: v for k, v in MINIMAL.items() if k != "name"}))
    assert find_recipe(path).name == "mine"
    path.write_text("data:\n  name: digits\n\tmodel: x\n")
    with pytest.raises(ValueError, match=r"mine\.yaml, line 3:"):
        read_recipe(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "line 2: a is given twice"),
        ("a: {b: 1, b: 2}\n", r"line 1: b\b"),
        ("a\n", "line 1:"),
        ("a: [1, 2\n", "line 1:"),
        ("a: 'x\n", "line 1:"),
        ("a:\n    b: 1\n  c: 2\n", "line 3:"),
        ("a: &x [1]\nb: [*x, *x]\n", r"line 2: alias \*x"),
        ("a:\n  b: " + "[" * 100_000, "line 2: .*12"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1:"),
        ("? [a]\n: 1\n", "line 1:"),
    ],
)
def test_bad_yaml(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_yaml(text)


def test_limits_of_recipes_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "a: " + "[" * 20 + "]" * 20
    with pytest.raises(ValueError, match="KERNELFIELD_MAX_RECIPE_DEPTH"):
        read_yaml(deep, "deep.yaml")
    monkeypatch.setenv("KERNELFIELD_MAX_RECIPE_DEPTH", "30")
    assert list(read_yaml(deep, "deep.yaml")) == ["a"]
    monkeypatch.setenv("KERNELFIELD_MAX_RECIPE_DEPTH", "1000000")
    with pytest.raises(ValueError, match="KERNELFIELD_MAX_RECIPE_DEPTH"):
        read_yaml(deep, "deep.yaml")
    long = tmp_path / "long.yaml"
    long.write_text("notes: " + "a" * 2**20)
    with pytest.raises(ValueError, match="KERNELFIELD_MAX_RECIPE_BYTES"):
        recipe_text(long)
    monkeypatch.setenv("KERNELFIELD_MAX_RECIPE_BYTES", "2M")
    assert len(recipe_text(long)) > 2**20


def test_scalars_follow_yaml_1_2() -> None:
    text = "a: [1e-6, 1_000, .5, -.inf, no, on, 1:30, 010, 2001-01-01, TRUE, ~]\n"
    expected = [1e-6, 1000, 0.5, -float("inf"), "no", "on", "1:30", "010", "2001-01-01", True, None]
    assert read_yaml(text)["a"] == expected


def test_yaml_round_trip() -> None:
    values = {
        "a": {"b": {"c": [1, 2.5, "x", None, True]}, "d": 1e-06},
        "text": "a: b # c",
        "quote": 'it\'s "so"',
        "number": "07",
        "empty": {},
        "none": [],
        "inf": float("inf"),
        "words": "two words",
        "true": "true",
        "no": "1e-3",
        "lines": "one\ntwo",
    }
    assert read_yaml(write_yaml(values)) == values


def test_a_list_that_occurs_twice_is_written_twice() -> None:
    sizes = [1, 2]
    values = {"a": sizes, "b": {"c": sizes, "d": sizes}}
    assert read_yaml(write_yaml(values)) == values


def test_a_failed_row_names_its_own_metric(tmp_path: Path) -> None:
    result = reproduce("ch05-kodak-siren", tmp_path / "results", tmp_path / "runs")
    assert result["status"] == "failed"
    assert result["metric"] == "psnr"
    regression = reproduce("ch02-adding-100", tmp_path / "results", tmp_path / "runs", settings=["data.T=1"])
    assert (regression["status"], regression["metric"]) == ("failed", "mse")

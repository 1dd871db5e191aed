"""More epochs in the same folder, and weights of another run as a start."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelfield import create_model, list_models, load_run
from kernelfield.cli.common import recipe_and_data
from kernelfield.data import load
from kernelfield.experiments.custom_data import check_network, recipe_for, recipe_for_path
from kernelfield.experiments.datasets import load_source
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import find_recipe, recipe_from, with_settings
from kernelfield.experiments.robustness import other_data_tests
from kernelfield.experiments.run import Run, make_network, make_task
from kernelfield.experiments.start_from import classifier_names, find_start, freeze_body, load_weights
from tests.commands import call
from tests.experiments.helpers import small_data, small_recipe, weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    return fit(small_recipe("training.epochs=2"), folder, data=small_data(), report=False).folder


@pytest.fixture
def old(trained: Path, tmp_path: Path) -> Run:
    """A run of two epochs in a folder of the test."""
    return Run(Path(shutil.copytree(trained, tmp_path / "old")))


def test_a_finished_run_continues_with_more_epochs(old: Run) -> None:
    run, first = old, old.result()
    before = weights(run.folder)
    assert fit(small_recipe("training.epochs=2"), run.folder, data=small_data(), report=False).result() == first
    longer = fit(small_recipe("training.epochs=4"), run.folder, data=small_data(), report=False).result()
    assert (first["epochs"], longer["epochs"]) == (2, 4)
    assert [row["epoch"] for row in run.read_rows("metrics.csv")] == [1, 2, 3, 4]
    assert json.loads((run.folder / "result-after-2-epochs.json").read_text())["epochs"] == 2
    after = weights(run.folder)
    assert any(not torch.equal(after[name], before[name]) for name in before if name.startswith("network."))
    with pytest.raises(ValueError, match="epochs 4 in the folder, 3 in this recipe"):
        fit(small_recipe("training.epochs=3"), run.folder, data=small_data(), report=False)
    with pytest.raises(ValueError, match="lr"):
        fit(small_recipe("training.epochs=6", "optimizer.lr=0.5"), run.folder, data=small_data(), report=False)


def test_a_run_that_continues_and_is_stopped_is_not_finished(old: Run) -> None:
    from kernelfield.experiments.loop import TrainingInterrupted  # noqa: PLC0415

    calls = []

    def should_stop() -> bool:
        calls.append(1)
        return len(calls) > 2

    longer = small_recipe("training.epochs=3")
    with pytest.raises(TrainingInterrupted):
        fit(longer, old.folder, data=small_data(), report=False, should_stop=should_stop)
    run = fit(longer, old.folder, data=small_data(), report=False)
    assert run.result()["epochs"] == 3


def test_starts_from_the_weights_of_another_run(old: Run, tmp_path: Path) -> None:
    data = small_data()
    more = replace(
        data, out_channels=5, classes=("one", "two", "three", "four", "five"), train=data.train.take(slice(0, 8))
    )
    recipe = small_recipe("shape.out_channels=5", f"training.start_from={old.folder}", "optimizer.lr=1e-9")
    said: list[str] = []
    new = fit(recipe, tmp_path / "new", data=more, report=False, on_message=said.append)
    assert "weights" in said[0]
    assert any("(5," in line and "(3," in line and "reinitialised" in line for line in said[1:])
    theirs, ours = old.network().state_dict(), new.network().state_dict()
    same = [name for name, t in ours.items() if t.shape == theirs[name].shape and "running" not in name]
    assert all(
        torch.allclose(ours[name].float(), theirs[name].float(), atol=1e-4) for name in same if "num" not in name
    )
    with pytest.raises(ValueError, match="start_from must be a run or a weight of the same network"):
        load_weights(torch.nn.Linear(2, 2), old.folder)


def test_starting_weights_are_read_once(old: Run, tmp_path: Path) -> None:
    """A run that has begun needs no more than its own checkpoint."""
    recipe = small_recipe(f"training.start_from={old.folder}", "training.epochs=1")
    fit(recipe, tmp_path / "new", data=small_data(), report=False)
    old.folder.rename(tmp_path / "gone")
    longer = small_recipe(f"training.start_from={old.folder}", "training.epochs=2")
    assert fit(longer, tmp_path / "new", data=small_data(), report=False).result()["epochs"] == 2
    assert make_network(longer) is not None


def test_the_command_continues_a_run_and_starts_from_one(tmp_path: Path) -> None:
    rows = ["label," + ",".join(map(str, range(12)))]
    rows += [f"{'ab'[i % 2]}," + ",".join(str((1 - 2 * (i % 2)) * j) for j in range(12)) for i in range(20)]
    (tmp_path / "two.csv").write_text("\n".join(rows))
    (tmp_path / "three.csv").write_text("\n".join([*rows, *("c," + ",".join(["0.5"] * 12) for _ in range(8))]))
    tiny = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=4", "--accelerator", "cpu")
    call("train", tmp_path / "two.csv", "--epochs", 1, *tiny, "--out", tmp_path / "run")
    assert "must be above the 1 epochs" in call("train", tmp_path / "run", "--accelerator", "cpu", code=2)
    output = call("train", tmp_path / "run", "--epochs", 2, "--accelerator", "cpu")
    assert "trained 2 epochs" in output
    output = call(
        *("train", tmp_path / "three.csv", "--start-from", tmp_path / "run", "--epochs", 1),
        *("--accelerator", "cpu", "--out", tmp_path / "tuned"),
    )
    assert "reinitialised" in output
    assert "channels: 4" in (tmp_path / "tuned" / "recipe.yaml").read_text()


def write_times(path: Path, gap: float, channels: str = "xy") -> Path:
    source = np.random.default_rng(0)
    times = [np.cumsum(gap * source.uniform(0.5, 1.5, size=9)) for _ in range(16)]
    lines = ["id,time,channel,value,label"]
    lines += [f"{i},{t:.3f},{c},{t % 1:.3f},{i % 2}" for i, ts in enumerate(times) for t in ts for c in channels]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_times_keep_the_unit_of_the_weights(tmp_path: Path) -> None:
    tiny = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=4", "--accelerator", "cpu")
    call("train", write_times(tmp_path / "slow.csv", 60.0), "--epochs", 1, *tiny, "--out", tmp_path / "run")
    unit = load_run(tmp_path / "run").data.unit
    fast = write_times(tmp_path / "fast.csv", 10.0, "xz")
    assert recipe_for_path(fast).data.get("unit") is None
    output = call(
        *("train", fast, "--start-from", tmp_path / "run", "--epochs", 1, "--accelerator", "cpu"),
        *("--out", tmp_path / "tuned"),
    )
    assert "channels: x, z here, x, y in" in output
    assert load_run(tmp_path / "tuned").data.unit == unit
    # A recipe of its own has no unit: the training refuses the median gap of its data, and takes a given unit.
    recipe, here = Run(tmp_path / "tuned").recipe(), load("csv_series", fast)
    source = {key: v for key, v in recipe.data.items() if key != "unit"}
    other = replace(recipe, data=source, shape=replace(recipe.shape, size=list(here.size)))
    with pytest.raises(ValueError, match=r"data.unit must be .* in start_from .*run, got"):
        fit(other, tmp_path / "third", report=False)
    said: list[str] = []
    given = replace(other, data={**other.data, "unit": here.unit})
    fit(given, tmp_path / "fourth", report=False, on_message=said.append)
    assert any("unit:" in line for line in said)


def test_fine_tuning_on_the_same_file_keeps_its_split(tmp_path: Path) -> None:
    """Otherwise training samples of the weights would be test samples."""
    path = tmp_path / "long.csv"
    rows = [f"{i},{t},{i},{'ab'[i % 2]},m{i // 4}" for i in range(40) for t in range(3)]
    path.write_text("\n".join(["id,time,value,label,machine", *rows]) + "\n")
    tiny = ("--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=4", "--accelerator", "cpu")
    split = ("--set", "data.group=machine", "--set", "data.seed=5")
    call("train", path, "--epochs", 1, *tiny, *split, "--out", tmp_path / "run")
    recipe = recipe_for_path(path, start_from=str(tmp_path / "run"))
    assert (recipe.data["group"], recipe.data["seed"]) == ("machine", 5)
    (tmp_path / "other.csv").write_text(path.read_text().replace("machine", "engine"))
    with pytest.warns(UserWarning, match="columns engine are not read"):
        assert "group" not in recipe_for_path(tmp_path / "other.csv", start_from=str(tmp_path / "run")).data
    said: list[str] = []
    again = with_settings(recipe, ["training.epochs=1", "data.seed=6"])
    fit(again, tmp_path / "again", report=False, on_message=said.append)
    assert any("test samples may be training samples" in line for line in said)
    said.clear()
    fit(with_settings(recipe, ["training.epochs=1"]), tmp_path / "same", report=False, on_message=said.append)
    assert said
    assert not any("test samples" in line for line in said)


def test_a_run_starts_from_one_beside_it_by_name(old: Run, tmp_path: Path) -> None:
    said: list[str] = []
    recipe = small_recipe("training.start_from=old", "training.epochs=1", "optimizer.lr=1e-9")
    new = fit(recipe, tmp_path / "new", data=small_data(), report=False, on_message=said.append)
    assert str(old.folder) in said[0]
    name, weight = next(iter(old.network().named_parameters()))
    torch.testing.assert_close(dict(new.network().named_parameters())[name], weight, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match=r"start_from .*got nowhere"):
        fit(small_recipe("training.start_from=nowhere"), tmp_path / "third", data=small_data(), report=False)


def test_data_may_have_another_step_than_the_network() -> None:
    source = {"name": "digits", "resolution": 16, "sequence": True, "step": 0.5}
    assert load_source(source, "data").train.batch(slice(0, 2)).step == 0.5
    with pytest.raises(ValueError, match="step must be"):
        load_source({**source, "step": 0}, "data")
    recipe = recipe_from({"name": "a", "data": source, "model": {"name": "ccnn_4_140"}})
    assert recipe.shape.size == [256]


def test_subsampled_data_keep_every_nth_sample() -> None:
    source = {"name": "digits", "sequence": True}
    whole, every = load_source(source, "data"), load_source({**source, "subsample": 3}, "data")
    assert every.size == (22,)
    assert every.test.batch(slice(0, 4)).inputs.equal(whole.test.batch(slice(0, 4)).inputs[..., ::3])
    recipe = recipe_from({"name": "a", "data": {**source, "subsample": 3}, "model": {"name": "ccnn_4_140"}})
    assert recipe.shape.size == [22]
    with pytest.raises(ValueError, match="subsample must be an int"):
        load_source({**source, "subsample": 0}, "data")
    with pytest.raises(ValueError, match="subsample must be given only"):
        load_source({"name": "digits", "subsample": 2}, "data")


def test_a_test_at_another_rate_has_the_step_of_the_clocks() -> None:
    data = {"name": "digits", "sequence": True, "subsample": 3}
    model = {"name": "ccnn_4_140", "channels": 4, "blocks": 1, "hidden": 4}
    test = {"data": {"x1": {"subsample": 1}, "x6": {"subsample": 6}}}
    recipe = recipe_from({"name": "a", "data": data, "model": model, "training": {"epochs": 1}, "test": test})
    steps = []
    task = make_task(recipe, make_network(recipe))
    task.network.register_forward_pre_hook(lambda _, __, kwargs: steps.append(kwargs.get("step")), with_kwargs=True)
    assert set(other_data_tests(task, recipe, load_source(data, "data"))) == {"x1", "x6"}
    assert {float(step) for step in steps} == {1 / 3, 2.0}


class TestPretrainedStart:
    def test_starts_from_a_weight(self) -> None:
        recipe = find_recipe("digits")
        network = make_network(recipe)
        said = load_weights(network, "ccnn_4_140.digits")
        assert re.match(r"start from ccnn_4_140\.digits: (\d+) of \1 weights", said[0])
        wanted = create_model("ccnn_4_140.digits", pretrained=True).state_dict()
        assert all(torch.equal(t, wanted[name]) for name, t in network.state_dict().items())

    def test_a_folder_comes_before_a_weight(self, tmp_path: Path) -> None:
        old = fit(small_recipe("training.epochs=1"), tmp_path / "flextcn_2.smnist", data=small_data(), report=False)
        assert find_start("flextcn_2.smnist", Run(tmp_path / "new")).run == old
        assert find_start("flextcn_2.smnist").run is None

    def test_a_folder_without_a_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "flextcn_2.smnist").mkdir()  # such as that of a card
        assert find_start("flextcn_2.smnist").run is None
        (tmp_path / "without").mkdir()
        with pytest.raises(ValueError, match=r"start_from must .*, got .*without.*: the folder has no recipe\.yaml"):
            find_start(tmp_path / "without")

    def test_an_unknown_tag_lists_near_ones(self) -> None:
        with pytest.raises(ValueError, match=r"start_from .*'flextcn_2\.smnist'"):
            find_start("flextcn_2.smnst")

    def test_the_command_fine_tunes_a_weight_on_other_classes(self, tmp_path: Path) -> None:
        lines = [",".join([name, *(f"{v:.2f}" for v in torch.randn(256).tolist())]) for name in "abc" * 8]
        (tmp_path / "own.csv").write_text("\n".join([",".join(["label", *map(str, range(256))]), *lines]))
        output = call(
            *("train", tmp_path / "own.csv", "--start-from", "ccnn_4_140.digits", "--epochs", 1),
            *("--accelerator", "cpu", "--out", tmp_path / "tuned"),
        )
        assert "start from ccnn_4_140.digits" in output
        assert "reinitialised" in output
        assert "start_from: ccnn_4_140.digits" in (tmp_path / "tuned" / "recipe.yaml").read_text()
        assert "'flextcn_2.smnist'" in call("train", tmp_path / "own.csv", "--start-from", "flextcn_2.smnst", code=2)

    def test_named_data_have_the_network_of_the_weight(self) -> None:
        recipe, data = recipe_and_data("chirps", "", ["data.train=16"], "w5.transients_small")
        assert (recipe.model["name"], recipe.training.start_from) == ("w5", "w5.transients_small")
        said = load_weights(make_network(recipe, data), recipe.training.start_from)
        assert re.match(r"start from w5\.transients_small: (\d+) of \1 weights", said[0])

    def test_a_named_model_comes_before_that_of_the_weight(self) -> None:
        recipe, _ = recipe_and_data("digits", "ccnn_4_140_global", ["data.sequence=true"], "ccnn_4_140.digits")
        assert (recipe.model["name"], recipe.training.start_from) == ("ccnn_4_140_global", "ccnn_4_140.digits")

    def test_other_classes_than_those_in_the_recipe_of_the_weight(self) -> None:
        """The recipe of this weight names its two classes in section ``model``."""
        source = {"name": "solids", "points": 16, "normals": False, "train": 8, "validation": 0, "test": 4}
        data = load_source(source, "data")
        recipe = recipe_for(data, "own", source, start_from="gridified_modelnet40.chair_monitor_small")
        check_network(recipe, data)
        said = load_weights(make_network(recipe, data), recipe.training.start_from)
        assert [line.split(":")[0].strip() for line in said[1:]] == ["readout.linear.weight", "readout.linear.bias"]

    def test_tests_at_another_step_need_a_network_that_takes_it(self) -> None:
        source = {"name": "digits", "resolution": 28}
        recipe = recipe_for(load_source(source, "data"), "own", source, start_from="p4cnn.rotdigits_small")
        assert recipe.test == {}

    def test_a_weight_for_other_dimensions_is_refused(self) -> None:
        source = {"name": "chirps", "train": 8}
        with pytest.raises(ValueError, match=r"start_from .*'p4cnn\.rotdigits_small'.*dim 2\. preprocessing\("):
            recipe_for(load_source(source, "data"), "own", source, start_from="p4cnn.rotdigits_small")

    def test_a_network_that_is_always_dense(self) -> None:
        few = ["data.train=8", "data.validation=0", "data.test=4", "data.coordinates=false"]
        recipe, data = recipe_and_data("darcy_synthetic", "", few, "unet_p4m.darcy_short")
        assert recipe.model == {"name": "unet_p4m"}
        assert len(load_weights(make_network(recipe, data), "unet_p4m.darcy_short")) == 1
        with pytest.raises(ValueError, match=r"start_from .*'unet_p4m\.darcy_short'.*task 'classification'"):
            recipe_and_data("rotated_digits", "", [], "unet_p4m.darcy_short")

    def test_a_classifier_of_other_classes_starts_afresh(self) -> None:
        """Chirps have five classes, as the transients have, but other ones."""
        recipe, data = recipe_and_data("chirps", "", ["data.train=16"], "w5.transients_small")
        assert data is not None
        network = make_network(recipe, data)
        before = {name: t.clone() for name, t in network.state_dict().items()}
        said = load_weights(network, "w5.transients_small", classes=data.classes)
        assert [line for line in said if "other classes" in line] == said[1:]
        kept = {name for name, t in network.named_parameters() if torch.equal(t, before[name])}
        assert classifier_names(network) <= kept
        again = load_weights(network, "w5.transients_small", classes=find_start("w5.transients_small").classes())
        assert len(again) == 1

    def test_a_weight_of_another_network_is_refused(self) -> None:
        """One bias agrees by chance."""
        with pytest.raises(ValueError, match=r"start_from .*flextcn_2\.smnist.* 1 of \d+ weights"):
            load_weights(make_network(find_recipe("digits")), "flextcn_2.smnist")

    def test_many_fresh_weights_are_counted(self) -> None:
        network = create_model("ccnn_4_140.digits", blocks=4)
        said = load_weights(network, "ccnn_4_140.digits")
        copied, learned = map(int, re.findall(r"(\d+) of (\d+)", said[0])[0])
        listed = said[1:-1]
        assert said[-1].strip() == f"{learned - copied - len(listed)} more start afresh"

    def test_another_size_is_announced(self, tmp_path: Path) -> None:
        settings = ["data.T=20", "data.train=8", "data.validation=4", "data.test=4", "training.epochs=1"]
        recipe, data = recipe_and_data("adding", "", settings, "ckcnn_adding.adding_100")
        said: list[str] = []
        fit(recipe, tmp_path / "run", data=data, report=False, on_message=said.append)
        assert any("size: 20 here, 100 in " in line and "model.size=100" in line for line in said)
        same = with_settings(recipe, ["model.size=100"])
        said.clear()
        fit(same, tmp_path / "same", data=data, report=False, on_message=said.append)
        assert said
        assert not any("size:" in line for line in said)


class TestFreeze:
    @pytest.mark.parametrize("name", list_models(pretrained=True))
    def test_every_weight_has_a_classifier_to_train(self, name: str) -> None:
        network = create_model(name)
        names = classifier_names(network)
        sizes = {n: p.numel() for n, p in network.named_parameters()}
        assert 0 < sum(sizes[n] for n in names) < 0.5 * sum(sizes.values())

    def test_only_the_classifier_is_trained(self, old: Run, tmp_path: Path) -> None:
        recipe = small_recipe(f"training.start_from={old.folder}", "training.freeze=true", "training.epochs=2")
        new = fit(recipe, tmp_path / "new", data=small_data(), report=False)
        before = dict(old.network().named_parameters())
        changed = {name for name, p in new.network().named_parameters() if not torch.equal(p, before[name])}
        assert changed == classifier_names(new.network())

    def test_a_frozen_run_continues_frozen(self, old: Run, tmp_path: Path) -> None:
        start = (f"training.start_from={old.folder}", "training.freeze=true")
        fit(small_recipe(*start, "training.epochs=1"), tmp_path / "new", data=small_data(), report=False)
        new = fit(small_recipe(*start, "training.epochs=3"), tmp_path / "new", data=small_data(), report=False)
        before = dict(old.network().named_parameters())
        changed = {name for name, p in new.network().named_parameters() if not torch.equal(p, before[name])}
        assert changed == classifier_names(new.network())

    def test_weights_outside_the_classifier_must_fit(self) -> None:
        network = create_model("w5.transients_small", in_channels=2)
        with pytest.raises(ValueError, match="freeze"):
            load_weights(network, "w5.transients_small", freeze=True)

    def test_refuses_a_network_without_a_classifier(self) -> None:
        with pytest.raises(ValueError, match=r"freeze .*Linear"):
            freeze_body(torch.nn.Linear(2, 2))

    def test_needs_a_start(self) -> None:
        with pytest.raises(ValueError, match=r"freeze .*start_from"):
            small_recipe("training.freeze=true")

    @pytest.mark.usefixtures("no_pictures")
    def test_the_command_freezes(self, tmp_path: Path) -> None:
        few = [part for name in ("train", "validation", "test") for part in ("--set", f"data.{name}=16")]
        call(
            *("train", "chirps", "--start-from", "w5.transients_small", "--freeze", "--epochs", 1, *few),
            *("--accelerator", "cpu", "--out", tmp_path / "tuned"),
        )
        assert "freeze: true" in (tmp_path / "tuned" / "recipe.yaml").read_text()

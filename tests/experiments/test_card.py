"""Efficiency cards: counts that can be checked by hand, shares of the data, and a page that says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typer.testing import CliRunner

from kernelfield import CKConv
from kernelfield.cli import app
from kernelfield.experiments.card import (
    card_text,
    count_weight_operations,
    make_card,
    measure_card,
    measure_weight_card,
)
from kernelfield.experiments.comparison import compare_runs
from kernelfield.experiments.datasets import load_source, take_share
from kernelfield.experiments.energy import EnergyMeter
from kernelfield.experiments.evaluation import mask_sizes
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.operations import count_operations
from kernelfield.experiments.optim import LearningRate
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.run import make_network, processor_name
from kernelfield.experiments.run_files import read_json
from kernelfield.experiments.shares import measure_shares, share_recipe, train_on_shares
from kernelfield.models.pretrained import describe_weight

from .helpers import small_data, small_recipe

if TYPE_CHECKING:
    from kernelfield.experiments.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("card") / "run"
    return fit(small_recipe("training.epochs=2"), folder, data=small_data(), report=False)


def test_the_card_of_a_run(run: Run) -> None:
    card = measure_card(run.folder, seconds=0.05)
    parameters = card["parameters"]
    network = run.network()
    assert parameters["total"] == sum(p.numel() for p in network.parameters())
    assert (
        parameters["kernels"] + parameters["masks"] + parameters["symmetry"] + parameters["other"]
        == (parameters["total"])
    )
    assert parameters["masks"] == 2  # the stem and one block, a width each
    compute = card["compute"]
    # A training sample shares the sampling of its kernels with the others of its batch of 8.
    assert 2 * compute["operations"] < 8 * compute["training_operations"] < 8 * 6 * compute["operations"]
    assert compute["training"]["samples"] == 2 * 48
    assert compute["training"]["operations"] == pytest.approx(96 * compute["training_operations"], rel=1e-3)
    assert compute["step"]["seconds"] > 0.5 * compute["batch"]["seconds"] > 0
    assert compute["training"]["seconds_here"] == pytest.approx(96 * compute["step"]["seconds"])
    assert card["data"] == [{"share": 1.0, "score": card["score"]}]
    assert card["design"]["by_hand"]["optimizer.lr"] == 0.01
    fresh, trained = mask_sizes(make_network(run.recipe())), mask_sizes(network)
    assert card["design"]["learned"] == {name: [fresh[name], trained[name]] for name in fresh}  # widths of both masks


def test_times_and_energies_are_those_of_one_sample(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfield.experiments.card._timed", lambda *_: (2.0, 6.0))
    compute = measure_card(run.folder)["compute"]
    for name, samples in (("single", 1), ("batch", 8), ("step", 8)):
        assert compute[name] == {"samples": samples, "seconds": 2 / samples, "joules": 6 / samples}
    assert (compute["training"]["seconds_here"], compute["training"]["joules_here"]) == (96 * 2 / 8, 96 * 6 / 8)


def test_the_page_and_its_picture_are_written(run: Run) -> None:
    page = make_card(run.folder, seconds=0.05)
    assert "not measured" in page.read_text(encoding="utf-8")  # shares of the data
    assert (run.folder / "card.png").stat().st_size > 5_000
    assert card_text(read_json(run.folder / "card.json")).startswith("# ")


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_report_gets_the_card(tmp_path: Path) -> None:
    run = fit(small_recipe(), tmp_path / "run", data=small_data())
    assert "Efficiency" not in (run.folder / "report.html").read_text(encoding="utf-8")
    make_card(run.folder, seconds=0.02)
    assert "Efficiency" in (run.folder / "report.html").read_text(encoding="utf-8")


def test_the_card_of_a_weight(tmp_path: Path) -> None:
    page = make_card("ccnn_4_140.digits", out=tmp_path, seconds=0.02)
    card, described = read_json(tmp_path / "card.json"), describe_weight("ccnn_4_140.digits")
    assert card["parameters"]["total"] == described["parameters"]
    assert card["score"] == described["score"]["value"]
    assert card["compute"]["training"]["seconds"] == described["training"]["seconds"]
    assert card["design"]["learned"]  # widths of masks differ from those at the start
    assert "ccnn_4_140.digits" in page.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"ccnn_4_140\.digits"):  # near names
        make_card("ccnn_4_140.digit", out=tmp_path)
    with pytest.raises(ValueError, match="source must be the folder of a run"):
        make_card(tmp_path / "missing")


def test_operations_counted_alone_are_those_of_the_card() -> None:
    compute = measure_weight_card("ckcnn_copy.copy_100", seconds=1e-9)["compute"]
    found = {
        "prediction": compute["operations"],
        "training_sample": compute["training_operations"],
        "training": compute["training"]["operations"],
    }
    assert count_weight_operations("ckcnn_copy.copy_100") == found
    assert found["training"] > found["training_sample"] > 0


def test_shares_of_a_weight_are_refused() -> None:
    made = CliRunner().invoke(app, ["card", "ccnn_4_140.digits", "--shares", "0.5"])
    assert made.exit_code != 0
    assert "--shares must be given only" in made.output


def test_operations_of_a_convolution_by_hand() -> None:
    """Two real transforms of the inputs, one of the kernel and one back, of 2 × 16 samples, and complex products."""
    x, weight = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def work() -> Any:
        return torch.fft.irfft(torch.fft.rfft(x, n=32) * torch.fft.rfft(weight, n=32), n=32)

    assert count_operations(work) == 3 * round(2.5 * 32 * 5)


def test_a_global_convolution_grows_almost_linearly() -> None:
    counts = [
        count_operations(lambda n=n: CKConv(1, 1, size=n, depthwise=True)(torch.randn(1, 1, n))) for n in (8192, 32768)
    ]
    assert 3 < counts[1] / counts[0] < 5  # 16 for a direct sum


def test_energy_is_read_from_counters(tmp_path: Path) -> None:
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "energy_uj").write_text("1000000")
    (package / "max_energy_range_uj").write_text("4000000")
    with EnergyMeter(torch.device("cpu"), counters=tmp_path) as meter:
        (package / "energy_uj").write_text("3500000")
    assert meter.joules == pytest.approx(2.5)
    with EnergyMeter(torch.device("cpu"), counters=tmp_path) as meter:
        (package / "energy_uj").write_text("500000")  # began again
    assert meter.joules == pytest.approx(1.0)


class OneJoule:
    """A meter by which each work, however often it is repeated, takes as many joules as there were calls."""

    joules = 1.0

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def __enter__(self) -> OneJoule:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_energy_of_the_training_is_that_of_its_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfield.experiments.card.EnergyMeter", OneJoule)
    card = measure_card(run.folder, seconds=1e-9)  # one call of each, of one joule
    compute = card["compute"]
    assert compute["step"]["joules"] == pytest.approx(1 / 8)  # a batch of 8
    assert compute["training"]["joules_here"] == pytest.approx(12)  # 2 epochs of 6 steps
    assert "1 J for one sample, 125 mJ each in a batch, 12 J to train" in card_text(card)


def test_the_energy_of_the_training_from_the_power_of_predictions(run: Run) -> None:
    """Cards without the energy of a step: only where they were measured on the device of the training."""
    card = measure_card(run.folder, seconds=1e-9)
    for key in ("single", "batch"):
        card["compute"][key] |= {"seconds": 0.5, "joules": 100.0}
    card["compute"]["training"] = {"samples": 96, "seconds": 60.0, "operations": 1.0}
    assert "about 12 kJ to train at the power of predictions, 200 W" in card_text(card)
    card["trained_on"] = {"device": "another"}
    assert "not measured for the training" in card_text(card)
    assert "1e+02 J" not in card_text(card)


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags : fpu\n")
    assert processor_name(info) == "Some CPU @ 2 GHz"
    assert processor_name(tmp_path / "none")


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"run must be .*{tmp_path}/none, without a recipe"):
        measure_card(tmp_path / "none")
    (tmp_path / "recipe.yaml").touch()
    for refused in (measure_card, lambda folder: compare_runs([folder])):
        with pytest.raises(FileNotFoundError, match=rf"run must be .*{tmp_path}, whose training has not ended"):
            refused(tmp_path)


class TestShare:
    def test_each_class_keeps_its_share(self) -> None:
        whole, part = (load_source({"name": "digits", **more}, "data").train for more in ({}, {"share": 0.25}))
        assert len(part) == pytest.approx(len(whole) / 4, abs=5)
        for label in range(10):
            assert (part.target == label).sum() == pytest.approx(float((whole.target == label).sum()) / 4, abs=1)

    @pytest.mark.parametrize("share", [0, 1.5, -1, True, "half"])
    def test_other_shares_are_refused(self, share: Any) -> None:
        with pytest.raises(ValueError, match="share must be"):
            load_source({"name": "digits", "share": share}, "data")

    def test_the_command_trains_on_them(self, tmp_path: Path) -> None:
        out = str(tmp_path / "run")
        narrow = ["--set", "model.channels=4", "--set", "model.blocks=1"]
        trained = CliRunner().invoke(app, ["train", "digits", "--epochs", "1", "--out", out, *narrow])
        assert trained.exit_code == 0, trained.output
        made = CliRunner().invoke(app, ["card", out, "--shares", "0.5", "--seconds", "0.05", "--json"])
        assert made.exit_code == 0, made.output
        card = read_json(Path(out) / "card.json")
        assert [point["share"] for point in card["data"]] == [0.5, 1.0]
        assert card["data"][0]["score"] != card["data"][1]["score"]

    def test_shares_are_nested(self) -> None:
        data = load_source({"name": "digits"}, "data")
        small, large = (
            {tuple(row) for row in take_share(data, s).train.inputs.flatten(1).tolist()} for s in (0.1, 0.4)
        )
        assert small < large


class TestShareBudget:
    """A recipe on shares of its data, each for the same number of steps."""

    @pytest.mark.parametrize("share", [0.05, 0.1, 0.5, 1.0])
    def test_every_share_has_the_same_steps(self, share: float) -> None:
        recipe = with_settings(find_recipe("digits"), ["training.batch=16"])
        kept = round(share * 1280)
        found = share_recipe(recipe, share, samples=kept, steps=400)
        assert found.training.epochs * (kept // min(16, kept)) == pytest.approx(400, abs=kept / 16)

    @pytest.mark.parametrize("name", ["ch06-darcy-small-ccnn-4-140", "ch08-cifar10-allcnn-p4"])
    def test_every_share_has_the_same_learning_rates(self, name: str) -> None:
        recipe = find_recipe(name)
        rates = []
        for share in (0.1, 1.0):
            kept = round(share * 4096)
            found = share_recipe(recipe, share, samples=kept, steps=2 * 4096 // recipe.training.batch)
            per_epoch = kept // recipe.training.batch
            rate = LearningRate(found.schedule, per_epoch, found.training.epochs)
            rates.append([rate.factor(int(done * rate.total)) for done in (0.02, 0.1, 0.3, 0.6, 0.8, 0.95)])
        assert rates[0] == pytest.approx(rates[1], abs=0.06)
        assert max(rates[1]) > 0.9

    def test_interrupted_and_continued(self, tmp_path: Path) -> None:
        recipe = with_settings(find_recipe("digits"), ["model.channels=4", "model.blocks=1", "training.batch=32"])
        options: dict[str, Any] = {"steps": 3, "shares": (0.05, 1.0), "test_samples": 40}
        whole = measure_shares(recipe, tmp_path / "a", **options)
        assert [point["samples"] for point in whole] == [66, 96]  # three steps see no more than three batches
        assert [point["steps"] for point in whole] == [4, 3]
        calls = iter(range(100))
        first = measure_shares(recipe, tmp_path / "b", should_stop=lambda: next(calls) > 5, **options)
        assert len(first) < 2
        told: list[float] = []
        rest = measure_shares(recipe, tmp_path / "b", on_result=lambda share, _: told.append(share), **options)
        assert [point["score"] for point in rest] == [point["score"] for point in whole]
        assert told == [0.05, 1.0]

    def test_shares_with_the_same_samples_are_one_training(self, tmp_path: Path) -> None:
        recipe = with_settings(find_recipe("digits"), ["model.channels=4", "model.blocks=1", "training.batch=32"])
        told: list[float] = []
        options: dict[str, Any] = {"on_result": lambda share, _: told.append(share), "test_samples": 40}
        points = measure_shares(recipe, tmp_path, steps=1, shares=(0.5, 1.0), **options)
        assert [folder.name for folder in tmp_path.iterdir()] == ["share-0.5"]
        assert [{**point, "share": 0.5} for point in points] == [points[0]] * 2
        assert told == [point["share"] for point in points] == [0.5, 1.0]

    def test_the_page_states_the_budget(self, run: Run) -> None:
        card = measure_card(run.folder, seconds=0.02)
        card |= {"data": [{"share": 0.1, "score": 0.5}, {"share": 1.0, "score": 0.75}], "share_steps": 6}
        assert "10 %: 50.00 %, 100 %: 75.00 %, after 6 steps each; the full training has 12" in card_text(card)

    def test_other_shares_are_refused(self, tmp_path: Path, run: Run) -> None:
        with pytest.raises(ValueError, match=r"shares must be above 0 and at most 1, got 1\.5"):
            measure_shares(find_recipe("digits"), tmp_path, steps=2, shares=(1.5,))
        with pytest.raises(ValueError, match="shares must be above 0 and below 1"):
            train_on_shares(run.folder, (1.0,))

"""The test samples with the largest errors, and their pictures in the report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from kernelfield.data.base import Data, Split, TargetScale
from kernelfield.data.transforms.batch import ScaleTarget
from kernelfield.experiments import finish
from kernelfield.experiments.finish import worst_samples
from kernelfield.experiments.metrics import IGNORED
from kernelfield.experiments.progress import summary
from kernelfield.experiments.run import Run, make_network, make_task
from kernelfield.experiments.task import Task
from kernelfield.viz.figures import plot_samples
from kernelfield.viz.report import _changes, _curves, _robustness
from tests.experiments.helpers import small_data, small_recipe

if TYPE_CHECKING:
    from pathlib import Path


class Mean(nn.Module):
    """Predict the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.scale * x.flatten(2).mean(dim=2)


class Scale(nn.Module):
    """Return the input times a number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.scale * x


def test_worst_samples_come_first_with_their_classes() -> None:
    inputs = torch.zeros(6, 2, 5)
    inputs[:, 0] = torch.tensor([1.0, 2.0, 3.0, -1.0, -2.0, 0.5]).view(6, 1)
    target = torch.tensor([0, 0, 1, 1, 0, 0])
    split = Split(inputs, target)
    data = Data.from_splits("x", [split, None, split], classes=("a", "b"))
    found = worst_samples(Task(Mean(), out_channels=2), data, count=2, batch=4)
    assert [sample.index for sample in found] == [2, 4]
    assert found[0].caption.startswith("true b, predicted a (95%)")


def test_errors_of_a_regression_are_in_its_own_unit(tmp_path: Path) -> None:
    inputs = torch.arange(4.0).flip(0).view(4, 1, 1, 1).expand(4, 1, 6, 6) / 4
    target = torch.tensor([[100.0], [110.0], [120.0], [900.0]])
    split = Split(inputs, target, prepare=ScaleTarget(TargetScale.of(target)))
    data = Data.from_splits("x", [split, None, split], "regression", out_channels=1)
    found = worst_samples(Task(Mean(), "regression", out_channels=1), data, count=1)
    assert found[0].index == 3
    assert found[0].caption.startswith("true 900, predicted")
    plot_samples([(sample.inputs, sample.caption) for sample in found], tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_masks_of_the_worst_images_show_what_is_true_and_what_is_predicted(tmp_path: Path) -> None:
    """Scores are the channels themselves; masked and ignored pixels neither count nor are drawn."""
    inputs = torch.zeros(3, 2, 4, 4)
    inputs[:, 0] = 1.0  # class 0 everywhere
    target = torch.zeros(3, 4, 4, dtype=torch.long)
    target[1, :2] = 1  # half of the pixels are wrong
    target[2, 0] = 1  # a fourth, which the mask hides
    target[0, 3] = IGNORED
    mask = target != 1
    mask[1] = True
    split = Split(inputs, target, mask=mask)
    data = Data.from_splits("x", [split, None, split], "segmentation", classes=("a", "b"))
    found = worst_samples(Task(Scale(), "segmentation", out_channels=2), data, count=3, batch=2)
    assert found[0].index == 1
    assert [sample.caption.split()[0] for sample in found] == ["50.0%", "0.0%", "0.0%"]
    assert found[0].classes is not None
    assert torch.equal(found[0].classes[0], target[1])
    assert torch.equal(found[0].classes[1], torch.zeros(4, 4, dtype=torch.long))
    hidden = {sample.index: int((sample.classes[1] == IGNORED).sum()) for sample in found if sample.classes}
    assert hidden == {0: 4, 1: 0, 2: 4}
    panels = [panel for sample in found for panel in sample.panels()]
    assert [caption for _, caption in panels[1:3]] == ["true", "predicted"]
    plot_samples(panels, tmp_path / "x.png", columns=3)
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_classes_along_a_sequence_have_no_pictures() -> None:
    split = Split(torch.zeros(2, 2, 4), torch.zeros(2, 4, dtype=torch.long))
    data = Data.from_splits("x", [split, None, split], "segmentation", classes=("a", "b"))
    assert worst_samples(Task(Scale(), "segmentation", out_channels=2), data) == []


@pytest.mark.parametrize("name", ["waves", "synthetic"])
@pytest.mark.usefixtures("pictures")
def test_accuracy_while_the_input_arrives_is_measured_on_real_data_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recipe, data = small_recipe("training.epochs=1"), replace(small_data(), name=name)
    monkeypatch.setattr("kernelfield.viz.report.write_report", lambda *_: None)
    monkeypatch.setattr(finish, "worst_samples", lambda *_, **__: [])
    (tmp_path / "run").mkdir()
    finish.write_pictures(Run(tmp_path / "run"), make_task(recipe, make_network(recipe), data), data, {}, 64)
    assert (tmp_path / "run" / "heard.json").exists() == (name == "waves")


@pytest.mark.usefixtures("pictures")
def test_worst_samples_are_found_on_the_device_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, data, order = small_recipe("training.epochs=1"), small_data(), []
    network = make_network(recipe)
    monkeypatch.setattr(finish, "worst_samples", lambda *_, **__: order.append("worst samples"))
    monkeypatch.setattr(network, "cpu", lambda: order.append("to the CPU") or network)
    monkeypatch.setattr("kernelfield.viz.report.write_report", lambda *_: order.append("report"))
    (tmp_path / "run").mkdir()
    finish.write_pictures(Run(tmp_path / "run"), make_task(recipe, network, data), data, {}, 64)
    assert order == ["worst samples", "to the CPU", "report"]


def test_each_metric_has_an_axis_of_its_own() -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure()
    row = {"epoch": 1.0, "train_loss": 1.0, "val_loss": 2.0, "val_accuracy": 0.5, "val_auc": 0.7}
    _curves(figure, [row, {**row, "epoch": 2.0}])
    labels = [axes.get_ylabel() for axes in figure.axes if axes.axison]
    assert labels == ["loss", "validation accuracy", "validation auc"]


def test_tests_on_other_data_have_any_name() -> None:
    """They are rows of the table, and not points of a curve over steps or speeds."""
    metrics = {name: {"accuracy": 0.5} for name in ("test", "step 2.0", "speed 0.5", "step one", "other rooms", "x2")}
    result = {"metric": "accuracy", "metrics": metrics, "parameters": 1, "epochs": 1, "seconds": 1.0}
    assert _changes(result) == {"step": [(2.0, 0.5)], "speed": [(0.5, 0.5)]}
    figure = Figure()
    _robustness(figure, result)
    assert [sorted(axes.lines[0].get_xdata()) for axes in figure.axes] == [[1.0, 2.0], [0.5, 1.0]]
    lines = summary(result)
    assert any(line.startswith("other rooms") for line in lines)
    assert any(line.startswith("step one") for line in lines)

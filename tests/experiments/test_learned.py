"""What training adds for learned architectures and dense predictions: metrics, the penalty, what a run tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from kernelfield import CCNN, DNArch, create_model
from kernelfield.data.base import Batch
from kernelfield.experiments.datasets import synthetic_data
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.loop import Loop
from kernelfield.experiments.metrics import Meter, is_better
from kernelfield.experiments.recipe import find_recipe, recipe_from, with_settings
from kernelfield.experiments.run import make_network, make_task
from kernelfield.experiments.task import Task
from kernelfield.groups import Bernoulli
from kernelfield.viz.groups import plot_subset_history

if TYPE_CHECKING:
    from pathlib import Path


def test_relative_l2_is_the_mean_over_samples() -> None:
    target = torch.stack([torch.ones(1, 4), 10 * torch.ones(1, 4)])
    prediction = target + torch.tensor([0.5, 1.0]).view(2, 1, 1)
    meter = Meter("dense-regression", 1)
    for i in range(2):
        meter.update(prediction[i : i + 1], Batch(torch.zeros(1, 1, 4), target[i : i + 1]))
    assert meter.compute()["l2"] == pytest.approx((0.5 + 0.1) / 2)
    assert is_better("l2", 0.1, 0.2)


def test_area_under_the_curve_of_pixels() -> None:
    torch.manual_seed(0)
    prediction = torch.randn(3, 2, 20, 20)
    target = (torch.rand(3, 20, 20) < 0.3).long()
    seen = torch.rand(3, 20, 20) < 0.9
    prediction[:, 1] += target
    meter = Meter("segmentation", 2)
    meter.update(prediction, Batch(torch.zeros(3, 1, 20, 20), target, mask=seen))
    scores = prediction.softmax(dim=1)[:, 1]
    wanted = binary_auroc(scores[seen], target[seen])
    assert meter.compute()["auc"] == pytest.approx(float(wanted), abs=1e-3)


def test_complexity_is_a_penalty() -> None:
    net = DNArch(CCNN(1, 2, size=8, channels=4, blocks=1, norm="none"), budget=0.5)
    batch = Batch(torch.randn(2, 1, 8), torch.tensor([0, 1]))
    plain = Task(net, out_channels=2).training_step(batch)
    for settings, target in (({"complexity": 3.0}, None), ({"complexity": {"weight": 3.0, "target": 2.0}}, 2.0)):
        loss = Task(net, out_channels=2, regularizers=settings).training_step(batch)
        torch.testing.assert_close(loss - plain, 3 * net.complexity_loss(target))
    with pytest.raises(ValueError, match=r"\bregularizers.complexity must .*CCNN"):
        Task(net.network, out_channels=2, regularizers={"complexity": 1.0})
    with pytest.raises(ValueError, match=r"\btarget must be given for a network without a budget"):
        Task(
            DNArch(CCNN(1, 2, size=8, channels=4, blocks=1), budget=None),
            out_channels=2,
            regularizers={"complexity": 1.0},
        )


@pytest.mark.usefixtures("pictures")
def test_a_run_reports_the_architecture(tmp_path: Path) -> None:
    recipe = recipe_from(
        {
            "name": "learned",
            "data": {"name": "digits"},
            "model": {"name": "dnarch_4_140", "channels": 4, "blocks": 1, "hidden": 4},
            "shape": {"in_channels": 1, "out_channels": 10, "size": [8, 8]},
            "training": {"epochs": 2, "batch": 4},
            "regularizers": {"complexity": 1.0},
        }
    )
    run = fit(recipe, tmp_path / "run", synthetic=True)
    rows = run.read_rows("masks.csv")
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[0]["block1.resolution.1"] == 8
    result = run.result()
    assert result["architecture"][0].startswith("block | kernel")
    assert "Architecture" in (run.folder / "report.html").read_text()
    assert float(run.network().relative_complexity().detach()) == pytest.approx(rows[-1]["complexity"], rel=1e-3)


def test_temperature_falls_over_the_training_and_subsets_are_recorded(tmp_path: Path) -> None:
    recipe = recipe_from(
        {
            "name": "subsets",
            "data": {"name": "rotated_digits", "resolution": 12},
            "model": {"name": "partial_gcnn_e2", "samples": 4, "channels": [2, 2, 2, 2], "kernel_size": 3},
            "training": {"epochs": 2, "batch": 8, "temperature": [0.5, 0.1]},
        }
    )
    assert find_recipe("ch11-mnist6-m-mirror-partial").training.temperature == [0.5, 0.0001]
    task = make_task(recipe, make_network(recipe))
    data = synthetic_data(recipe.shape, samples=16)
    loop, met = Loop(task, data.train, None, recipe.training), {}
    mirrors = [m for m in task.network.modules() if isinstance(m, Bernoulli)]
    for _ in loop.steps():
        met[loop.state.step] = mirrors[0].temperature
    assert met == pytest.approx({1: 0.5, 2: 0.4, 3: 0.3, 4: 0.2})
    assert len({m.temperature for m in mirrors}) == 1
    rows = loop.state.masks
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[0]["last.distribution.parts.0.1"] == pytest.approx(0.9, abs=0.05)
    plot_subset_history(rows, tmp_path / "subsets.png")
    assert (tmp_path / "subsets.png").stat().st_size > 1000
    with pytest.raises(ValueError, match=r"\bhistory must"):
        plot_subset_history([{"epoch": 1.0, "blocks.0.mask": 0.5}], tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"training\.temperature must"):
        with_settings(recipe, ["training.temperature=[0.5, 0]"])


def test_augerino_has_a_penalty_of_its_own() -> None:
    net = create_model("augerino_se2", samples=2, channels=(2, 2, 2, 2), kernel_size=3)
    batch = Batch(torch.randn(2, 1, 14, 14), torch.tensor([0, 1]))
    net.distribution.freeze()
    plain = Task(net, out_channels=10).training_step(batch)
    loss = Task(net, out_channels=10, regularizers={"augerino": 0.5}).training_step(batch)
    torch.testing.assert_close(loss - plain, 0.5 * net.regulariser())
    with pytest.raises(ValueError, match=r"\bregularizers.augerino must .*PartialGCNN"):
        Task(net.net, out_channels=10, regularizers={"augerino": 0.5})

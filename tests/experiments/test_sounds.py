"""What chapter 10 needs of training: tests at other speeds, the wavelet penalty, metrics of tags, folds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield.data.base import Batch, Split
from kernelfield.experiments.metrics import Meter
from kernelfield.experiments.reproduce import reproduce
from kernelfield.experiments.results import results_table
from kernelfield.experiments.robustness import at_speed
from kernelfield.experiments.task import Task
from kernelfield.models.wavelet_net import Stage, WaveletNet

if TYPE_CHECKING:
    from pathlib import Path


def test_speed_changes_length_and_pitch() -> None:
    t = torch.arange(200) / 200
    wave = torch.sin(2 * math.pi * 5 * t).expand(3, 1, -1)
    split = Split(wave, torch.zeros(3, dtype=torch.long), mask=torch.arange(200).expand(3, -1) < 100)
    slow = at_speed(split, 0.5).batch(slice(None))
    torch.testing.assert_close(slow.inputs[..., ::2], wave, atol=1e-5, rtol=0)
    assert slow.mask.shape == (3, 400)
    assert slow.mask.sum(dim=1).tolist() == [200] * 3
    assert slow.step == 1.0
    assert at_speed(split, 1.6).batch(slice(None)).inputs.shape == (3, 1, 125)
    with pytest.raises(ValueError, match="speed"):
        at_speed(Split(torch.zeros(2, 1, 8, 8), torch.zeros(2)), 2.0)


def test_the_wavelet_penalty_is_added() -> None:
    net = WaveletNet(1, 10, stages=[Stage(4, 9)], scales=3)
    batch = Batch(torch.randn(2, 1, 40), torch.tensor([1, 2]))
    plain, with_penalty = Task(net), Task(net, regularizers={"wavelet": 2.0})
    more = with_penalty.training_step(batch) - plain.training_step(batch)
    total = net.stages[0].conv.kernel.field.coefficients.sum(dim=0).square().mean()
    torch.testing.assert_close(more, 2 * total, rtol=1e-4, atol=1e-5)


def test_metrics_of_tags_against_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(8, (40, 6), generator=generator).float()
    labels = (torch.rand(40, 6, generator=generator) < 0.4).float()
    labels[:, 0] = 0  # a tag that no clip has says nothing
    labels[3] = 0
    meter = Meter("multilabel", 6)
    meter.update(scores, Batch(torch.zeros(40, 1, 1), labels))
    found = meter.compute()
    tags = [i for i in range(6) if 0 < labels[:, i].sum() < 40]
    clips = [i for i in range(40) if 0 < labels[i].sum() < 6]
    for name, theirs in (("map", metrics.average_precision_score), ("auc", metrics.roc_auc_score)):
        wanted = [theirs(labels[:, i].numpy(), scores[:, i].numpy()) for i in tags]
        assert found[name] == pytest.approx(sum(wanted) / len(wanted))
        wanted = [theirs(labels[i].numpy(), scores[i].numpy()) for i in clips]
        assert found[f"{name}_clip"] == pytest.approx(sum(wanted) / len(wanted))
    alone = Meter("multilabel", 1)
    alone.update(scores[:, :1], Batch(torch.zeros(40, 1, 1), labels[:, :1]))
    assert math.isnan(alone.compute()["auc"])


def test_folds_are_averaged(tmp_path: Path) -> None:
    settings = ["training.epochs=1", "training.batch=4", "shape.size=[256]", "test.speed=[2.0]"]
    settings += ["model.scales=0"]
    result = reproduce(
        "ch10-fsdd-m5", tmp_path / "results", tmp_path / "runs", settings=settings, folds=(0, 1), synthetic=True
    )
    assert result["status"] == "done"
    assert list(result["folds"]) == ["0", "1"]
    each = [fold["metrics"]["speed 2.0"]["accuracy"] for fold in result["folds"].values()]
    assert result["metrics"]["speed 2.0"]["accuracy"] == pytest.approx(sum(each) / 2)
    assert (tmp_path / "runs" / "synthetic" / "ch10-fsdd-m5" / "fold-1" / "recipe.yaml").exists()
    assert " ± " in results_table(tmp_path / "results" / "synthetic")

"""Metrics: equal to their definitions, whatever the batches, and accumulated without waiting for the device."""

from __future__ import annotations

import math

import pytest
import torch

from kernelfield.data.base import Batch, TargetScale
from kernelfield.experiments.metrics import Meter, metric_names
from kernelfield.experiments.task import Task


def batch(target: torch.Tensor, mask: torch.Tensor | None = None, scale: TargetScale | None = None) -> Batch:
    return Batch(torch.zeros(len(target), 1, 4), target, mask=mask, scale=scale)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_accuracy_and_mean_iou_by_their_definitions() -> None:
    prediction, target = torch.randn(6, 5, 7), torch.randint(3, (6, 7))  # classes 3 and 4 are predicted, never right
    seen = torch.rand(6, 7) < 0.8
    meter = Meter("segmentation", 5)
    for part in (slice(0, 2), slice(2, 6)):
        meter.update(prediction[part], batch(target[part], seen[part]))
    found = meter.compute()
    guess, truth = prediction.argmax(dim=1)[seen], target[seen]
    assert found["accuracy"] == pytest.approx(float((guess == truth).double().mean()))
    ious = [
        float(((guess == c) & (truth == c)).sum() / ((guess == c) | (truth == c)).sum())
        for c in range(5)
        if ((guess == c) | (truth == c)).any()
    ]
    assert found["iou"] == pytest.approx(sum(ious) / len(ious))
    wanted = torch.zeros(5, 5, dtype=torch.long)
    for t, g in zip(truth.tolist(), guess.tolist(), strict=True):
        wanted[t, g] += 1
    assert torch.equal(meter.confusion, wanted)


def test_classes_that_neither_occur_nor_are_predicted_do_not_count() -> None:
    prediction = torch.nn.functional.one_hot(torch.tensor([[0, 1, 1, 0]]), 4).mT.float()
    meter = Meter("segmentation", 4)
    meter.update(prediction, batch(torch.tensor([[0, 1, 1, 1]])))
    assert meter.compute()["iou"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_errors_by_their_definitions() -> None:
    prediction, target = torch.rand(6, 2, 8), torch.rand(6, 2, 8)
    seen = torch.rand(6, 8) < 0.7
    meter = Meter("dense-regression", 2)
    for part in (slice(0, 1), slice(1, 6)):
        meter.update(prediction[part], batch(target[part], seen[part]))
    found = meter.compute()
    errors = (prediction - target).double()
    rows = [e[:, s] for e, s in zip(errors, seen, strict=True)]
    every = torch.cat([row.flatten() for row in rows])
    assert found["mse"] == pytest.approx(float(every.square().mean()))
    assert found["mae"] == pytest.approx(float(every.abs().mean()))
    assert found["loss"] == pytest.approx(found["mse"], rel=1e-5)
    psnr = [-10 * math.log10(float(row.square().mean())) for row in rows]
    assert found["psnr"] == pytest.approx(sum(psnr) / 6)
    norms = [float(row.norm() / t[:, s].double().norm()) for row, t, s in zip(rows, target, seen, strict=True)]
    assert found["l2"] == pytest.approx(sum(norms) / 6)


def test_errors_are_in_the_unit_of_the_target() -> None:
    scale = TargetScale((100.0,), (10.0,))
    meter = Meter("regression", 1)
    meter.update(torch.tensor([[0.0], [1.0]]), batch(torch.tensor([[0.5], [0.0]]), scale=scale))
    assert meter.compute()["mae"] == pytest.approx((5 + 10) / 2)


def test_relative_errors_do_not_depend_on_the_scale_of_training() -> None:
    target, prediction = 100 + 10 * torch.randn(3, 2, 8), 100 + 10 * torch.randn(3, 2, 8)
    seen = torch.rand(3, 8) < 0.7
    scale = TargetScale((90.0, 110.0), (5.0, 20.0))
    plain, scaled = Meter("dense-regression", 2), Meter("dense-regression", 2)
    plain.update(prediction, batch(target, seen))
    scaled.update(scale.normal(prediction), batch(scale.normal(target), seen, scale=scale))
    for name in ("mse", "mae", "psnr", "l2"):
        assert scaled.compute()[name] == pytest.approx(plain.compute()[name], rel=1e-5)


def test_area_under_the_curve_is_the_share_of_ordered_pairs() -> None:
    # Scores far beyond what a sigmoid of float32 tells apart, with ties.
    scores, labels = torch.randint(10, (60, 1)).float() * 50, torch.randint(2, (60, 1))
    meter = Meter("multilabel", 1)
    meter.update(scores, batch(labels.float()))
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None]
    wanted = ((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean()
    assert meter.compute()["auc"] == pytest.approx(float(wanted), abs=1e-6)


def test_bits_are_the_loss_in_units_of_log_2() -> None:
    meter = Meter("language", 4)
    meter.update(torch.zeros(2, 4, 6), batch(torch.randint(4, (2, 6))))
    assert meter.compute()["bits"] == pytest.approx(2.0)  # of 4 equally likely tokens


def test_metrics_of_no_samples_are_nan() -> None:
    meter = Meter("segmentation", 3)
    meter.update(torch.randn(2, 3, 4), batch(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.bool)))
    assert math.isnan(meter.compute()["accuracy"])


@pytest.mark.parametrize("task", ["classification", "segmentation", "dense-regression"])
def test_memory_does_not_grow_with_batches(task: str) -> None:
    target = {"classification": torch.randint(3, (4,)), "segmentation": torch.randint(3, (4, 5))}
    meter = Meter(task, 3)

    def held() -> int:
        owned = [meter.confusion, meter.bins, meter.part_ious]
        return sum(t.numel() for t in owned) + sum(len(vars(m)) for m in meter._means.values())

    prediction = torch.randn(4, 3) if task == "classification" else torch.randn(4, 3, 5)
    sizes = []
    for _ in range(3):
        meter.update(prediction, batch(target.get(task, torch.randn(4, 3, 5))))
        sizes.append(held())
    assert len(set(sizes)) == 1
    assert meter._scores == []


def test_a_relative_error_does_not_depend_on_the_scale_of_the_target() -> None:
    raw, error = torch.randn(4, 1, 9).double() + 3, 0.1 * torch.randn(4, 1, 9).double()
    scale = TargetScale.of(raw)
    plain, scaled = Meter("dense-regression", 1), Meter("dense-regression", 1)
    plain.update(raw + error, batch(raw))
    scaled.update(scale.normal(raw + error), batch(scale.normal(raw), scale=scale))
    found, wanted = scaled.compute(), plain.compute()
    assert {name: found[name] for name in ("mse", "l2")} == {
        name: pytest.approx(wanted[name], rel=1e-4) for name in ("mse", "l2")
    }


def test_two_classes_of_pixels_with_outputs_that_are_not_finite() -> None:
    meter = Meter("segmentation", 2)
    meter.update(torch.full((1, 2, 4), math.nan), batch(torch.zeros(1, 4, dtype=torch.long)))
    assert int(meter.nonfinite) == 1
    assert all(math.isnan(value) for value in meter.compute().values())


@pytest.mark.parametrize(
    ("task", "out", "target"),
    [
        ("classification", 3, torch.tensor([0, 2])),
        ("multilabel", 3, torch.tensor([[0.0, 1, 0], [1, 0, 1]])),
        ("multilabel", 1, torch.tensor([[0.0], [1]])),
        ("regression", 1, torch.zeros(2, 1)),
        ("dense-regression", 1, torch.zeros(2, 1, 4)),
        ("segmentation", 2, torch.zeros(2, 4).long()),
        ("segmentation", 3, torch.zeros(2, 4).long()),
        ("language", 5, torch.zeros(2, 4).long()),
    ],
)
def test_names_are_those_of_the_metrics(task: str, out: int, target: torch.Tensor) -> None:
    meter = Meter(task, out)
    space = (4,) if task in ("dense-regression", "segmentation", "language") else ()
    meter.update(torch.randn(2, out, *space), batch(target))
    assert set(meter.compute()) == set(metric_names(task, out))
    for wrong in {"psnr", "bits", "iou"} - set(metric_names(task, out)):
        with pytest.raises(ValueError, match="metric must"):
            Task(torch.nn.Identity(), task, out_channels=out, metric=wrong)


def test_a_large_vocabulary_has_no_confusion_matrix() -> None:
    meter = Meter("language", 100_000)
    target = torch.tensor([[7, 99_999]])
    prediction = torch.zeros(1, 100_000, 2)
    prediction[0, 7, 0] = 1.0
    meter.update(prediction, batch(target))
    assert meter.compute()["accuracy"] == 0.5
    assert meter.confusion.numel() == 0


def test_label_smoothing_needs_classes() -> None:
    with pytest.raises(ValueError, match="label_smoothing"):
        Task(torch.nn.Identity(), "regression", out_channels=1, label_smoothing=0.1)


def test_samples_without_targets_are_not_perfect() -> None:
    """A sample whose positions are all unobserved has no error to average."""
    meter = Meter("dense-regression", 1)
    mask = torch.tensor([[True] * 4, [False] * 4])
    meter.update(torch.full((2, 1, 4), 0.5), Batch(torch.zeros(2, 1, 4), torch.ones(2, 1, 4), mask=mask))
    found = meter.compute()
    assert (found["mse"], found["l2"]) == (0.25, 0.5)
    assert found["psnr"] == pytest.approx(-10 * math.log10(0.25))

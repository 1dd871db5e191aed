"""How estimators train: which samples a network sees, with which settings, and which weights it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from kernelfield.data.base import Split
from kernelfield.experiments.settings import Schedule
from kernelfield.sklearn import CCNNClassifier, CCNNRegressor
from kernelfield.sklearn._blend import folds

if TYPE_CHECKING:
    from torch import Tensor

SMALL = {"channels": 4, "blocks": 1, "networks": 1, "random_kernels": 0, "device": "cpu"}


def numbered(n: int = 40) -> Split:
    """Return samples whose values are their number."""
    return Split(torch.arange(float(n)).view(n, 1, 1).expand(n, 1, 6).clone(), torch.arange(n) % 4)


def numbers(split: Split) -> set[int]:
    return set(split.inputs[:, 0, 0].int().tolist())


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_share_of_every_class_is_held_out(share: float) -> None:
    split = numbered()
    train, held = CCNNClassifier(validation_fraction=share)._divide(split, seed=0)
    assert held is not None
    assert len(held) == 40 * share
    assert numbers(train) | numbers(held) == set(range(40))
    assert not numbers(train) & numbers(held)
    assert held.target.bincount().tolist() == [10 * share] * 4
    assert numbers(held) != numbers(CCNNClassifier(validation_fraction=share)._divide(split, seed=1)[1])
    assert CCNNClassifier()._divide(split, seed=0) == (split, None)


def test_the_weights_of_the_best_epoch_are_kept() -> None:
    source = np.random.default_rng(0)
    x, y = source.normal(size=(24, 1, 8)), source.normal(size=24)  # nothing to learn: the last epoch is not the best
    fitted = CCNNRegressor(**SMALL, epochs=8, lr=0.1, validation_fraction=0.25, random_state=0).fit(x, y)
    scores = [row["val_mse"] for row in fitted.history_]
    assert fitted.validation_score_ == min(scores)
    assert min(scores) < scores[-1]
    target = fitted._scale_.normal(torch.from_numpy(y).view(-1, 1))
    held = fitted._divide(fitted._split(x, target), seed=0)[1]
    with torch.no_grad():
        error = (fitted.network_(held.inputs) - held.target).square().mean()
    assert float(error) == pytest.approx(fitted.validation_score_, rel=1e-4)


def test_settings_of_the_training_are_those_of_the_estimator() -> None:
    given = {"lr": 0.03, "weight_decay": 0.2, "label_smoothing": 0.1}
    network = nn.Linear(1, 1)
    for kind, smoothing in ((CCNNClassifier, 0.1), (CCNNRegressor, 0.0)):
        task = kind(**given)._task(network, 1, Schedule("constant"))
        found = task.optimizer_settings.lr, task.optimizer_settings.weight_decay, task.label_smoothing
        assert found == (0.03, 0.2, smoothing)


class Recording(CCNNClassifier):
    """Trains nothing, and notes what it was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[set[int], int]] = []

    def _build(self, split: Split, out: int) -> nn.Module:
        return Answer(out)

    def _train(self, network: nn.Module, train: Split, *others: Any) -> nn.Module:
        self.calls.append((numbers(train), others[-1]))
        network.seen = len(self.calls)
        return network


class Answer(nn.Module):
    """Answers with the number of its training."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.out, self.seen = out, 0

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((len(x), self.out), float(self.seen), dtype=x.dtype)


def test_a_network_is_tested_on_samples_that_it_has_not_seen() -> None:
    split, model = numbered(), Recording()
    held_out = model._cross_fit(split, 4, seed=5, count=3)
    part = folds(split.target, 3, seed=5)
    assert [seed for _, seed in model.calls] == [5, 6, 7]
    for i, (seen, _) in enumerate(model.calls):
        assert seen == set((part != i).nonzero()[:, 0].tolist())
        assert bool((held_out[part == i] == i + 1).all())


def test_shares_of_networks_and_kernels_add_up_to_one() -> None:
    model = CCNNClassifier()
    model.networks_, model.random_kernels_, model._blend_ = [None] * 2, None, None
    assert model._shares() == [(0.5, 1.0)] * 2
    model.random_kernels_ = object()
    assert model._shares() == [(0.25, 1.0)] * 2 + [(0.5, 1.0)]
    model._blend_ = (0.4, 3.0)
    assert model._shares() == [(0.2, 3.0)] * 2 + [(0.6, 1.0)]


class Drawing(CCNNClassifier):
    """Trains nothing, and notes a random number of each pass."""

    def _train_pass(self, *_: Any) -> tuple[Any, float]:
        self.drawn = [*getattr(self, "drawn", []), float(torch.rand(()))]
        return None, 0.0


def test_calls_of_partial_fit_draw_other_numbers_but_the_same_in_a_repetition() -> None:
    x, y = np.random.default_rng(0).normal(size=(8, 1, 6)), np.arange(8) % 2
    found = []
    for seed in (0, 0, 1):
        model = Drawing(channels=2, blocks=1, device="cpu", random_state=seed)
        for _ in range(3):
            model.partial_fit(x, y, classes=[0, 1])
        assert len(set(model.drawn)) == 3
        found.append(model.drawn)
    assert found[0] == found[1] != found[2]


def test_a_step_of_irregular_series_is_their_median_gap() -> None:
    series = [(np.array([0.0, 2.0, 4.0, 6.0, 60.0]), np.zeros(5)), (np.array([5.0, 7.0, 8.0]), np.zeros(3))]
    model = CCNNClassifier()
    _, mask = model._read(series)
    assert model._unit_ == 2.0
    assert mask.sum(dim=1).tolist() == [5, 3]


def test_channels_tell_which_values_of_irregular_series_were_observed() -> None:
    times = np.arange(4.0)
    series = [{"a": (times, times), "b": (times[1:3], times[1:3])}, {"a": (times[:2], times[:2]), "b": (times, times)}]
    model = CCNNClassifier()
    model._start(series, *model._read(series))
    inputs, mask = model.prepare(series)
    assert inputs.shape == (2, 4, 4)
    assert mask.all()
    assert inputs[:, 2:].tolist() == [[[1, 1, 1, 1], [0, 1, 1, 0]], [[1, 1, 0, 0], [1, 1, 1, 1]]]
    assert bool((inputs[:, :2][inputs[:, 2:] == 0] == 0).all())
    for channel in range(2):
        seen = inputs[:, channel][inputs[:, 2 + channel] == 1]
        assert (float(seen.mean()), float(seen.std(correction=0))) == pytest.approx((0, 1), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start_from": "ccnn_4_140.digits", "options": {"readout": "last"}}, "options must be None with start_from"),
        ({"start_from": "ccnn_4_140.digits", "dropout": 0.5}, "dropout must be left at its default with start_from"),
        ({"model": "resnet20", "dropout": 0.5}, "dropout must be left at its default for model='resnet20'"),
    ],
)
def test_arguments_that_a_network_does_not_take_are_refused(arguments: dict[str, Any], message: str) -> None:
    x = np.random.default_rng(0).normal(size=(8, 1, 8, 8) if "model" in arguments else (8, 1, 64))
    x = np.repeat(x, 3, axis=1) if "model" in arguments else x
    with pytest.raises(ValueError, match=message):
        CCNNClassifier(**arguments, epochs=1, random_kernels=0, device="cpu").fit(x, np.arange(8) % 2)


def test_random_kernels_for_series_with_times_are_refused() -> None:
    x = [(np.arange(6.0) + 0.1 * i, np.full(6, float(i))) for i in range(8)]
    with pytest.raises(ValueError, match=r"random_kernels must be None or 0 for series with times, got 50"):
        CCNNClassifier(**{**SMALL, "random_kernels": 50}, epochs=1).fit(x, np.arange(8) % 2)


def test_patience_without_validation_samples_is_refused_in_a_single_pass() -> None:
    x, y = np.random.default_rng(0).normal(size=(8, 1, 8)), np.arange(8) % 2
    with pytest.raises(ValueError, match=r"patience must be None for partial_fit, got 2"):
        CCNNClassifier(**SMALL, patience=2).partial_fit(x, y, classes=[0, 1])

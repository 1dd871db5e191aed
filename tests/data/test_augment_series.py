"""Random changes of series in training."""

from __future__ import annotations

import itertools
import wave
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield.data import load
from kernelfield.data.base import Batch
from kernelfield.data.transforms.augment_series import AugmentSeries, augment_series
from kernelfield.data.transforms.log_mel import LogMel
from kernelfield.data.transforms.resize import resize
from kernelfield.experiments.datasets import load_source

if TYPE_CHECKING:
    from pathlib import Path

NONE = {"shift": 0, "speed": 0, "gain": 0, "noise": 0, "hide": 0}


def test_no_augmentation_changes_nothing() -> None:
    batch = Batch(torch.randn(3, 2, 20), mask=torch.ones(3, 20, dtype=torch.bool))
    changed = AugmentSeries(**NONE)(batch, True)
    torch.testing.assert_close(changed.inputs, batch.inputs)
    assert AugmentSeries()(batch, False) is batch


@pytest.mark.parametrize("name", list(NONE))
def test_each_augmentation_changes_training_samples(name: str) -> None:
    torch.manual_seed(0)
    wave = torch.sin(torch.arange(64) / 5).expand(4, 1, 64)
    changed = AugmentSeries(**{**NONE, name: 0.3})(Batch(wave), True).inputs
    assert changed.shape == wave.shape
    assert torch.isfinite(changed).all()
    assert not torch.allclose(changed[0], changed[1])


def test_amounts_of_augmentation_are_those_given() -> None:
    torch.manual_seed(0)
    ones, ramp = torch.ones(500, 1, 101), torch.arange(-50.0, 51).expand(500, 1, 101)

    def changed(x: torch.Tensor, name: str) -> torch.Tensor:
        return AugmentSeries(**{**NONE, name: 0.2})(Batch(x), True).inputs[:, 0]

    gain = changed(ones, "gain")[:, 0].log()
    assert (float(gain.mean()), float(gain.std())) == pytest.approx((0, 0.2), abs=0.03)
    noise = changed(ones, "noise") - 1
    assert (float(noise.mean()), float(noise.std())) == pytest.approx((0, 0.2), abs=0.01)
    hidden = (changed(ones, "hide") == 0).double().mean(dim=1)
    assert 0.19 < hidden.max() <= 0.21
    assert float(hidden.mean()) == pytest.approx(0.1, abs=0.01)
    middle = changed(ramp, "shift")[:, 50]  # a share of the length, either way
    assert (float(middle.min()), float(middle.max())) == pytest.approx((-20.2, 20.2), abs=0.5)
    stretched = changed(ramp, "speed")
    slope = stretched[:, 60] / 10
    torch.testing.assert_close(stretched[:, 50], torch.zeros(500), rtol=0, atol=1e-4)
    assert (float(slope.min()), float(slope.max())) == pytest.approx((0.8, 1.2), abs=0.01)


def test_channels_that_mark_observations_stay_zeros_and_ones(tmp_path: Path) -> None:
    """Values that were not observed stay zero, with every augmentation."""
    file = tmp_path / "gaps.csv"
    values = torch.randn(40, 2, 32, generator=torch.Generator().manual_seed(0)).tolist()
    lines = [
        f"{n},{t},{'ab'[c]},{values[n][c][t]},{'xy'[n % 2]}"
        for n, c, t in itertools.product(range(40), range(2), range(32))
        if not (c and n % 4 == 0 and 5 <= t < 9)  # one of two channels
    ]
    file.write_text("\n".join(["id,time,channel,value,label", *lines]))
    data = augment_series(load("csv_series", file))
    inputs = data.train.batch(slice(None), training=True).inputs
    assert inputs.shape[1] == 4
    values, observed = inputs.split(2, dim=1)
    assert set(observed.unique().tolist()) == {0.0, 1.0}
    assert (values[observed == 0] == 0).all()
    assert (values[observed == 1] != 0).any()


def test_a_shift_moves_values_and_mask_together() -> None:
    torch.manual_seed(0)
    ramp = torch.arange(1.0, 41).view(1, 1, 40).expand(8, 1, 40)
    mask = torch.arange(40).expand(8, 40) < 30
    changed = AugmentSeries(**{**NONE, "shift": 0.2})(Batch(ramp * mask.unsqueeze(1), mask=mask), True)
    assert changed.mask is not None
    assert (changed.inputs.squeeze(1)[~changed.mask] == 0).all()
    inner = changed.mask[:, 1:] & changed.mask[:, :-1]
    slopes = changed.inputs.diff(dim=2).squeeze(1)[inner]
    assert (slopes.sub(1).abs() < 1e-3).float().mean() > 0.95  # the end of a series meets zeros


def test_recipes_take_augment_for_series_but_not_for_images() -> None:
    data = load_source({"name": "chirps", "augment": {"noise": 0.2}}, "data")
    assert data.train.prepare.augments
    assert data.test.prepare is None or not getattr(data.test.prepare, "augments", False)
    with pytest.raises(ValueError, match=r"\baugment\b.*'digits'"):
        load_source({"name": "digits", "augment": True}, "data")
    with pytest.raises(ValueError, match=r"augment.noise.*-1"):
        augment_series(load("chirps"), {"noise": -1})
    with pytest.raises(ValueError, match=r"\baugment\b.*nose"):
        augment_series(load("chirps"), {"nose": 1})


def test_sounds_are_augmented_in_either_form(tmp_path: Path) -> None:
    for i in range(12):
        path = tmp_path / "ab"[i % 2] / f"{i}.wav"
        path.parent.mkdir(exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes((1000 * torch.randn(2000)).short().numpy().tobytes())
    for features, change, kind in (
        ("raw", True, AugmentSeries),
        ("mel", True, LogMel),
        ("mel", {"gain": 1}, AugmentSeries),
    ):
        source = {"name": "wav_folder", "root": str(tmp_path), "rate": 8000, "features": features, "augment": change}
        data = load_source(source, "data")
        assert [type(step) for step in data.train.prepare.steps if getattr(step, "augments", False)] == [kind]
        assert torch.isfinite(data.train.batch(slice(0, 2), training=True).inputs).all()


def test_resizing_keeps_constants_and_slow_waves_and_removes_fast_ones() -> None:
    x = torch.arange(64) + 0.5
    slow, fast = torch.cos(2 * torch.pi * 2 * x / 64), torch.cos(2 * torch.pi * 28 * x / 64)
    torch.testing.assert_close(resize(torch.ones(2, 9, 9), (4, 13)), torch.ones(2, 4, 13))
    coarse = resize(slow, (32,))
    wanted = torch.cos(2 * torch.pi * 2 * (torch.arange(32) + 0.5) / 32)
    assert (coarse - wanted)[2:-2].abs().max() < 0.02
    assert resize(fast, (32,))[2:-2].abs().max() < 0.1 < fast[::2].abs().max()
    image = torch.randn(1, 1, 16, 12)
    wanted = torch.nn.functional.interpolate(image, (8, 6), mode="bicubic", antialias=True)
    torch.testing.assert_close(resize(image, (8, 6)), wanted, atol=1e-4, rtol=1e-4)

"""Levels of mel bands: by their definition, relative to the loudest or to their mean, augmented in training alone."""

from __future__ import annotations

import math

import pytest
import torch

from kernelfield.data.base import Batch
from kernelfield.data.transforms.log_mel import LogMel
from kernelfield.data.transforms.mfcc import mel_filters

RATE, WINDOW = 8_000, 128


def band_powers(sound: torch.Tensor) -> torch.Tensor:
    """Return the powers (mels, frames) of centred Hann windows, one frame at a time."""
    padded = torch.nn.functional.pad(sound, (WINDOW // 2, WINDOW // 2))
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(WINDOW) / WINDOW)
    frames = [torch.fft.rfft(padded[i : i + WINDOW] * window) for i in range(0, len(sound) + 1, WINDOW // 2)]
    return mel_filters(40, WINDOW // 2 + 1, RATE) @ torch.stack(frames, dim=1).abs().square()


def tone(frequency: float = 1_000.0, length: int = 2_000) -> torch.Tensor:
    """Return a tone that becomes louder."""
    time = torch.arange(length) / RATE
    return time * torch.sin(2 * math.pi * frequency * time)


def levels(sound: torch.Tensor, training: bool = False, **options: float) -> torch.Tensor:
    """Return the levels (n, mels, frames) of sounds (n, length)."""
    return LogMel(WINDOW, RATE, scale=1.0, **options)(Batch(sound.unsqueeze(1)), training).inputs


def test_levels_by_their_definition() -> None:
    sound = tone()
    wanted = torch.log(band_powers(sound) + 1e-6)
    torch.testing.assert_close(levels(sound[None])[0], wanted - wanted.mean(dim=1, keepdim=True), rtol=0, atol=1e-3)


@pytest.mark.parametrize("floor", [20.0, 60.0])
def test_a_floor_is_in_decibels_below_the_loudest_level(floor: float) -> None:
    sound, silence = tone(), 10 ** (-floor / 10)
    power = band_powers(sound)
    found = levels(torch.stack([sound, 100 * sound]), floor=floor)
    torch.testing.assert_close(found[0], torch.log(power / power.max() + silence), rtol=0, atol=1e-3)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-3)
    assert float(found.max()) == pytest.approx(math.log(1 + silence), abs=1e-5)
    assert float(levels(torch.zeros(1, 500), floor=floor).max()) == pytest.approx(math.log(silence), abs=1e-4)


def test_sounds_are_moved_in_training_alone_and_as_far_as_given() -> None:
    torch.manual_seed(0)
    pulse = torch.zeros(400, 6_464)
    pulse[:, 3_200] = 1.0
    assert not LogMel(WINDOW, RATE).augments
    plain = levels(pulse, shift=0.2, floor=30.0)
    torch.testing.assert_close(plain, levels(pulse, floor=30.0))
    assert set(plain[:, 20].argmax(dim=1).tolist()) == {50}
    moved = levels(pulse, training=True, shift=0.2, floor=30.0)[:, 20].argmax(dim=1) - 50
    frames = plain.shape[-1]
    assert int(moved.abs().max()) <= 0.2 * frames + 1
    assert int(moved.max()) > 0.18 * frames
    assert int(moved.min()) < -0.18 * frames


def test_stretched_sounds_keep_their_middle() -> None:
    torch.manual_seed(0)
    pulses = torch.zeros(300, 6_400)
    pulses[:, 3_200] = pulses[:, 5_120] = 1.0  # the middle, and 0.6 of the way to the end
    found = levels(pulses, training=True, stretch=0.25, floor=30.0)[:, 20]
    assert set(found[:, 45:56].argmax(dim=1).tolist()) == {5}
    later = found[:, 56:].argmax(dim=1) + 6
    assert 22 <= int(later.min()) <= 26  # 30 frames / 1.25
    assert 38 <= int(later.max()) <= 42  # 30 frames / 0.75

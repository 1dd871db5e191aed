"""Speech Commands in its layout, and cepstral coefficients."""

from __future__ import annotations

import math
import wave
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.sets.audio.fsdd import fsdd
from kernelfield.data.sets.audio.speech_commands import WORDS, speech_commands
from kernelfield.data.transforms.mfcc import mel_filters, mfcc

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(0)


def write(path: Path, samples: int = 16_000, rate: int = 16_000, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(RNG.integers(-9000, 9000, samples * channels, dtype=np.int16).tobytes())


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    for word in WORDS:
        for i in range(4):
            write(tmp_path / "speech_commands_v0.02" / word / f"{i}_nohash_0.wav")
        write(tmp_path / "speech_commands_v0.02" / word / "short.wav", samples=15_000)
    write(tmp_path / "speech_commands_v0.02" / "bed" / "0.wav")
    return tmp_path


def test_raw_clips_of_another_length_are_left_out(clips: Path) -> None:
    data = speech_commands(clips, shares=(0.5, 0.25, 0.25))
    assert [len(s) for s in (data.train, data.validation, data.test)] == [20, 10, 10]  # the short ones are left out
    assert torch.bincount(data.test.target).tolist() == [1] * 10
    assert data.classes == WORDS
    assert data.train.inputs.dtype == torch.int16
    x = data.train.batch(slice(None)).inputs
    assert x.shape == (20, 1, 16_000)
    assert x.mean().abs() < 1e-3
    assert x.std() == pytest.approx(1, abs=1e-3)
    half = speech_commands(clips, shares=(0.5, 0.25, 0.25), every=2)
    assert torch.equal(half.test.inputs, data.test.inputs[..., ::2])
    assert half.test.batch(slice(0, 1)).step == 2.0
    assert half.size == (16_000,)
    step = speech_commands(clips, shares=(0.5, 0.25, 0.25), normalize="step")
    x = step.train.batch(slice(None)).inputs
    assert x.mean(dim=0).abs().max() < 1e-3
    assert x.std(dim=0, correction=0).max() == pytest.approx(1, abs=1e-3)


def test_coefficients(clips: Path) -> None:
    data = speech_commands(clips, mfcc=True, shares=(0.5, 0.25, 0.25))
    assert data.train.inputs.shape == (20, 20, 161)
    assert (data.in_channels, data.size) == (20, (161,))
    assert data.train.inputs.mean(dim=(0, 2)).abs().max() > 1  # as computed
    means = data.train.batch(slice(None)).inputs.mean(dim=(0, 2))
    torch.testing.assert_close(means, torch.zeros(20), atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match=r"\bevery must"):
        speech_commands(clips, mfcc=True, every=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must"),
        (b"RIFF....WAVEnothing", "must"),
    ],
)
def test_broken_clips(clips: Path, content: bytes, message: str) -> None:
    (clips / "speech_commands_v0.02" / "no" / "1_nohash_0.wav").write_bytes(content)
    with pytest.raises(ValueError, match=f"1_nohash_0.wav {message}"):
        speech_commands(clips)


def test_truncated_clip(clips: Path) -> None:
    path = clips / "speech_commands_v0.02" / "no" / "1_nohash_0.wav"
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(ValueError, match=r"1_nohash_0.wav .*found 14500"):
        speech_commands(clips)


def test_other_clips(clips: Path) -> None:
    path = clips / "speech_commands_v0.02" / "no" / "1_nohash_0.wav"
    write(path, rate=8_000, channels=2)
    with pytest.raises(ValueError, match=r"1_nohash_0\.wav .*found 2 of 16 bits at 8000 Hz"):
        speech_commands(clips)
    with pytest.raises(ValueError, match="found none"):
        speech_commands(clips, words=("yes", "cat"))


def test_mel_filters_are_triangles_that_cover_the_middle() -> None:
    filters = mel_filters(40, 513, 16_000)
    assert filters.min() >= 0
    assert filters.max() <= 1
    middle = filters.sum(dim=0)[20:475]
    torch.testing.assert_close(middle, torch.ones_like(middle), atol=1e-4, rtol=0)  # neighbours sum to one


def test_a_tone_is_found_in_its_filter() -> None:
    t = torch.arange(16_000) / 16_000
    tone = torch.sin(2 * math.pi * 1_000 * t)
    spectrum = torch.stft(tone, 1024, 512, window=torch.hann_window(1024), return_complex=True).abs().square()
    loudest = int((mel_filters(40, 513, 16_000) @ spectrum).mean(dim=1).argmax())
    top = 2595 * math.log10(1 + 8_000 / 700)
    assert loudest + 1 == pytest.approx(2595 * math.log10(1 + 1_000 / 700) / top * 41, abs=1)


def test_coefficients_are_the_cosine_transform_of_the_logarithm() -> None:
    scipy_fft = pytest.importorskip("scipy.fft")
    x = torch.randn(3, 2_000, dtype=torch.float64)
    power = torch.stft(x, 200, 100, window=torch.hann_window(200, dtype=x.dtype), return_complex=True).abs().square()
    logarithm = torch.log(mel_filters(64, 101, 16_000).double() @ power + 1e-6)
    dense = scipy_fft.dct(logarithm.numpy(), type=2, norm="ortho", axis=1)[:, :20]
    np.testing.assert_allclose(mfcc(x).numpy(), dense, atol=1e-8)


def test_arguments_of_coefficients() -> None:
    with pytest.raises(ValueError, match=r"\bcoefficients must"):
        mfcc(torch.zeros(1, 400), coefficients=9, mels=8)
    with pytest.raises(ValueError, match=r"\bwindow must"):
        mfcc(torch.zeros(1, 400), window=201)


def test_spoken_digits(tmp_path: Path) -> None:
    for digit in range(10):
        for number in range(15):
            write(tmp_path / "recordings" / f"{digit}_jackson_{number}.wav", samples=300 + 20 * number, rate=8_000)
    data = fsdd(tmp_path, length=500)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [90, 10, 50]
    assert sorted(data.validation.target.tolist()) == list(range(10))
    assert data.test.mask.sum(dim=1)[:5].tolist() == [300, 320, 340, 360, 380]
    assert (data.test.inputs[0, 0, 300:] == 0).all()
    half = fsdd(tmp_path, length=500, every=2)
    assert half.test.batch(slice(0, 2)).inputs.shape == (2, 1, 250)
    assert half.test.step == 2.0
    write(tmp_path / "recordings" / "seven.wav", rate=8_000)
    with pytest.raises(ValueError, match=r"found seven.wav"):
        fsdd(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty must .*found no wav file"):
        fsdd(tmp_path / "empty")

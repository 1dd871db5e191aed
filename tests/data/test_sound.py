"""Sounds in their public layouts, of which the tests make small copies; transients; speech by speaker."""

from __future__ import annotations

import math
import wave
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.registry import load
from kernelfield.data.sets.audio.fsdd import fsdd
from kernelfield.data.sets.audio.sound_folder import magnatagatune, read_sound, urbansound8k, wav_folder
from kernelfield.data.sets.synthetic.transients import KINDS, transients

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, values: np.ndarray, rate: int = 8_000, width: int = 2) -> None:
    """Write (time,) or (time, channels) values in [-1, 1)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = values if values.ndim == 2 else values[:, None]
    if width == 1:
        raw = ((values + 1) * 128).astype(np.uint8).tobytes()
    else:
        whole = (values * 2.0 ** (8 * width - 1)).astype("<i4")
        raw = whole.reshape(-1, 1).view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((values.shape[1], width, rate, len(values), "NONE", ""))
        file.writeframes(raw)


def tone(seconds: float = 0.5, rate: int = 8_000, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * math.pi * hertz * np.arange(round(seconds * rate)) / rate)


@pytest.mark.parametrize(("width", "tolerance"), [(1, 0.01), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_pcm_of_every_width(tmp_path: Path, width: int, tolerance: float) -> None:
    write(tmp_path / "a.wav", np.stack([tone(), 0.5 * tone()], axis=1), width=width)
    heard = read_sound(tmp_path / "a.wav")
    assert heard.shape == (4_000,)
    assert float((heard - torch.from_numpy(0.75 * tone()).float()).abs().max()) < tolerance


def test_resampling_in_the_spectrum(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", tone())
    finer = read_sound(tmp_path / "a.wav", 12_000)
    assert float((finer - torch.from_numpy(tone(rate=12_000)).float()).abs().max()) < 1e-3


def test_sounds_without_samples_or_on_another_scale_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    write(path, np.zeros((0, 1)))
    with pytest.raises(ValueError, match=r"a\.wav must hold samples, found none"):
        read_sound(path)
    write(path, tone())
    whole = path.read_bytes()
    path.write_bytes(whole[:-2_000])
    with pytest.raises(ValueError, match=r"a\.wav must hold the 4000 samples that its header declares, found 3000"):
        read_sound(path)
    path.write_bytes(whole[:40] + b"\xff" * 4 + whole[44:])  # the length of a recording that was piped
    assert len(read_sound(path)) == 4_000
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(path, (tone() * 32768).astype(np.float32), 8_000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"a\.wav must hold floats in \[-1, 1\], found 16384"):
        read_sound(path)
    soundfile.write(path, (tone() * 2.4).astype(np.float32), 8_000, subtype="FLOAT")
    assert float(read_sound(path).max()) == pytest.approx(1.2, abs=0.01)


def test_other_formats_than_wav_need_soundfile(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"OggS and so on")
    with pytest.raises((ModuleNotFoundError, ValueError), match=r"a\.wav"):
        read_sound(tmp_path / "a.wav")


@pytest.fixture
def city(tmp_path: Path) -> Path:
    lines = ["slice_file_name,fsID,start,end,salience,fold,classID,class"]
    for fold in range(1, 11):
        for kind in (3, 8):
            write(
                tmp_path / "audio" / f"fold{fold}" / f"{fold}-{kind}.wav", tone(0.1 + 0.01 * fold, hertz=100.0 * kind)
            )
            lines.append(f"{fold}-{kind}.wav,1,0,1,1,{fold},{kind},x")
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "UrbanSound8K.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_urbansound8k(city: Path) -> None:
    data = urbansound8k(city, rate=4_000, length=700)
    assert [len(data.train), data.validation, len(data.test)] == [18, None, 2]
    assert data.classes[8] == "siren"
    assert data.test.target.tolist() == [3, 8]
    clip = data.train.inputs[0, 0]  # 440 samples, in the middle
    assert clip[130:570].abs().max() > 1000
    assert not clip[:130].any()
    assert not clip[570:].any()
    folds = urbansound8k(city, fold=1, validate=True, rate=4_000, length=700)
    assert [len(folds.train), len(folds.validation), len(folds.test)] == [16, 2, 2]
    batch = data.train.batch(slice(None))
    assert float(batch.inputs.std()) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match=r"\bfold must"):
        urbansound8k(city, fold=11)
    (city / "audio" / "fold1" / "1-3.wav").unlink()
    with pytest.raises(ValueError, match=r"1-3.wav must"):
        urbansound8k(city)
    (city / "metadata" / "UrbanSound8K.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"UrbanSound8K\.csv.* slice_file_name"):
        urbansound8k(city)


def test_magnatagatune(tmp_path: Path) -> None:
    tags = ["guitar", "slow", "rare"]
    rows = ["\t".join(["clip_id", *tags, "mp3_path"])]
    for i, place in enumerate("0bcdf"):
        name = f"{place}/{i}.mp3"
        write(tmp_path / name, tone(0.2, hertz=200.0 + 40 * i))
        marks = ["1", str(i % 2), "0"] if i != 1 else ["0", "1", "0"]
        rows.append("\t".join([str(i), *marks, name]))
    write(tmp_path / "e" / "9.mp3", tone())
    rows.append("\t".join(["9", "0", "0", "1", "e/9.mp3"]))
    (tmp_path / "annotations_final.csv").write_text("\n".join(rows) + "\n")
    data = magnatagatune(tmp_path, tags=2, segments=2, rate=8_000, length=900)
    assert data.classes == ("guitar", "slow")
    assert [len(s) for s in (data.train, data.validation, data.test)] == [4, 2, 4]  # without the clip of no tag
    assert data.train.target.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert data.task == "multilabel"
    assert data.train.inputs.shape == (4, 1, 900)
    assert not torch.equal(data.train.inputs[0], data.train.inputs[1])


def test_folders_of_sounds(tmp_path: Path) -> None:
    for kind, hertz in (("dog", 300.0), ("siren", 900.0)):
        for i in range(10):
            write(tmp_path / kind / f"{i}.wav", tone(0.05 + 0.001 * i, hertz=hertz))
    data = wav_folder(tmp_path, rate=8_000)
    assert data.classes == ("dog", "siren")
    assert data.size == (472,)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [14, 3, 3]
    for part in ("train", "test"):
        for kind in ("dog", "siren"):
            write(tmp_path / "parted" / part / kind / "1.wav", tone(0.05))
    assert len(load("wav_folder", tmp_path / "parted", length=300).test) == 2
    write(tmp_path / "one" / "dog" / "1.wav", tone(0.05))
    with pytest.raises(ValueError, match=r"one must .*found 1"):
        wav_folder(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty must"):
        wav_folder(tmp_path / "empty")


def test_spoken_digits_in_an_archive_and_by_speaker(tmp_path: Path) -> None:
    who = [f"speaker{i % 6}" for i in range(60)]
    length = np.arange(60) + 100
    audio = np.concatenate([np.full(n, i, dtype=np.int16) for i, n in enumerate(length)])
    path = tmp_path / "fsdd_8k.npz"
    np.savez(path, audio=audio, length=length, label=np.arange(60) % 10, speaker=who, index=np.arange(60) // 6)
    data = fsdd(path, length=120)
    assert len(data.test) == 30
    assert sorted(set(data.test.inputs[:, 0, 0].tolist())) == list(range(30))
    tested = set()
    for fold in range(5):
        data = fsdd(tmp_path, length=120, fold=fold, validation_share=0.2)
        heard = {who[i] for i in data.test.inputs[:, 0, 0].tolist()}
        others = {who[i] for s in (data.train, data.validation) for i in s.inputs[:, 0, 0].tolist()}
        assert not heard & others
        assert len(heard) == (2 if fold == 0 else 1)
        tested |= heard
    assert len(tested) == 6
    with pytest.raises(ValueError, match=r"\bfold must"):
        fsdd(path, fold=5)
    np.savez(path, audio=audio, length=length)
    with pytest.raises(ValueError, match=rf"{path.name}.* label"):
        fsdd(path)


def test_transients_are_the_same_at_every_speed_but_for_the_noise() -> None:
    plain, slow = (transients(512, noise=0.0, speed=s, train=30, validation=5, test=5) for s in (1.0, 0.5))
    assert slow.size == (1024,)
    assert torch.equal(plain.train.target, slow.train.target)
    torch.testing.assert_close(slow.train.inputs[..., ::2], plain.train.inputs, rtol=1e-4, atol=1e-5)
    assert len(plain.validation) == 5
    noisy = transients(512, train=500)
    assert float(noisy.train.inputs.std()) == pytest.approx(1, rel=0.1)
    assert set(noisy.train.target.tolist()) == set(range(len(KINDS)))
    with pytest.raises(ValueError, match=r"\bscales must"):
        transients(512, scales=(1.0, 5.0))

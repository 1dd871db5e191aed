"""The example that spots sounds in a long recording."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import kernelfield as kf

if TYPE_CHECKING:
    from types import ModuleType

PATH = Path(__file__).parents[2] / "examples" / "streaming.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("streaming_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {"EPOCHS": 1, "CLIPS": 2, "CHANNELS": 2}.items():
        monkeypatch.setattr(module, name, value)
    return module


def archive(path: Path) -> Path:
    """Write spoken digits: 500 samples each, three clips of each digit, one of them for the test."""
    clips = [(digit, number) for digit in range(10) for number in (1, 5, 6)]
    time = np.arange(500)
    sound = [3000 * np.sin(0.05 * (digit + 1) * time + number) for digit, number in clips]
    arrays: dict[str, Any] = {
        "audio": np.concatenate(sound).astype(np.int16),
        "length": np.full(len(clips), 500),
        "label": np.array([digit for digit, _ in clips]),
        "speaker": np.array(["jo"] * len(clips)),
        "index": np.array([number for _, number in clips]),
    }
    np.savez(path, **arrays)
    return path


def test_spots_spoken_digits(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--digits", str(archive(tmp_path / "fsdd_8k.npz"))])
    output = capsys.readouterr().out
    played = next(line for line in output.splitlines() if line.startswith("played"))
    assert all(name.strip() in "0123456789" for name in played.removeprefix("played").split(","))
    assert "exact" in output
    assert "distilled" in output


def test_a_missing_file_is_replaced_by_chirps(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    parts, names = example.load("nowhere.npz")
    assert "nowhere.npz" in capsys.readouterr().out
    assert names[-1] == "quiet"
    assert parts[0][0].shape[1:] == (16, 128)


def test_scenes_name_the_clip_after_most_of_it_was_heard(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "NOISE", 0.0)
    clips = torch.arange(1.0, 101.0).expand(4, 2, 100)
    sound, said = example.scenes(clips, torch.full((4,), 100), torch.arange(4), quiet=9)
    assert sound.shape == (4, 2, 200)
    for row in range(4):
        heard = sound[row, 1]
        start = int(heard.nonzero()[0])
        assert torch.equal(heard[start : start + 100], clips[0, 0])
        assert (said[row, :start] == 9).all()
        assert (said[row, start + 80 : start + 100] == row).all()
        assert (said[row, start : start + 70] == -100).all()
        assert set(said[row].tolist()) <= {9, -100, row}


def test_frames_do_not_look_ahead(example: ModuleType) -> None:
    sound = torch.randn(1, 400)
    early = sound.clone()
    early[:, 200:] = 0
    a, b = example.frames(sound, 32, 10), example.frames(early, 32, 10)
    assert a.shape == (1, 16, 40)
    torch.testing.assert_close(a[..., :20], b[..., :20])
    assert not torch.allclose(a[..., 20:], b[..., 20:])


class OnOff:
    """A stream that is sure of class 0 while its input is positive, and of the last class else."""

    def push(self, block: torch.Tensor) -> torch.Tensor:
        on = block[:, 0] > 0.5
        return 20 * torch.stack([on, torch.zeros_like(on), ~on], dim=1).float()


def test_listening_names_each_sound_once(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kf, "stream", lambda _: OnOff())
    parts = [torch.zeros(200), torch.ones(400), torch.zeros(200), torch.ones(160)]
    found = example.listen(nn.Identity(), torch.cat(parts).view(1, 1, -1), ["a", "b", "quiet"])
    assert found == ["320: a", "920: a"]

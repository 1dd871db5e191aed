"""The Free Spoken Digit Dataset: raw sound of spoken digits at 8 kHz."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import Int, Number
from ...base import Data, Split
from ...io.arrays import read_arrays
from ...io.files import folder
from ...transforms.batch import Standardize
from ...transforms.split import hold_out
from .speech_commands import read_wav

if TYPE_CHECKING:
    import os

__all__ = ["fsdd"]

RATE = 8_000
FOLDS = 5


@checked(fold=Int(0, FOLDS - 1) | None, validation_share=Number(0, 1, without_high=True))
def fsdd(
    root: str | os.PathLike[str] | None,
    *,
    length: int = RATE,
    every: int = 1,
    fold: int | None = None,
    validation_share: float = 0.1,
    seed: int = 0,
) -> Data:
    """Return the Free Spoken Digit Dataset: 3,000 clips of ten digits by six speakers, at 8 kHz.

    Source: https://github.com/Jakobovski/free-spoken-digit-dataset, files ``7_jackson_32.wav`` (digit, speaker, number)
    in ``root`` or ``root/recordings``; or one archive, ``root`` or ``root/fsdd_8k.npz``, with all clips end to end:
    ``audio`` (16-bit integers), ``length``, ``label``, ``speaker``, ``index``. No checksum is published, so nothing is
    downloaded. Licence: CC BY-SA 4.0. Split: the published one, with numbers 0 to 4 of each digit and speaker for
    testing; or by speaker, with a ``fold``: the six speakers, sorted by name, are distributed over five folds, and the
    speakers of ``fold`` are for testing. A tenth of the other clips is held out for validation, stratified by digit.
    Normalisation: zero mean and unit variance over all samples of the training clips.

    Args:
        root: folder of the files, or the archive.
        length: length of the inputs in samples; longer clips are cut off, shorter ones padded and masked.
        every: keep only every ``every``-th sample, without a low-pass filter, to test at lower rates; ``step`` is then
            ``every``.
        fold: 0 to 4, to test on speakers that are not in the training set.
        validation_share: share of the training clips held out for validation.
        seed: seed of the validation split.

    Returns:
        Inputs (n, 1, length / every), stored as 16-bit integers, with mask (n, length / every); classes (n,) of ten.
    """
    clips = _read(root)
    sound = np.zeros((len(clips), 1, length), dtype=np.int16)
    mask = torch.zeros(len(clips), length, dtype=torch.bool)
    for i, clip in enumerate(clips):
        cut = clip.samples[:length]
        sound[i, 0, : len(cut)] = cut
        mask[i, : len(cut)] = True
    inputs = torch.from_numpy(sound)
    target = torch.tensor([clip.digit for clip in clips])
    if fold is None:
        tested, what = (
            torch.tensor([clip.number < 5 for clip in clips]),
            "clips with numbers below 5, for testing, and above",
        )
    else:
        speakers = sorted({clip.speaker for clip in clips})
        tested = torch.tensor([speakers.index(clip.speaker) % FOLDS == fold for clip in clips])
        what = f"speakers of fold {fold}, for testing, and others"
    if bool(tested.all()) or not bool(tested.any()):
        raise ValueError(f"{root} must hold {what}, found only one of the two")
    others = torch.nonzero(~tested).flatten()
    train, held = hold_out(target[others], round(validation_share * len(others)), seed)
    index = [others[train], others[held], torch.nonzero(tested).flatten()]
    heard = inputs[index[0]][:, 0][mask[index[0]]].float() / 32768
    prepare = Standardize((float(heard.mean()),), (float(heard.std()),), scale=1 / 32768)
    splits = [
        Split(inputs[i][..., ::every], target[i], mask=mask[i][:, ::every], step=float(every), prepare=prepare)
        for i in index
    ]
    return Data.from_splits("fsdd", splits, size=(length,), classes=tuple("0123456789"))


class _Clip(NamedTuple):
    samples: np.ndarray
    digit: int
    speaker: str
    number: int


def _read(root: str | os.PathLike[str] | None) -> list[_Clip]:
    """Return all clips of the folder or of the archive."""
    path = None if root is None else Path(root).expanduser()
    if path is not None and path.is_dir() and (path / "fsdd_8k.npz").is_file():
        path = path / "fsdd_8k.npz"
    if path is not None and path.suffix == ".npz":
        return _read_archive(path)
    where = folder(root, "the Free Spoken Digit Dataset", "recordings", "free-spoken-digit-dataset/recordings")
    paths = sorted(where.glob("*.wav"))
    named = [re.fullmatch(r"(\d)_(\w+)_(\d+)", path.stem) for path in paths]
    wrong = [path.name for path, name in zip(paths, named, strict=True) if name is None]
    if not paths or wrong:
        found = wrong[0] if wrong else "no wav file"
        raise ValueError(f"{where} must hold files named digit_speaker_number.wav, found {found}")
    return [
        _Clip(read_wav(path, RATE), int(name[1]), name[2], int(name[3]))
        for path, name in zip(paths, named, strict=True)
        if name is not None
    ]


def _read_archive(path: Path) -> list[_Clip]:
    if not path.is_file():
        raise ValueError(f"root must be the archive of the Free Spoken Digit Dataset, got {path}, which is not a file")
    wanted = ("audio", "length", "label", "speaker", "index")
    audio, length, label, speaker, index = read_arrays(path, wanted).values()
    valid = all(array.ndim == 1 and array.dtype.kind in "iu" for array in (audio, length, label, index))
    if not valid or audio.dtype != np.int16 or len({len(length), len(label), len(speaker), len(index)}) > 1:
        raise ValueError(f"{path} must hold 16-bit audio, and length, label, speaker and index of every clip")
    ends = np.cumsum(length, dtype=np.int64)
    if not len(length) or (length < 0).any() or len(audio) != ends[-1]:
        raise ValueError(f"{path} must hold {length.sum()} samples, the sum of length, found {len(audio)}")
    if not np.isin(label, np.arange(10)).all():
        raise ValueError(f"{path} must hold labels of 0 to 9, found {label.min()} to {label.max()}")
    return [
        _Clip(audio[end - n : end], int(digit), str(who), int(number))
        for end, n, digit, who, number in zip(ends, length, label, speaker, index, strict=True)
    ]

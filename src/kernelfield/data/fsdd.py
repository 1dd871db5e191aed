"""The Free Spoken Digit Dataset: raw sound of spoken digits at 8 kHz."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch

from .._checks import check_int
from ._files import folder
from ._prepare import Standardize
from ._split import hold_out
from .base import Data, Split
from .speech import read_wav

if TYPE_CHECKING:
    import os

__all__ = ["fsdd"]

RATE = 8_000


def fsdd(
    root: str | os.PathLike[str] | None,
    *,
    length: int = RATE,
    every: int = 1,
    validation_share: float = 0.1,
    seed: int = 0,
) -> Data:
    """Return the Free Spoken Digit Dataset: 3,000 clips of ten digits by six speakers, at 8 kHz.

    Source: https://github.com/Jakobovski/free-spoken-digit-dataset, files ``7_jackson_32.wav`` (digit, speaker, number)
    in ``root`` or ``root/recordings``. No checksum is published, so that nothing is downloaded. Licence: CC BY-SA 4.0.
    Split: the published one, numbers 0 to 4 of each digit and speaker to test; a tenth of the others is held out to
    choose by, each digit in proportion. Normalisation: zero mean and unit variance over all samples of the training
    clips.

    Args:
        root: folder of the files.
        length: of the inputs in samples; longer clips are cut off, shorter ones padded and masked.
        every: keep only every ``every``-th sample, not filtered, to test at lower rates; ``step`` says so.
        validation_share: of the training clips.
        seed: of the choice of these.

    Returns:
        Inputs (n, 1, length / every), kept as 16-bit integers, with mask (n, length / every); classes (n,) of ten.
    """
    check_int("length", length)
    check_int("every", every)
    where = folder(root, "the Free Spoken Digit Dataset", "recordings", "free-spoken-digit-dataset/recordings")
    paths = sorted(where.glob("*.wav"))
    named = [re.fullmatch(r"(\d)_(\w+)_(\d+)", path.stem) for path in paths]
    wrong = [path.name for path, name in zip(paths, named, strict=True) if name is None]
    if not paths or wrong:
        found = wrong[0] if wrong else "no wav file"
        raise ValueError(f"{where} must hold files named digit_speaker_number.wav, found {found}")
    sound = np.zeros((len(paths), 1, length), dtype=np.int16)
    mask = torch.zeros(len(paths), length, dtype=torch.bool)
    for i, path in enumerate(paths):
        clip = read_wav(path, RATE)[:length]
        sound[i, 0, : len(clip)] = clip
        mask[i, : len(clip)] = True
    inputs = torch.from_numpy(sound)
    target = torch.tensor([int(name[1]) for name in named if name])
    tested = torch.tensor([int(name[3]) < 5 for name in named if name])
    if bool(tested.all()) or not bool(tested.any()):
        raise ValueError(f"{where} must hold clips numbered below 5, to test, and above, found only one of the two")
    others = torch.nonzero(~tested).flatten()
    train, held = hold_out(target[others], round(validation_share * len(others)), seed)
    index = [others[train], others[held], torch.nonzero(tested).flatten()]
    heard = inputs[index[0]][:, 0][mask[index[0]]].float() / 32768
    prepare = Standardize((float(heard.mean()),), (float(heard.std()),), scale=1 / 32768)
    splits = [
        Split(inputs[i][..., ::every], target[i], mask=mask[i][:, ::every], step=float(every), prepare=prepare)
        for i in index
    ]
    return Data(
        name="fsdd",
        train=splits[0],
        validation=splits[1] if len(splits[1]) else None,
        test=splits[2],
        in_channels=1,
        out_channels=10,
        dim=1,
        size=(length,),
        task="classification",
        classes=tuple("0123456789"),
    )

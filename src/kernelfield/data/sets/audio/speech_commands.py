"""Speech Commands from its folders of clips: raw sound, or mel-frequency cepstral coefficients."""

from __future__ import annotations

import os
import struct
import wave
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import TEXT, Choice, ListOf
from ...base import Data, Split
from ...io.files import fetch, folder, open_file
from ...transforms.batch import Normalize, Standardize
from ...transforms.mfcc import mfcc as coefficients
from ...transforms.split import divide, moments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["read_frames", "read_wav", "speech_commands"]

ARCHIVE = (
    "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
)
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
RATE = 16_000


@checked(words=ListOf(TEXT, least=2), normalize=Choice("channel", "step"))
def speech_commands(
    root: str | os.PathLike[str] | None,
    *,
    download: bool = False,
    mfcc: bool = False,
    words: Sequence[str] = WORDS,
    every: int = 1,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    normalize: str = "channel",
    seed: int = 0,
) -> Data:
    """Return Speech Commands: single spoken words, one second at 16 kHz (Warden, 2018).

    This is the balanced problem of Kidger et al. (2020), as in the thesis: the 34,975 clips of ten words that are
    exactly one second long.

    Source: version 0.02, one folder of wav files per word, in ``root``, ``root/speech_commands_v0.02`` or
    ``root/SpeechCommands/speech_commands_v0.02``. Licence: CC BY 4.0. Split: 70, 15 and 15 percent, at random with a
    seed, stratified by word, as in Kidger et al.; the lists that come with the data, which separate the speakers, are
    not used. Normalisation: zero mean and unit variance over the training clips, of the sound or of each coefficient.

    Args:
        root: folder that holds a folder per word.
        download: whether to download a missing archive (2.3 GB), with a checksum, and unpack it into ``root``; needs
            the extra ``data``.
        mfcc: whether inputs are 20 coefficients in 161 frames (SC) instead of 16,000 samples (SC_raw).
        words: names of the folders to read, one class each.
        every: keep only every ``every``-th sample of the raw sound, without a low-pass filter, as the thesis does to
            test at lower rates. The splits then have ``step=every``.
        shares: shares of training, validation and test data.
        normalize: "channel" normalises the raw sound, or each coefficient; "step" normalises each time step over
            samples and channels, as the published code does for raw sound.
        seed: seed of the split.

    Returns:
        Inputs (n, 1, 16000), stored as 16-bit integers, or (n, 20, 161); classes (n,).
    """
    if mfcc and every != 1:
        raise ValueError(f"every must be 1 for coefficients, got {every}")
    if download:
        fetch(root, [ARCHIVE], unless=words, unpack=True)
    where = folder(root, "Speech Commands", "speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02")
    clips, labels = [], []
    for label, word in enumerate(words):
        paths = sorted((where / word).glob("*.wav"))
        if not paths:
            raise ValueError(f"{where} must hold a folder {word!r} with wav files, found none")
        for path in paths:
            clip = read_wav(path, RATE)
            if len(clip) == RATE:  # a few are shorter
                clips.append(clip)
                labels.append(label)
    if not clips:
        raise ValueError(f"{where} must hold clips of {RATE} samples, found only shorter or longer ones")
    sound, target = torch.from_numpy(np.stack(clips)).unsqueeze(1), torch.tensor(labels)
    index = divide(target, shares, seed)
    if mfcc:
        inputs = torch.cat([coefficients(part[:, 0] / 32768, RATE) for part in sound.split(512)])
        normal = Normalize(*moments(inputs[index[0]], normalize))
        splits = [Split(inputs[i], target[i], prepare=normal) for i in index]
    else:
        kept = sound[..., ::every]
        prepare: Normalize | Standardize
        if normalize == "step":
            prepare = Normalize(*moments(kept[index[0]].float(), normalize))
        else:
            heard = sound[index[0]].float() / 32768
            prepare = Standardize((float(heard.mean()),), (float(heard.std()),), scale=1 / 32768)
        splits = [Split(kept[i], target[i], step=float(every), prepare=prepare) for i in index]
    return Data.from_splits(
        "speech_commands_mfcc" if mfcc else "speech_commands", splits, size=(161 if mfcc else RATE,), classes=words
    )


def read_wav(path: Path, rate: int) -> np.ndarray:
    """Return the samples of a wav file with one 16-bit channel at ``rate``, as integers."""
    try:
        width, channels, found_rate, frames, raw = read_frames(path)
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path} must be a valid wav file: {error or 'it ends too early'}") from error
    found = channels, 8 * width, found_rate
    if found != (1, 16, rate):
        raise ValueError(
            f"{path} must have 1 channel of 16 bits at {rate} Hz, found {found[0]} of {found[1]} bits at {found[2]} Hz"
        )
    if len(raw) != 2 * frames:
        raise ValueError(f"{path} must hold {frames} samples, found {len(raw) // 2}")
    return np.frombuffer(raw, dtype="<i2").astype(np.int16)


def read_frames(path: Path) -> tuple[int, int, int, int, bytes]:
    """Return the width in bytes, channels, rate, declared number of frames and bytes of a PCM wav file.

    Raises wave.Error or EOFError for other files.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            sound = wave.open(file, "rb")  # noqa: SIM115 (closing it would close nothing more)
            width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
            frames = sound.getnframes()
            # A header may declare any number of frames, and readframes allocates memory for them before it reads.
            raw = sound.readframes(min(frames, size // (width * channels)))
        except (RuntimeError, ValueError, struct.error, OverflowError) as error:
            raise wave.Error(str(error)) from error
    if not 1 <= width <= 4 or rate < 1:
        raise wave.Error(f"{8 * width} bits at {rate} Hz")
    return width, channels, rate, frames, raw

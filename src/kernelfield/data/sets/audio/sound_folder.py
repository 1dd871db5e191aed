"""Sound files and folders of them: UrbanSound8K, MagnaTagATune, and your own."""

from __future__ import annotations

import os
import re
import warnings
import wave
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...._arguments import checked
from ...._checks import check_int
from ...._kinds import TEXT, Choice, Int
from ....ops import resample
from ...base import Batch, Data, Split
from ...io.files import check_size, decoding, find, find_visible, folder, open_file, read_table
from ...transforms.batch import Chain, Normalize, Standardize
from ...transforms.log_mel import LogMel
from ...transforms.split import moments
from ..images.image_folder import list_classes
from .speech_commands import read_frames

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["magnatagatune", "read_clips", "read_sound", "urbansound8k", "usual_length", "usual_rate", "wav_folder"]

ENDINGS = (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff")
#: default sampling rate of custom sounds in Hz
RATE = 16_000
#: inputs computed from a sound
FEATURES = ("raw", "mel")
#: levels of mel bands more than this many decibels below the loudest count as silence
FLOOR = 50.0
#: largest absolute value of float samples; recordings exceed 1 slightly, and integers stored as floats by far
LOUDEST = 8.0
#: a mean power of the average of channels below this share of theirs means that they cancel each other
QUIET = 1e-3
#: declared sizes above this number of bytes stand for an unknown one
_UNKNOWN = 2**31 - 2**20
URBAN = (
    *("air_conditioner", "car_horn", "children_playing", "dog_bark", "drilling", "engine_idling", "gun_shot"),
    *("jackhammer", "siren", "street_music"),
)


def read_sound(path: Path, rate: int | None = None) -> Tensor:
    """Return the samples of a sound file, all channels averaged: (time,) floats in [-1, 1].

    Files of PCM samples are read by the standard library; others need soundfile (``pip install 'kernelfield[data]'``).
    A file without samples, an incomplete one, and floats on another scale than [-1, 1] are refused.

    Args:
        path: the file.
        rate: sampling rate in Hz to resample to; by default that of the file.
    """
    found, samples = _read_pcm(path)
    if samples is None:
        found, samples = _read_other(path)
    if not np.isfinite(samples).all():
        raise ValueError(f"{path} must hold finite samples, found NaN or infinity")
    if not len(samples):
        raise ValueError(f"{path} must hold samples, found none")
    if np.abs(samples).max() > LOUDEST:
        raise ValueError(
            f"{path} must hold floats in [-1, 1], found {np.abs(samples).max():g}; divide 16-bit samples by 32768"
        )
    every = torch.from_numpy(samples)
    mono = every.mean(dim=1)
    if float(mono.square().mean()) < QUIET * float(every.square().mean()):
        warnings.warn(
            f"{path}: its {every.shape[1]} channels cancel each other, since their average is almost silent",
            stacklevel=2,
        )
    if rate is not None and rate != found:
        length = max(1, round(len(mono) * rate / found))
        # A header may declare any rate, and resampling makes several copies of the result.
        check_size(path, 16 * length)
        mono = resample(mono, length)
    return mono


def _read_pcm(path: Path) -> tuple[int, np.ndarray | None]:
    """Return the rate and the (time, channels) samples of a PCM file; the samples are None for other formats."""
    try:
        width, channels, rate, frames, raw = read_frames(path)
    except (wave.Error, EOFError):
        return 0, None
    # Programs that write to a pipe do not know the length, and declare a size near the largest one.
    if len(raw) < width * channels * frames < _UNKNOWN:
        found = len(raw) // (width * channels)
        raise ValueError(f"{path} must hold the {frames} samples that its header declares, found {found}")
    raw = raw[: len(raw) // (width * channels) * (width * channels)]
    if width == 1:
        values = np.frombuffer(raw, dtype=np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        three = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3)
        widened = np.zeros((len(three), 4), dtype=np.uint8)
        widened[:, 1:] = three
        values = widened.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        values = np.frombuffer(raw, dtype=f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    return rate, values.reshape(-1, channels)


def _read_other(path: Path) -> tuple[int, np.ndarray]:
    try:
        import soundfile  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path} is not a PCM wav file; other formats need soundfile: pip install 'kernelfield[data]'",
            name="soundfile",
        ) from error
    with open_file(path) as file, decoding(path, "a sound file"), soundfile.SoundFile(file) as sound:
        check_size(path, 4 * sound.frames * sound.channels, os.fstat(file.fileno()).st_size)
        samples, rate = sound.read(dtype="float32", always_2d=True), sound.samplerate
        if rate < 1 or not sound.channels:
            raise ValueError(f"it declares a rate of {rate} Hz and {sound.channels} channels")
    return rate, samples


@checked(fold=Int(1, 10))
def urbansound8k(
    root: str | os.PathLike[str] | None,
    *,
    fold: int = 10,
    validate: bool = False,
    rate: int = 22_050,
    length: int = 80_200,
) -> Data:
    """Return UrbanSound8K: 8,732 clips of ten urban sounds, at most four seconds each (Salamon et al., 2014).

    Source: https://urbansounddataset.weebly.com/urbansound8k.html, ``metadata/UrbanSound8K.csv`` and
    ``audio/fold1/….wav`` in ``root`` or ``root/UrbanSound8K``. Access must be requested, so nothing is downloaded.
    Licence: CC BY-NC 3.0. Split: the published folds. One fold is for testing, by default the tenth, as in chapter 10;
    the others are for training; with ``validate`` the fold before the test fold is held out. Normalisation: zero mean
    and unit variance over all training samples; clips are padded with zeros on both sides.

    Args:
        root: folder of the data.
        fold: fold to test on, 1 to 10.
        validate: whether to hold out a fold for validation, as in the cross-validation of chapter 10.
        rate: sampling rate in Hz; clips of another rate are resampled.
        length: length of the inputs in samples; longer clips are cut off.

    Returns:
        Inputs (n, 1, length), stored as 16-bit integers; classes (n,) of ten.
    """
    where = folder(root, "UrbanSound8K", "UrbanSound8K")
    table = find(where, ["metadata/UrbanSound8K.csv", "UrbanSound8K.csv"], "the table of clips")
    names, *lines = read_table(table) or [[]]
    wanted = ("slice_file_name", "fold", "classID")
    missing = [name for name in wanted if not lines or name not in names]
    if missing:
        raise ValueError(f"{table} must have columns {', '.join(wanted)}, but {missing[0]} is missing")
    rows = [dict(zip(names, line, strict=False)) for line in lines if line]
    for i, row in enumerate(rows, start=2):
        known = len(row) == len(names) and row["fold"] in map(str, range(1, 11)) and row["classID"] in "0123456789"
        if not known or len(row["classID"]) != 1 or "/" in row["slice_file_name"]:
            raise ValueError(f"{table}, clip {i - 1}: expected a file, a fold of 1 to 10 and a class of 0 to 9")
    paths = [where / "audio" / f"fold{row['fold']}" / row["slice_file_name"] for row in rows]
    inputs = read_clips(paths, rate, length)
    target = torch.tensor([int(row["classID"]) for row in rows])
    folds = torch.tensor([int(row["fold"]) for row in rows])
    held = (fold - 2) % 10 + 1 if validate else 0
    index = [
        torch.nonzero(part).flatten() for part in ((folds != fold) & (folds != held), folds == held, folds == fold)
    ]
    if not len(index[0]) or not len(index[2]):
        raise ValueError(f"{table} must list clips of fold {fold} and of others, found only one of the two")
    return _data("urbansound8k", inputs, target, index, URBAN)


@checked()
def magnatagatune(
    root: str | os.PathLike[str] | None,
    *,
    tags: int = 50,
    segments: int = 1,
    rate: int = 22_050,
    length: int = 59_049,
) -> Data:
    """Return MagnaTagATune: 25,863 clips of music with tags (Law et al., 2009).

    Source: https://mirg.city.ac.uk/codeapps/the-magnatagatune-dataset, ``annotations_final.csv`` and folders ``0`` to
    ``f`` of mp3 files in ``root`` (or ``root/mp3``), read by soundfile. Licence: CC BY-NC-SA 1.0. Split: by folder, as
    in Lee et al. (2017): 0 to b for training, c for validation, d to f for testing. Normalisation: zero mean and unit
    variance over all training samples. Clips without any of the tags are dropped.

    Args:
        root: folder of the data.
        tags: number of tags to predict, the most frequent ones.
        segments: number of segments per clip, evenly spread over its 29.1 seconds, each with the clip's tags.
        rate: sampling rate in Hz.
        length: length of a segment in samples.

    Returns:
        Inputs (n · segments, 1, length), stored as 16-bit integers; labels (n · segments, tags) in {0, 1}.
    """
    where = folder(root, "MagnaTagATune")
    table = find(where, ["annotations_final.csv"], "the table of tags")
    rows = [row for row in read_table(table, "\t") if row] or [[""]]
    names, path_at = rows[0][1:-1], len(rows[0]) - 1
    if len(rows) < 2 or rows[0][path_at] != "mp3_path":
        raise ValueError(f"{table} must have tab-separated columns clip_id, the tags and mp3_path, found {rows[0][:3]}")
    for i, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]) or not set(row[1:-1]) <= {"0", "1"} or not re.match(r"[0-9a-f]/[^/]+$", row[-1]):
            raise ValueError(f"{table}, row {i}: expected an id, marks of 0 or 1 and a file in a folder of 0 to f")
    marks = np.array([[int(v) for v in row[1:-1]] for row in rows[1:]], dtype=np.int8)
    common = np.sort(np.argsort(-marks.sum(axis=0), kind="stable")[:tags])
    kept = np.nonzero(marks[:, common].any(axis=1))[0]
    base = folder(root, "MagnaTagATune", "mp3")
    places = [rows[1 + i][path_at] for i in kept]
    part = torch.tensor([_part(place) for place in places])
    pieces = [_segments(read_sound(base / place, rate), segments, length) for place in places]
    inputs = torch.cat(pieces).unsqueeze(1)
    target = torch.from_numpy(marks[kept][:, common]).float().repeat_interleave(segments, dim=0)
    part = part.repeat_interleave(segments)
    index = [torch.nonzero(part == p).flatten() for p in range(3)]
    if not len(index[0]) or not len(index[2]):
        raise ValueError(f"{base} must hold clips in folders 0 to b and in d to f, found only one of the two")
    return _data("magnatagatune", inputs, target, index, tuple(names[i] for i in common), task="multilabel")


@checked(features=Choice(*FEATURES), group=TEXT | None)
def wav_folder(
    root: str | os.PathLike[str] | None,
    *,
    rate: int = RATE,
    length: int | None = None,
    features: str = "raw",
    augment: bool = False,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
    group: str | None = None,
) -> Data:
    """Return the sounds of a folder with one folder per class: ``root/dog/1.wav``, ``root/siren/7.wav``, ….

    Source: your own files. Licence: that of your files. Split: the folders ``train``, ``test`` and ``val``, as in
    ``root/train/dog/1.wav`` (without ``val``, 15 percent of the training clips are held out); otherwise at random,
    stratified by class. Normalisation: zero mean and unit variance over all training samples; clips are padded with
    zeros on both sides.

    Args:
        root: the folder.
        rate: sampling rate in Hz; clips of another rate are resampled.
        length: length of the inputs in samples; by default that of the longest clip.
        features: "raw" samples, or "mel": the logarithm of 40 mel bands in windows of 32 milliseconds, 16 milliseconds
            apart; see :class:`~kernelfield.data.transforms.log_mel.LogMel`. A network on mel bands learns from fewer
            sounds and in a fraction of the time.
        augment: whether to stretch training sounds in time by up to 15 percent and to shift them by up to 5 percent of
            their length, at random; for "mel" only.
        shares: shares of training, validation and test data, if ``root`` has no folders for them.
        seed: seed of the split.
        group: regular expression for the part of a file's path that names its group, such as a speaker; a group stays
            in one part of the data.

    Returns:
        Inputs (n, 1, length), stored as 16-bit integers, or (n, 40, frames); classes (n,), the names of the folders,
        sorted.
    """
    where = folder(root, "a folder of sounds for each class")
    paths, target, classes, index = list_classes(where, ENDINGS, "sounds", shares, seed, group)
    clips = read_clips(paths, rate, length)
    if features == "raw":
        return _data(where.name, clips, target, index, classes)
    return _mel_data(where.name, clips, target, index, classes, rate, augment)


def _mel_data(
    name: str,
    clips: Tensor,
    target: Tensor,
    index: Sequence[Tensor],
    classes: tuple[str, ...],
    rate: int,
    augment: bool,
) -> Data:
    window = 2 * max(1, round(0.016 * rate))
    mel = LogMel(window, rate, floor=FLOOR)
    levels = torch.cat([mel(Batch(part), False).inputs for part in clips[index[0]].split(64)])
    normal = Normalize(*moments(levels))
    prepare = Chain((mel, normal))
    training = Chain((replace(mel, stretch=0.15, shift=0.05), normal)) if augment else prepare
    splits = [Split(clips[i], target[i], prepare=training if part == 0 else prepare) for part, i in enumerate(index)]
    size = (mel.frames(clips.shape[-1]),)
    return Data.from_splits(name, splits, in_channels=mel.mels, size=size, classes=classes)


def usual_rate(root: Path, count: int = 20) -> int:
    """Return the most frequent sampling rate of the sounds of a folder in Hz, at most 16,000.

    Args:
        root: the folder, which may contain folders.
        count: number of sounds to read.
    """
    paths = find_visible(root, ENDINGS)
    rates = Counter(_read_pcm(path)[0] or _read_other(path)[0] for path in paths[:: max(1, len(paths) // count)])
    return min(RATE, rates.most_common(1)[0][0]) if rates else RATE


def usual_length(root: Path, rate: int, count: int = 200) -> int:
    """Return a length in samples that nearly all sounds of a folder fit into.

    It is the length of the longest sound, or 5/4 of the 95th percentile if that is less. One long sound would otherwise
    pad all others with silence. A warning counts the sounds that are then cut off.

    Args:
        root: the folder, which may contain folders.
        rate: sampling rate in Hz.
        count: number of sounds to read.
    """
    paths = find_visible(root, ENDINGS)
    lengths = np.array([len(read_sound(path, rate)) for path in paths[:: max(1, len(paths) // count)]])
    if not len(lengths):
        return rate
    chosen = max(1, round(min(lengths.max(), 1.25 * np.percentile(lengths, 95))))
    if (count_cut := int((lengths > chosen).sum())) > 0:
        warnings.warn(
            f"{root}: {count_cut} of {len(lengths)} sounds are cut off after {chosen / rate:.3g} s; the longest lasts "
            f"{lengths.max() / rate:.3g} s. data.length={lengths.max()} keeps all of it",
            stacklevel=2,
        )
    return chosen


def read_clips(paths: Sequence[Path], rate: int = RATE, length: int | None = None, *, announce: bool = False) -> Tensor:
    """Return (n, 1, length) 16-bit samples of all files, padded on both sides or cut off.

    Args:
        paths: the files.
        rate: sampling rate in Hz.
        length: number of samples; by default that of the longest file.
        announce: whether to warn of files that are cut off.
    """
    check_int("rate", rate)
    clips, cut = [], []
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{path} must be a sound file, but does not exist")
        sound = read_sound(path, rate)
        if length is not None and len(sound) > length + rate // 100:  # resampling adds a sample at most
            cut.append((path, len(sound)))
        clips.append(_integers(sound[:length]))
    if cut and announce and length is not None:
        path, longest = cut[0]
        warnings.warn(
            f"{len(cut)} of {len(paths)} sounds are cut off: {path} lasts {longest / rate:.3g} s, of which the first "
            f"{length / rate:.3g} s are used",
            stacklevel=2,
        )
    longest = max(len(clip) for clip in clips) if length is None else check_int("length", length)
    # All clips are padded to the longest one.
    check_size(max(zip(map(len, clips), paths, strict=True))[1], 2 * len(clips) * longest)
    padded = torch.zeros(len(clips), 1, longest, dtype=torch.int16)
    for i, clip in enumerate(clips):
        start = (longest - len(clip)) // 2
        padded[i, 0, start : start + len(clip)] = clip
    return padded


def _segments(clip: Tensor, count: int, length: int) -> Tensor:
    """Return ``count`` evenly spread segments (count, length) of a clip; the last one ends with the clip."""
    clip = _integers(clip)
    if len(clip) < length:
        clip = torch.nn.functional.pad(clip, (0, length - len(clip)))
    starts = [round(i * (len(clip) - length) / max(count - 1, 1)) for i in range(count)]
    return torch.stack([clip[start : start + length] for start in starts])


def _integers(clip: Tensor) -> Tensor:
    return (clip * 32767).round().clamp(-32768, 32767).to(torch.int16)


def _part(place: str) -> int:
    """Return the split of a clip by the first letter of its folder: training (0), validation (1) or test (2)."""
    return min(2, max(0, int(place[0], 16) - 11))


def _data(
    name: str,
    inputs: Tensor,
    target: Tensor,
    index: Sequence[Tensor],
    classes: tuple[str, ...],
    task: str = "classification",
) -> Data:
    heard = inputs[index[0]].float() / 32767
    prepare = Standardize((float(heard.mean()),), (float(heard.std()) or 1.0,), scale=1 / 32767)
    splits = [Split(inputs[i], target[i], prepare=prepare) for i in index]
    return Data.from_splits(name, splits, task, classes=classes)

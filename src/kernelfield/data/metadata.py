"""Metadata of a data set without its samples, with which a trained network reads and prepares new samples."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from .._arguments import checked
from .base import TENSORS, Data, Split, TargetScale
from .transforms import batch as batches
from .transforms import clouds, log_mel, to_sequence

__all__ = ["changed_metadata", "from_metadata", "metadata", "same_labels", "same_samples", "samples_record"]

FORMAT = 1
#: transforms that can be stored, by name
_TRANSFORMS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        batches.AsFloat,
        batches.AsTokens,
        batches.Chain,
        batches.Clip,
        batches.CropFlip,
        batches.Normalize,
        batches.Observed,
        batches.ResizeRotateCrop,
        batches.ScaleTarget,
        batches.Standardize,
        batches.Subsample,
        batches.StandardizeEach,
        clouds.ChoosePoints,
        clouds.NormalizePoints,
        log_mel.LogMel,
        to_sequence.Flatten,
        to_sequence.NoisePadding,
        TargetScale,
    )
}
_PLAIN = (
    *("name", "in_channels", "out_channels", "dim", "size", "task", "classes", "vocabulary", "parts", "channels"),
    "unit",
)
#: largest difference of the statistics of the same data on two machines, in standard deviations
_ROUNDING = 1e-2
#: about the number of values of a sample that tell it from others
_VALUES = 1024
#: fields that files of earlier versions do not have
_LATER = ("dates", "columns", "targets", "levels", "always", "reach")
_DTYPES = {str(d).removeprefix("torch."): d for d in (
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)}  # fmt: skip


@checked()
def metadata(data: Data) -> dict[str, Any] | None:
    """Return the shapes, classes and preparation of the test samples as values that JSON can hold.

    Returns:
        The values for :func:`from_metadata`; None if a transform of the data set cannot be stored.

    >>> from kernelfield.data import load
    >>> data = from_metadata(metadata(load("digits")))
    >>> len(data.test), data.test.inputs.shape, data.classes[:2]
    (0, torch.Size([0, 1, 8, 8]), ('0', '1'))
    """
    test = data.test
    try:
        prepare = _to_plain(test.prepare)
    except TypeError:
        return None
    plain = {name: _to_plain(getattr(data, name)) for name in (*_PLAIN, *_LATER)}
    held = {name: _layout(getattr(test, name)) for name in TENSORS}
    return {"format": FORMAT, **plain, "stored": held, "step": _to_plain(test.step), "prepare": prepare}


@checked()
def from_metadata(values: dict[str, Any]) -> Data:
    """Return the data set that :func:`metadata` describes, with empty splits.

    The test split has the shapes and the preparation of the original test samples.
    """
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else values
        raise ValueError(f"metadata must have format {FORMAT}, got {found!r}")
    try:
        stored: dict[str, Any] = {name: _empty(layout) for name, layout in values["stored"].items()}
        empty = Split(
            **stored,
            step=_from_plain(values["step"]),
            prepare=_from_plain(values["prepare"]),
        )
        plain = {name: _from_plain(values[name]) for name in _PLAIN}
        plain |= {name: _from_plain(values[name]) for name in _LATER if name in values}
        return Data(train=empty, validation=None, test=empty, **plain)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"metadata must describe a data set: {error!r}") from error


@checked()
def samples_record(data: Data) -> dict[str, Any]:
    """Return the number of samples in each split, and checksums of their targets and of the names of the classes.

    If a file is added to a folder, its samples are split again. The record then differs, but the shapes are the same.
    ``sha256`` covers the first value of each target. Targets with several classes, such as one per pixel, have the
    checksum ``classes`` of all their values too: the first pixel of most masks is background. ``order`` differs if
    samples of one class change places, as they do if their files are renamed; the split changes with them.

    >>> from kernelfield.data import load
    >>> record = samples_record(load("digits"))
    >>> record["train"], record == samples_record(load("digits")), record == samples_record(load("digits", seed=1))
    (1294, True, False)
    """
    digest = hashlib.sha256("\n".join(data.classes).encode())
    whole = hashlib.sha256()
    record: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        split = getattr(data, name)
        record[name] = count = 0 if split is None else len(split)
        if count:
            digest.update(split.target.reshape(count, -1)[:, 0].contiguous().cpu().numpy().tobytes())
            if _has_classes(split):
                whole.update(split.target.contiguous().cpu().numpy().data)
    several = {"classes": whole.hexdigest()} if _has_classes(data.train) else {}
    return {**record, "sha256": digest.hexdigest(), **several, "order": _orders(data)}


def _orders(data: Data) -> list[float]:
    """Return a number for each split that changes if samples change places, but not with their unit or rounding."""
    return [_order(split) for split in (data.train, data.validation, data.test) if split is not None and len(split)]


def _order(split: Split) -> float:
    """Return a weighted sum over the samples of the weighted sum of their values, for samples of unit variance."""
    values = split.inputs if split.inputs[0].numel() or split.coords is None else split.coords  # points without values
    flat = values.reshape(len(split), -1)
    flat = flat[:, :: max(1, flat.shape[1] // _VALUES)]  # long sounds take seconds otherwise
    draw = np.random.default_rng(0)
    weights, places = (torch.from_numpy(draw.random(n) - 0.5).to(flat.device) for n in (flat.shape[1], len(flat)))
    sums = torch.cat([part.double().nan_to_num() @ weights for part in flat.split(1024)])
    centred = sums - sums.mean()
    spread = centred.square().sum().sqrt()
    return float(centred @ places / spread) if float(spread) > 0 else 0.0


def _has_classes(split: Split) -> bool:
    """Return whether each target consists of several classes. Values that are computed may differ in rounding."""
    targets = split.target
    return targets.numel() > targets.shape[0] > 0 and not targets.is_floating_point()


def same_samples(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two results of :func:`samples_record` agree; those of earlier versions have fewer checksums.

    >>> same_samples({"train": 8, "sha256": "0a"}, {"train": 8, "sha256": "0a", "classes": "1b"})
    True
    """
    orders = [record["order"] for record in (one, other) if "order" in record]
    close = len(orders) < 2 or all(abs(a - b) <= _ROUNDING / 4 for a, b in zip(*orders, strict=True))
    return same_labels(one, other) and close


def same_labels(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two results of :func:`samples_record` have the same numbers of samples and the same labels."""
    return all(one[name] == other[name] for name in one.keys() & other.keys() - {"order"})


def changed_metadata(then: dict[str, Any], now: dict[str, Any] | None) -> str:
    """Return the name of a field that differs between two results of :func:`metadata`; "" if none does.

    Means and standard deviations may differ by a hundredth of the latter: decoders of two machines round differently.

    Args:
        then: the stored metadata, perhaps of an earlier version, without some of the fields.
        now: the metadata of the data as they are now; None if they cannot be stored.

    >>> then = {"unit": 1.0, "prepare": {"mean": [0.0], "std": [2.0]}}
    >>> changed_metadata(then, {"unit": 1.0, "prepare": {"mean": [0.001], "std": [2.0]}})
    ''
    >>> changed_metadata(then, {"unit": 1.0, "prepare": {"mean": [300.0], "std": [200.0]}})
    'prepare'
    """
    names = ("channels", "columns", "unit", "dates", "levels", "targets", "prepare")
    return next((name for name in names if now and name in then and not _is_close(then[name], now.get(name))), "")


def _is_close(then: Any, now: Any, scale: Any = 0.0) -> bool:
    """Return whether two plain values are the same, and their numbers nearly so; ``scale`` has their deviations."""
    if isinstance(then, dict) and isinstance(now, dict):
        scale = then.get("std", scale)
        scale = scale["tensor"] if isinstance(scale, dict) else scale
        return then.keys() == now.keys() and all(_is_close(then[name], now[name], scale) for name in then)
    if isinstance(then, list) and isinstance(now, list):
        scales = scale if isinstance(scale, list) and len(scale) == len(then) else [scale] * len(then)
        return len(then) == len(now) and all(map(_is_close, then, now, scales))
    if isinstance(then, float) and isinstance(now, (int, float)):
        spread = abs(scale) if isinstance(scale, (int, float)) else 0.0
        return abs(then - now) <= _ROUNDING * max(spread, abs(then) if spread == 0 else 0.0)
    return bool(then == now)


def _layout(tensor: torch.Tensor | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    return {"shape": list(tensor.shape[1:]), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _empty(layout: dict[str, Any] | None) -> torch.Tensor | None:
    return None if layout is None else torch.empty((0, *layout["shape"]), dtype=_DTYPES[layout["dtype"]])


def _to_plain(value: Any) -> Any:
    """Return a value in the form that JSON can hold; raise a TypeError for transforms that are not listed above."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_to_plain(v) for v in value]
    if isinstance(value, torch.Tensor):
        # Python's floats hold float32 exactly.
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    kind = type(value).__name__
    if _TRANSFORMS.get(kind) is not type(value):
        raise TypeError(f"value must be plain data or one of the transforms that can be stored, got {kind}")
    arguments = {f.name: _to_plain(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    return {"transform": kind, **arguments}


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=_DTYPES[value["dtype"]])
    arguments = {name: _from_plain(v) for name, v in value.items() if name != "transform"}
    return _TRANSFORMS[value["transform"]](**arguments)

"""The transform of a pretrained network's inputs; it converts other sizes, rates and formats, or refuses them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._arguments import checked
from .._kinds import ANY, POSITIVE
from ..ops import resample
from .base import Batch
from .io.arrays import as_numbers
from .metadata import from_metadata
from .sets.images.deep_pixels import DARK
from .transforms.batch import Chain, Normalize, Standardize
from .transforms.fill_values import compare_fill_values
from .transforms.log_mel import LogMel
from .transforms.series_checks import OTHER_SIZE, compare_channels, compare_coords
from .transforms.to_sequence import Flatten, pixel_order

if TYPE_CHECKING:
    from .base import Data

__all__ = [
    "Preprocessing",
    "compare_size",
    "compare_values",
    "in_stored_range",
    "prepare_samples",
    "preprocessing",
]

#: the same ratio for images, whose contrast varies less than the loudness of sounds
OTHER_CONTRAST = 10
#: luminance of red, green and blue (ITU-R BT.601)
_LUMINANCE = (0.299, 0.587, 0.114)


class Preprocessing:
    """Prepare samples as in the training of a pretrained network. :func:`preprocessing` returns one.

    Args:
        config: ``pretrained_config`` of the network.

    Attributes:
        name: name of the pretrained weights.
        data: the data set of the training, without samples.
        rate: sampling rate of its series in Hz; None if unknown.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.name = str(config.get("name") or config.get("started_from") or "the network")
        if config.get("preprocessing") is None:
            raise ValueError(f"model must come with a stored preprocessing, got {self.name} without one")
        self.data: Data = from_metadata(config["preprocessing"])
        self.rate: float | None = config.get("rate")
        self._classes = tuple(config.get("classes", self.data.classes))
        self._layout: dict[str, Any] = config.get("layout") or {}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that the network predicts; empty if there are none, or after a new classifier."""
        return self._classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one stored sample: channels, then the length along each axis."""
        return tuple(self.data.test.inputs.shape[1:])

    def __repr__(self) -> str:
        return f"Preprocessing({self.name!r}, input_shape={self.input_shape})"

    @checked(x=ANY, rate=POSITIVE | None)
    def __call__(self, x: Any, *, rate: float | None = None) -> Tensor:
        """Return the input of the network for samples on a grid.

        Args:
            x: (n, channels, ...) raw samples, or (n, ...) of one channel. Images may have any size and one or three
                channels, also for a network that reads their pixels as a sequence. Integers are taken as stored. If the
                data set stores integers, floats must lie in [0, 1], or [-1, 1] for sounds, or be such integers.
            rate: sampling rate of series in Hz, if it differs from the network's.
        """
        batch = self.batch(x, rate=rate)
        if batch.coords is not None or not (batch.mask is None or bool(batch.mask.all())):
            raise ValueError(
                f"x must have no gaps for {self.name}; use batch(x), which returns values, coordinates and mask"
            )
        if batch.step != 1:
            raise ValueError(f"x has step {batch.step} for {self.name}; use batch(x), which returns values and step")
        return batch.inputs

    @checked(x=ANY, coords=ANY, mask=ANY, rate=POSITIVE | None)
    def batch(self, x: Any, *, coords: Any = None, mask: Any = None, rate: float | None = None) -> Batch:
        """Return a prepared batch: ``net(batch.inputs, **batch.sampling)``.

        Args:
            x: as in a call; NaN is a missing value.
            coords: (n, points, dim) coordinates in training steps, for networks on irregular times or points.
            mask: (n, ...) whether a position was observed.
            rate: sampling rate of series in Hz.
        """
        values = torch.as_tensor(as_numbers(x, "x"))
        if values.dtype == torch.bool:
            raise TypeError(f"x must hold integers or real numbers, got {values.dtype}")
        further = {"coords": coords, "mask": mask}
        places, seen = (None if v is None else torch.as_tensor(as_numbers(v, name)) for name, v in further.items())
        if places is None and self.data.test.coords is not None:
            raise ValueError(f"coords must hold the coordinates of x for {self.name}, whose samples are points")
        if self.data.vocabulary is None:
            values = in_stored_range(values, self.data, "x", f" for {self.name}")
            if places is None:
                given = tuple(values.shape[2:])
                values = self._on_grid(values, rate)
                self._check_gaps(values, seen, converted=tuple(values.shape[2:]) != given)
                values, seen = self._padded(values, seen)
            ratio = OTHER_CONTRAST if self._is_picture else OTHER_SIZE
            compare_values(Batch(values, mask=seen), self.data, "x", other_size=ratio)
        raw = Batch(values, coords=places, mask=seen, step=self.data.test.step)
        compare_coords(raw, self.data, "x")
        if raw.inputs.shape[1:2] != self.input_shape[:1] and self.data.vocabulary is None:
            raise ValueError(f"x must have {self.input_shape[0]} channels for {self.name}, got {tuple(values.shape)}")
        return prepare_samples(raw, self.data)

    @property
    def _is_picture(self) -> bool:
        """Whether samples are images that show something, and not fields of physics."""
        images = "image" in self._layout or len(self.input_shape) == 3
        return images and (self.data.test.inputs.dtype == torch.uint8 or bool(self.classes))

    def _on_grid(self, x: Tensor, rate: float | None) -> Tensor:
        """Return samples with the channels of the network, images of its size, and series of its rate."""
        channels, *size = self.input_shape
        image = self._layout.get("image")
        if image is not None and tuple(x.shape[-len(size) :]) != tuple(size):
            x = self._resized(self._with_channels(x, 2, channels), image).flatten(2)
            order = self._layout.get("permute")
            if order is None:
                return x
            return x.index_select(2, pixel_order(x.shape[2], order).to(x.device))
        x = self._with_channels(x, len(size), channels)
        if len(size) == 1:
            return self._at_rate(x, rate)
        return self._resized(x, size) if len(size) == 2 else x

    def _check_gaps(self, x: Tensor, mask: Tensor | None, *, converted: bool) -> None:
        """Raise a ValueError if a mask does not belong to these samples, or a sample holds no value."""
        if mask is not None and converted:
            raise ValueError(f"mask must be None for samples that are converted to {self.input_shape} for {self.name}")
        if mask is not None and mask.shape != (len(x), *x.shape[2:]):
            raise ValueError(f"mask must have shape {(len(x), *x.shape[2:])}, got {tuple(mask.shape)}")
        seen = ~x.isnan().all(dim=1)
        seen = (seen if mask is None else seen & mask.bool()).flatten(1).any(dim=1)
        if not bool(seen.all()):
            raise ValueError(
                f"x must hold at least one value in each sample, got none in sample {int(seen.int().argmin())}"
            )

    def _padded(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return samples of the size of the network, and their mask if short series were padded."""
        size = self.input_shape[1:]
        if tuple(x.shape[2:]) == size:
            return x, mask
        if len(size) == 1 and self.data.test.mask is not None and mask is None and x.shape[2] < size[0]:
            seen = torch.arange(size[0], device=x.device).expand(len(x), -1) < x.shape[2]
            return F.pad(x, (0, size[0] - x.shape[2])), seen
        hint = f"; rate= converts series of another rate than {self.rate:g} Hz" if self.rate else ""
        raise ValueError(f"x must have size {size} for {self.name}, got {tuple(x.shape[2:])}{hint}")

    def _at_rate(self, x: Tensor, rate: float | None) -> Tensor:
        if rate is None or rate == self.rate:
            return x
        if self.rate is None:
            raise ValueError(f"rate must be None for {self.name}, whose data have no sampling rate, got {rate:g}")
        if bool(x.isnan().any()):
            raise ValueError(f"x must have no missing values to be resampled from {rate:g} Hz for {self.name}, got NaN")
        return resample(x, max(1, round(x.shape[-1] * self.rate / rate)))

    def _with_channels(self, x: Tensor, axes: int, channels: int) -> Tensor:
        """Return (n, channels, ...) samples; colour images become grey, grey ones become three equal channels."""
        # (n, 1, length) and (n, 3, length) are series, not images of one or three rows.
        if x.dim() == axes + 1 and channels == 1 and not (axes == 2 and x.shape[1] in (1, 3)):
            x = x.unsqueeze(1)
        if x.dim() != axes + 2:
            raise ValueError(
                f"x must have shape (n, {', '.join(map(str, self.input_shape))}) for {self.name}, got {tuple(x.shape)}"
            )
        if axes == 2 and (x.shape[1], channels) == (3, 1) and self._is_picture:
            return torch.einsum("nc...,c->n...", x, x.new_tensor(_LUMINANCE)).unsqueeze(1)
        if axes == 2 and (x.shape[1], channels) == (1, 3) and self.data.test.inputs.dtype == torch.uint8:
            return x.expand(-1, 3, -1, -1)
        if x.shape[1] != channels:
            raise ValueError(f"x must have {channels} channels for {self.name}, got {x.shape[1]}")
        return x

    def _resized(self, x: Tensor, size: list[int]) -> Tensor:
        if tuple(x.shape[2:]) == tuple(size):
            return x
        return F.interpolate(x, tuple(size), mode="bilinear", antialias=True, align_corners=False)


def in_stored_range(x: Tensor, data: Data, where: str, suffix: str = "") -> Tensor:
    """Return raw samples on the scale on which a data set stores them, as floats.

    If it stores bytes or 16-bit integers, ``x`` must hold such integers, of any type, or floats in [0, 1] or [-1, 1],
    which are scaled if the preparation defines the value of 1. Anything else would become black images, or silence,
    without an error. If the images of the data set had more than 8 bits, other integers count as such pixels.

    Args:
        x: samples, before any preparation; NaN is a missing value.
        data: the data set, or its metadata.
        where: description of the samples, for errors.
        suffix: end of the description.
    """
    stored, full = data.test.inputs.dtype, _full_scale(data.test.prepare)
    if x.dtype == stored or stored not in (torch.uint8, torch.int16):
        return x.float()
    limits, low = torch.iinfo(stored), 0 if stored == torch.uint8 else -1
    if data.levels and stored == torch.uint8 and not x.is_floating_point() and x.dtype != torch.bool:
        return _scaled_pixels(x.long(), data.levels[2], where, suffix)
    seen = x[x.isfinite()] if x.is_floating_point() else x.long()
    least, most = (float(seen.min()), float(seen.max())) if seen.numel() else (0.0, 0.0)
    if x.is_floating_point() and full is not None and least >= low and most <= 1:
        return x.float() * full
    whole = not x.is_floating_point() or bool((seen == seen.round()).all())
    offset = x.dtype == torch.uint8 and full is not None  # silence of 8-bit sounds is 128, and that of int16 is 0
    if x.dtype == torch.bool or offset or not whole or least < limits.min or most > limits.max:
        kind = str(stored).removeprefix("torch.")
        floats = "" if full is None else f" or floats in [{low}, 1]"
        got = f"{str(x.dtype).removeprefix('torch.')} from {least:.4g} to {most:.4g}"
        raise ValueError(f"{where} must be {kind}{floats}{suffix}, got {got}")
    return x.float()


def _scaled_pixels(x: Tensor, white: int, where: str, suffix: str) -> Tensor:
    """Return pixels from 0 to ``white`` as those of files are stored: whole numbers from 0 to 255, as floats."""
    if x.numel() and not (int(x.min()) >= 0 and int(x.max()) <= white):
        raise ValueError(
            f"{where} must be uint8, integers from 0 to {white} or floats in [0, 1]{suffix}, got integers from "
            f"{int(x.min())} to {int(x.max())}"
        )
    if x.numel() and 0 < int(x.max()) <= white * DARK:
        warnings.warn(
            f"{where} is almost black: its pixels reach {int(x.max())}, and {white} is white{suffix}; bytes must be "
            "uint8",
            stacklevel=5,
        )
    return (x.double() / white * 255).floor().float()


def compare_values(batch: Batch, data: Data, where: str, *, other_size: float = OTHER_SIZE) -> None:
    """Warn if the values of a channel are far larger or smaller than in training, as they are in another unit.

    The function compares the root mean square and, to detect another offset, the mean. It compares only channels that
    are normalised by their statistics over the training data.

    Args:
        batch: raw samples; NaN is a missing value.
        data: the data set, or its metadata.
        where: description of the samples.
        other_size: ratio of root mean squares that raises the warning.
    """
    normal = _channel_statistics(data.test.prepare)
    x = batch.inputs
    if normal is None or x.dim() < 3 or x.shape[1] != len(normal[0]) or not x.numel():
        return
    values = x.detach().double().movedim(1, 0).flatten(1)
    if batch.mask is not None:
        unseen = ~batch.mask.bool().flatten()
        values = values.masked_fill(unseen, torch.nan) if unseen.shape == values.shape[1:] else values
    compare_fill_values(values.unsqueeze(0), data.channels, where)
    compare_channels(values, *normal, data.channels, where, other_size=other_size, stacklevel=4)


def compare_size(batch: Batch, data: Data, file: str = "", *, padded: bool = False) -> bool:
    """Warn of samples of another size than in training, at the same step; return whether there are any.

    The content of images and volumes is then larger. Series may be longer or shorter, or be sampled at another rate,
    which their step must tell; those of several lengths in training, at real times or with an axis of tokens, are not
    compared.

    Args:
        batch: raw samples.
        data: the data set, or its metadata.
        file: file of the samples.
        padded: whether shorter series were padded, so that their mask is False at the end.
    """
    wanted, lengths = tuple(data.test.inputs.shape[2:]), _sizes(batch, padded)
    known = batch.coords is not None or data.test.coords is not None or batch.step != data.test.step
    if not wanted or known or lengths == {wanted} or (len(wanted) == 1 and data.test.mask is not None):
        return False
    found = " to ".join("×".join(map(str, size)) for size in dict.fromkeys((min(lengths), max(lengths))))
    size = "×".join(map(str, wanted))
    whose = f"samples{' of ' + file if file else ''}"
    if len(wanted) == 1:
        said = (
            f"{whose} have length {found}, and those of the run {size}. They count as sampled at the rate of training"
        )
        warnings.warn(f"{said}; if they are not, give their sampling step (step=, --step or data.step)", stacklevel=4)
    else:
        said = f"{whose} have size {found}, and those of the run {size}. Their pixels count as equally far apart"
        warnings.warn(f"{said}; if they are not, resize them or give their sampling step", stacklevel=4)
    return True


def _sizes(batch: Batch, padded: bool) -> set[tuple[int, ...]]:
    """Return the sizes of samples, before they were padded."""
    size = tuple(batch.inputs.shape[2:])
    if len(size) != 1 or batch.mask is None or not padded:
        return {size}
    last = torch.arange(1, size[0] + 1, device=batch.mask.device) * batch.mask.bool()
    return {(length,) for length in last.amax(dim=1).tolist()}


def _channel_statistics(prepare: Any) -> tuple[Tensor, Tensor] | None:
    """Return the means and deviations by which a preparation normalises raw channels; None if it does not."""
    if isinstance(prepare, Chain):
        return _channel_statistics(prepare.steps[0])
    if isinstance(prepare, Flatten):
        return _channel_statistics(prepare.before)
    if isinstance(prepare, Normalize) and prepare.mean.shape[2:].numel() == 1:
        return prepare.mean.double().flatten(), prepare.std.double().flatten()
    if isinstance(prepare, Standardize):
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (prepare.mean, prepare.std))
        return mean / prepare.scale, std / prepare.scale
    return None


def _full_scale(prepare: Any) -> float | None:
    """Return the stored number that stands for 1; None if the transform scales neither bytes nor 16-bit sound."""
    if isinstance(prepare, (Standardize, LogMel)) and prepare.scale < 1:
        return 1 / prepare.scale
    inner = [*getattr(prepare, "steps", ()), getattr(prepare, "before", None)]
    return next((found for part in inner if part is not None and (found := _full_scale(part))), None)


@checked(model=ANY)
def preprocessing(model: Any) -> Preprocessing:
    """Return the transform that belongs to a pretrained network.

    Args:
        model: a network from :func:`kernelfield.create_model` with ``pretrained=True``, from ``from_pretrained``, or of
            a run.

    >>> import kernelfield as kf
    >>> net = kf.create_model("flextcn_2.smnist", pretrained=True).eval()
    >>> transform = preprocessing(net)
    >>> transform
    Preprocessing('flextcn_2.smnist', input_shape=(1, 784))
    >>> x = transform(torch.randint(0, 256, (2, 56, 56), dtype=torch.uint8))    # images of another size
    >>> x.shape
    torch.Size([2, 1, 784])
    >>> transform.classes[int(net(x)[0].argmax())] in "0123456789"
    True
    """
    config = getattr(model, "pretrained_config", None)
    if not isinstance(config, dict):
        raise TypeError(
            f"model must be a network with pretrained weights, got {type(model).__name__}; "
            "create_model(..., pretrained=True) and from_pretrained return one"
        )
    return Preprocessing(config)


def prepare_samples(batch: Batch, data: Data | None) -> Batch:
    """Return the batch that the network reads: missing values masked, the rest prepared like test samples."""
    if batch.inputs.dim() > 2:  # all but token ids
        batch = replace(batch, inputs=batch.inputs.float())
    missing = batch.inputs.isnan()
    gaps = bool(missing.any())
    if batch.inputs.dim() > 2:
        # Points may have coordinates but no values; such points count as observed.
        unseen = missing.all(dim=1) if missing.shape[1] else missing.any(dim=1)
        if batch.mask is not None:
            batch = replace(batch, mask=batch.mask.bool() & ~unseen)
        elif bool(unseen.any()) or (data is not None and data.test.mask is not None):
            batch = replace(batch, mask=~unseen)
    if data is not None and data.test.prepare is not None:
        batch = data.test.prepare(batch, False)
    # A preparation that does not handle gaps leaves NaN; zero is then the mean.
    return replace(batch, inputs=torch.where(batch.inputs.isnan(), 0.0, batch.inputs)) if gaps else batch

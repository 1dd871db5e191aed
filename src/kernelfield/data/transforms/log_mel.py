"""Log-mel spectra of sounds, as a transform of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._arguments import checked_fields
from ..._kinds import POSITIVE, RATE, Int
from .mfcc import mel_filters

if TYPE_CHECKING:
    from ..base import Batch

__all__ = ["LogMel"]


@checked_fields(window=Int(2), scale=POSITIVE, floor=POSITIVE | None, stretch=RATE, shift=RATE)
@dataclass(frozen=True)
class LogMel:
    r"""Turn sounds (n, 1, length) into log-mel spectra (n, mels, frames).

    .. math:: P_{mt} = \sum_f M_{mf} |X_{ft}|^2, \qquad
        y_{mt} = \log\Big(\frac{P_{mt}}{\max_{m't'} P_{m't'}} + 10^{-\mathrm{floor}/10}\Big)

    where X is the short-time Fourier transform with Hann windows. Levels are relative to the loudest level of a sound.
    Those far below it, such as the noise of a microphone and the padding, count as silence. Without a ``floor``, y is
    :math:`\log(P_{mt} + 10^{-6})` minus the mean of each band over time.

    Args:
        window: samples of a window; half of it is the step from frame to frame.
        rate: samples per second.
        mels: number of mel bands.
        scale: factor on the stored numbers; 1 / 32767 for 16-bit integers.
        floor: levels more than this many decibels below the loudest count as silence; None for absolute levels.
        stretch: in training, stretch each sound in time by a random factor of up to 1 ± ``stretch``, without a change
            of pitch.
        shift: in training, shift each sound in time by up to this share of its length.

    >>> from kernelfield.data.base import Batch
    >>> LogMel(256, 8_000)(Batch(torch.randn(2, 1, 4_000)), False).inputs.shape, LogMel(256, 8_000).frames(4_000)
    (torch.Size([2, 40, 32]), 32)
    """

    window: int
    rate: int
    mels: int = 40
    scale: float = 1 / 32767
    floor: float | None = None
    stretch: float = 0.0
    shift: float = 0.0
    # Window and filters, one copy per device.
    _by_device: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window % 2:
            raise ValueError(f"window must be even, got {self.window}")

    @property
    def augments(self) -> bool:
        """Whether training samples differ from call to call."""
        return self.stretch > 0 or self.shift > 0

    def frames(self, length: int) -> int:
        """Return the number of frames of a sound of ``length`` samples."""
        return 1 + length // (self.window // 2)

    def __call__(self, batch: Batch, training: bool) -> Batch:
        x = batch.inputs.float() * self.scale
        if x.device not in self._by_device:
            bands = mel_filters(self.mels, self.window // 2 + 1, self.rate).to(x.device)
            self._by_device[x.device] = torch.hann_window(self.window, device=x.device), bands
        window, bands = self._by_device[x.device]
        spectrum = torch.stft(
            x[:, 0], self.window, self.window // 2, window=window, pad_mode="constant", return_complex=True
        )
        power = bands @ (spectrum.real.square() + spectrum.imag.square())
        if self.floor is None:
            levels = torch.log(power + 1e-6)
            levels = levels - levels.mean(dim=-1, keepdim=True)
        else:
            loudest = power.amax(dim=(1, 2), keepdim=True).clamp(min=1e-9)
            levels = torch.log(power / loudest + 10 ** (-self.floor / 10))
        return replace(batch, inputs=self._stretch_and_shift(levels) if training and self.augments else levels)

    def _stretch_and_shift(self, levels: Tensor) -> Tensor:
        """Return levels (n, mels, frames) with each sound stretched and shifted in time by random amounts."""
        n, mels, frames = levels.shape
        options: dict[str, Any] = {"device": levels.device, "dtype": levels.dtype}
        stretch, shift = 2 * torch.rand(2, n, 1, 1, **options) - 1
        along = torch.linspace(-1, 1, frames, **options) * (1 + self.stretch * stretch) + 2 * self.shift * shift
        bands = torch.linspace(-1, 1, mels, **options).unsqueeze(1)
        grid = torch.stack(torch.broadcast_tensors(along, bands), dim=-1)
        return F.grid_sample(levels.unsqueeze(1), grid, padding_mode="border", align_corners=True).squeeze(1)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_device": {}}

"""Log-mel spectra of sounds, as a transform of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._arguments import checked_fields
from ..._kinds import POSITIVE, RATE, Int
from .mfcc import mel_filters

if TYPE_CHECKING:
    from ..base import Batch

__all__ = ["LogMel"]


@checked_fields(window=Int(2), scale=POSITIVE, stretch=RATE)
@dataclass(frozen=True)
class LogMel:
    r"""Turn sounds (n, 1, length) into the logarithm of their mel spectra, (n, mels, frames).

    .. math:: y_{mt} = \log\Big(\sum_f M_{mf} |X_{ft}|^2 + 10^{-6}\Big), \qquad
        \tilde y_{mt} = y_{mt} - \tfrac1T \sum_{t'} y_{mt'}

    where X is the short-time Fourier transform with Hann windows. The mean of each band over time, which mostly tells
    speakers, rooms and microphones apart, is left out.

    Args:
        window: samples of a window; half of it is the step from frame to frame.
        rate: samples per second.
        mels: number of mel bands.
        scale: factor on the stored numbers; 1 / 32767 for 16-bit integers.
        stretch: in training, sounds are played faster or slower by a random factor of up to 1 ± ``stretch``, one for
            each batch, without a change of pitch.

    >>> from kernelfield.data.base import Batch
    >>> LogMel(256, 8_000)(Batch(torch.randn(2, 1, 4_000)), False).inputs.shape, LogMel(256, 8_000).frames(4_000)
    (torch.Size([2, 40, 32]), 32)
    """

    window: int
    rate: int
    mels: int = 40
    scale: float = 1 / 32767
    stretch: float = 0.0
    # Made once for each device.
    _there: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window % 2:
            raise ValueError(f"window must be even, got {self.window}")

    @property
    def augments(self) -> bool:
        """Whether training samples differ from call to call."""
        return self.stretch > 0

    def frames(self, length: int) -> int:
        """Return the number of frames of a sound of ``length`` samples."""
        return 1 + length // (self.window // 2)

    def __call__(self, batch: Batch, training: bool) -> Batch:
        x = batch.inputs.float() * self.scale
        if x.device not in self._there:
            bands = mel_filters(self.mels, self.window // 2 + 1, self.rate).to(x.device)
            self._there[x.device] = torch.hann_window(self.window, device=x.device), bands
        window, bands = self._there[x.device]
        spectrum = torch.stft(
            x[:, 0], self.window, self.window // 2, window=window, pad_mode="constant", return_complex=True
        )
        levels = torch.log(bands @ (spectrum.real.square() + spectrum.imag.square()) + 1e-6)
        if training and self.stretch:
            levels = self._stretched(levels)
        return replace(batch, inputs=levels - levels.mean(dim=-1, keepdim=True))

    def _stretched(self, levels: Tensor) -> Tensor:
        frames = levels.shape[-1]
        factor = 1 + self.stretch * (2 * torch.rand(()).item() - 1)
        longer = F.interpolate(levels, max(1, round(factor * frames)), mode="linear")
        spare = frames - longer.shape[-1]
        if spare <= 0:  # cut on both sides
            return longer[..., -spare // 2 :][..., :frames]
        return F.pad(longer, (spare // 2, spare - spare // 2), mode="replicate")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_there": {}}

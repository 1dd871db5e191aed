"""Mel-frequency cepstral coefficients in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._arguments import checked
from ..._kinds import Int
from ..._object_kinds import TensorOf

__all__ = ["mel_filters", "mfcc"]


@checked(audio=TensorOf("float", "…, length", empty=False), window=Int(2))
def mfcc(audio: Tensor, rate: int = 16_000, *, coefficients: int = 20, window: int = 200, mels: int = 64) -> Tensor:
    """Return mel-frequency cepstral coefficients: the cosine transform of the logarithm of a mel spectrum.

    The steps are: centred Hann windows of ``window`` samples, ``window / 2`` apart; power spectrum; ``mels`` triangular
    filters; natural logarithm of the result plus 1e-6; orthonormal DCT-II. The defaults are those of Kidger et al.
    (2020) and turn 16,000 samples into 161 frames of 20 coefficients.

    Args:
        audio: (…, length) samples, in [-1, 1].
        rate: samples per second.
        coefficients: number of coefficients, at most ``mels``.
        window: samples of a window, even.
        mels: number of mel filters.

    Returns:
        (…, coefficients, 1 + length // (window / 2)) coefficients.

    >>> mfcc(torch.randn(2, 16_000)).shape
    torch.Size([2, 20, 161])
    """
    if coefficients > mels:
        raise ValueError(f"coefficients must be at most mels, {mels}, got {coefficients}")
    if window % 2:
        raise ValueError(f"window must be even, got {window}")
    if audio.numel() == 0 or audio.shape[-1] <= window // 2:
        raise ValueError(
            f"audio must have more than window / 2 = {window // 2} samples, got shape {tuple(audio.shape)}"
        )
    # Fourier transforms do not support half precision.
    audio = audio.float() if audio.dtype in (torch.float16, torch.bfloat16) else audio
    flat = audio.reshape(-1, audio.shape[-1])
    spectrum = torch.stft(
        flat,
        n_fft=window,
        hop_length=window // 2,
        window=torch.hann_window(window, dtype=audio.dtype, device=audio.device),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    power = spectrum.real.square() + spectrum.imag.square()
    filters = mel_filters(mels, window // 2 + 1, rate).to(power)
    logarithm = torch.log(filters @ power + 1e-6)
    # cos(π/N (n + 1/2) k), with rows of unit length
    n = torch.arange(mels, dtype=power.dtype, device=power.device) + 0.5
    k = torch.arange(coefficients, dtype=power.dtype, device=power.device)
    cosines = torch.cos(math.pi / mels * n * k.unsqueeze(1)) * math.sqrt(2 / mels)
    cosines[0] /= math.sqrt(2)
    found = cosines @ logarithm
    return found.unflatten(0, audio.shape[:-1]) if audio.dim() > 1 else found[0]


def mel_filters(mels: int, bins: int, rate: int) -> Tensor:
    """Return (mels, bins) triangles, evenly spaced in mel (2595 log10(1 + f / 700)) from 0 to half the rate.

    >>> mel_filters(4, 101, 16_000).shape
    torch.Size([4, 101])
    """
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.arange(mels + 2, dtype=torch.float64) * (top / (mels + 1)) / 2595) - 1)
    frequency = torch.arange(bins, dtype=torch.float64) * (rate / 2 / (bins - 1))
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequency - low) / (mid - low), (high - frequency) / (high - mid)
    return torch.minimum(rising, falling).clamp(min=0).float()

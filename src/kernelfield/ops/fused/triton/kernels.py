"""Triton kernels of norms and activations, each of which is one pass over a signal.

A signal is a contiguous (batch, channels, length) tensor. A program computes some tiles of one channel, of (BB, LB)
samples by positions, so a bias, a statistic or a sum for a gradient is one number per program:

    program (c, part)      tiles of channel c      0 1 2 3 | 4 5 6 7 | 8 9 · ·      PER = 4, parts = 3

Each program writes its sums as one number for its part. The kernel that reads them adds the parts in a fixed order, so
results are the same in every run.

The normal distribution function Φ is computed by formula 7.1.26 of Abramowitz and Stegun, with an error of at most
1.5e-7. It shares its exponential with the density, so GELU and its derivative need one exponential together.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "activate_grads_kernel",
    "activate_kernel",
    "norm_grads_kernel",
    "norm_kernel",
    "norm_sums_kernel",
    "sums_kernel",
]

# The reduction function of tl.sum. tl.sum itself is compiled for a GPU if Triton was imported before the interpreter
# was selected.
_add = tl.standard._sum_combine  # noqa: SLF001


@triton.jit
def _tile(tile, c, B, C, L, columns, BB: tl.constexpr, LB: tl.constexpr):
    """Return the samples and positions of a tile, a mask of those that exist, and their addresses."""
    batch = ((tile // columns) * BB + tl.arange(0, BB)).to(tl.int64)
    column = (tile % columns) * LB + tl.arange(0, LB)
    return batch, column, (batch < B)[:, None] & (column < L)[None, :], _at(batch, column, c, C, L)


@triton.jit
def _at(batch, column, c, C, L):
    """Return the addresses of channel c in signals of C channels."""
    return ((batch * C + c) * L)[:, None] + column[None, :]


@triton.jit
def _total(values):
    return tl.reduce(tl.reduce(values, 1, _add), 0, _add)


@triton.jit
def _normal(x):
    """Return Φ(x) and exp(-x²/2)."""
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(x))
    e = tl.exp(-0.5 * x * x)
    series = t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))
    tail = 0.5 * e * t * (0.254829592 + t * (-0.284496736 + series))
    return tl.where(x < 0, tail, 1.0 - tail), e


@triton.jit
def _gelu(x):
    phi, _ = _normal(x)
    return x * phi


@triton.jit
def _gelu_slope(x):
    phi, e = _normal(x)
    return phi + x * e * 0.3989422804014327


@triton.jit
def _kept(seed, index, threshold):
    """Return whether dropout keeps each index, if a hash of it and two random words is below a threshold."""
    low, high = tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32)
    h = index.to(tl.uint32) * 0x9E3779B1 + low
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) + high
    h = (h ^ (h >> 16)) * 0x846CA68B
    h = h ^ (h >> 16)
    return (h >> 1).to(tl.int32) < threshold


@triton.jit
def _dropped(value, seed, batch, at, c, C, threshold, factor, CHANNELS: tl.constexpr):
    """Return ``value`` after dropout; whole channels have one index for all of their positions."""
    index = (batch * C + c)[:, None] if CHANNELS else at
    return tl.where(_kept(seed, index, threshold), value * factor, 0.0)


@triton.jit
def activate_kernel(
    x, bias, residual, seed, out, B, C, L, columns, rows, threshold, factor,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, DROP: tl.constexpr, CHANNELS: tl.constexpr,
    PER: tl.constexpr, BB: tl.constexpr, LB: tl.constexpr,
):  # fmt: skip
    """Write residual + drop(gelu(x + bias)); ``x`` has ``rows`` channels, of which the first C are used."""
    c = tl.program_id(0)
    first = tl.program_id(1) * PER
    shift = tl.load(bias + c).to(tl.float32) if BIAS else 0.0
    for i in range(PER):  # tiles past the end are masked out
        batch, column, there, at = _tile(first + i, c, B, C, L, columns, BB, LB)
        value = tl.load(x + _at(batch, column, c, rows, L), mask=there, other=0.0).to(tl.float32)
        value = _gelu(value + shift)
        if DROP:
            value = _dropped(value, seed, batch, at, c, C, threshold, factor, CHANNELS)
        if RESIDUAL:
            value += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
        tl.store(out + at, value, mask=there)


@triton.jit
def activate_grads_kernel(
    grad, x, bias, seed, out, sums, B, C, L, columns, rows, threshold, factor,
    BIAS: tl.constexpr, DROP: tl.constexpr, CHANNELS: tl.constexpr,
    PER: tl.constexpr, BB: tl.constexpr, LB: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x, zero in unused channels, and its sums for the bias, (parts, channels)."""
    c = tl.program_id(0)
    first = tl.program_id(1) * PER
    used = c < C
    shift = tl.load(bias + c, mask=used, other=0.0).to(tl.float32) if BIAS else 0.0
    total = tl.full((BB, LB), 0.0, tl.float32)
    for i in range(PER):
        batch, column, there, at = _tile(first + i, c, B, C, L, columns, BB, LB)
        spot = _at(batch, column, c, rows, L)
        value = tl.load(x + spot, mask=there & used, other=0.0).to(tl.float32) + shift
        slope = tl.load(grad + at, mask=there & used, other=0.0).to(tl.float32) * _gelu_slope(value)
        if DROP:
            slope = _dropped(slope, seed, batch, at, c, C, threshold, factor, CHANNELS)
        tl.store(out + spot, slope, mask=there)
        total += slope
    if BIAS:
        tl.store(sums + tl.program_id(1) * C + c, _total(total), mask=used)


@triton.jit
def _store_sums(sums, once, twice, c, C, parts):
    """Write the totals of two tiles to this program's part of the sums."""
    spot = tl.program_id(1) * C + c
    tl.store(sums + spot, _total(once))
    tl.store(sums + parts * C + spot, _total(twice))


@triton.jit
def sums_kernel(x, sums, B, C, L, columns, parts, PER: tl.constexpr, BB: tl.constexpr, LB: tl.constexpr):
    """Write Σ(x - x₀) and Σ(x - x₀)², (2, parts, channels), where x₀ is the channel's first value.

    The shift by x₀ keeps the variance accurate when the mean is far from zero.
    """
    c = tl.program_id(0)
    first = tl.program_id(1) * PER
    origin = tl.load(x + c.to(tl.int64) * L).to(tl.float32)
    once, twice = tl.full((BB, LB), 0.0, tl.float32), tl.full((BB, LB), 0.0, tl.float32)
    for i in range(PER):
        _, _, there, at = _tile(first + i, c, B, C, L, columns, BB, LB)
        value = tl.where(there, tl.load(x + at, mask=there, other=0.0).to(tl.float32) - origin, 0.0)
        once += value
        twice += value * value
    _store_sums(sums, once, twice, c, C, parts)


@triton.jit
def _added(sums, c, C, parts, PARTS: tl.constexpr):
    """Return the two sums of a channel over all parts."""
    part = tl.arange(0, PARTS)
    once = tl.load(sums + part * C + c, mask=part < parts, other=0.0)
    twice = tl.load(sums + (parts + part) * C + c, mask=part < parts, other=0.0)
    return tl.reduce(once, 0, _add), tl.reduce(twice, 0, _add)


@triton.jit
def norm_kernel(
    x, sums, weight, bias, running_mean, running_variance, statistics, out,
    B, C, L, columns, parts, count, momentum, eps,
    AFFINE: tl.constexpr, RUNNING: tl.constexpr, GELU: tl.constexpr,
    PARTS: tl.constexpr, PER: tl.constexpr, BB: tl.constexpr, LB: tl.constexpr,
):  # fmt: skip
    """Write the normalised signal and each channel's mean and 1/deviation, (2, channels); update running averages."""
    c = tl.program_id(0)
    first = tl.program_id(1) * PER
    once, twice = _added(sums, c, C, parts, PARTS)
    offset = once / count
    mean = tl.load(x + c.to(tl.int64) * L).to(tl.float32) + offset
    variance = tl.maximum(twice / count - offset * offset, 0.0)
    inverse = 1.0 / tl.sqrt(variance + eps)
    if tl.program_id(1) == 0:
        tl.store(statistics + c, mean)
        tl.store(statistics + C + c, inverse)
        if RUNNING:
            unbiased = variance * (count / tl.maximum(count - 1.0, 1.0))
            tl.store(running_mean + c, tl.load(running_mean + c) * (1.0 - momentum) + momentum * mean)
            tl.store(running_variance + c, tl.load(running_variance + c) * (1.0 - momentum) + momentum * unbiased)
    scale = inverse * tl.load(weight + c).to(tl.float32) if AFFINE else inverse
    shift = tl.load(bias + c).to(tl.float32) if AFFINE else 0.0
    for i in range(PER):
        _, _, there, at = _tile(first + i, c, B, C, L, columns, BB, LB)
        value = (tl.load(x + at, mask=there, other=0.0).to(tl.float32) - mean) * scale + shift
        tl.store(out + at, _gelu(value) if GELU else value, mask=there)


@triton.jit
def _norm_of_channel(statistics, weight, bias, c, C, AFFINE: tl.constexpr):
    """Return a channel's mean, its 1/deviation, and its weight and bias."""
    mean, inverse = tl.load(statistics + c), tl.load(statistics + C + c)
    scale = tl.load(weight + c).to(tl.float32) if AFFINE else 1.0
    shift = tl.load(bias + c).to(tl.float32) if AFFINE else 0.0
    return mean, inverse, scale, shift


@triton.jit
def _value_and_slope(x, grad, at, there, mean, inverse, scale, shift, GELU: tl.constexpr):
    """Return a tile of the signal before weight and bias, and of the gradient before GELU."""
    value = (tl.load(x + at, mask=there, other=0.0).to(tl.float32) - mean) * inverse
    slope = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    if GELU:
        slope *= _gelu_slope(value * scale + shift)
    return value, slope


@triton.jit
def norm_sums_kernel(
    grad, x, statistics, weight, bias, sums, B, C, L, columns, parts,
    AFFINE: tl.constexpr, GELU: tl.constexpr, PER: tl.constexpr, BB: tl.constexpr, LB: tl.constexpr,
):  # fmt: skip
    """Write Σg and Σg·x̂, (2, parts, channels), for the gradient g before GELU and x̂ before weight and bias."""
    c = tl.program_id(0)
    first = tl.program_id(1) * PER
    mean, inverse, scale, shift = _norm_of_channel(statistics, weight, bias, c, C, AFFINE)
    once, twice = tl.full((BB, LB), 0.0, tl.float32), tl.full((BB, LB), 0.0, tl.float32)
    for i in range(PER):
        _, _, there, at = _tile(first + i, c, B, C, L, columns, BB, LB)
        value, slope = _value_and_slope(x, grad, at, there, mean, inverse, scale, shift, GELU)
        once += slope
        twice += slope * value
    _store_sums(sums, once, twice, c, C, parts)


@triton.jit
def norm_grads_kernel(
    grad, x, identity, statistics, weight, bias, sums, out, parameters, B, C, L, columns, parts, count,
    AFFINE: tl.constexpr, IDENTITY: tl.constexpr, GELU: tl.constexpr,
    PARTS: tl.constexpr, PER: tl.constexpr, BB: tl.constexpr, LB: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x, plus that of an identity branch, and those of weight and bias, (2, channels)."""
    c = tl.program_id(0)
    first = tl.program_id(1) * PER
    mean, inverse, scale, shift = _norm_of_channel(statistics, weight, bias, c, C, AFFINE)
    once, twice = _added(sums, c, C, parts, PARTS)
    if tl.program_id(1) == 0:
        tl.store(parameters + c, twice)
        tl.store(parameters + C + c, once)
    once, twice = once / count, twice / count
    for i in range(PER):
        _, _, there, at = _tile(first + i, c, B, C, L, columns, BB, LB)
        value, slope = _value_and_slope(x, grad, at, there, mean, inverse, scale, shift, GELU)
        slope = scale * inverse * (slope - once - value * twice)
        if IDENTITY:
            slope += tl.load(identity + at, mask=there, other=0.0).to(tl.float32)
        tl.store(out + at, slope, mask=there)

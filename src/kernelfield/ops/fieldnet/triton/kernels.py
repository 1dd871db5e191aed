"""Triton kernels that compute the last hidden layer of kernel networks on regular grids from the numbers of a grid.

A program has a tile of T grid points of one network. It computes their coordinates from their index and evaluates the
network in registers. The backward pass evaluates the network again, so nothing is saved. Each program writes its own
gradients of the weights. They are added later in a fixed order, so results are the same in every run.

The parameters of a network are stored in one row, in this order, for F filters of H units on D axes with A inverse
widths:

    filter network   frequency F·H·D | phase F·H | gamma F·H·A | mean F·H·D | weight H·H, bias H of each hidden map
    sines            weight H·D | bias H | weight H·H, bias H of each hidden map
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["filter_grads_kernel", "filter_kernel", "sine_grads_kernel", "sine_kernel"]

# The reduction function of tl.sum. tl.sum itself is compiled for a GPU if Triton was imported before the interpreter
# was selected.
_add = tl.standard._sum_combine  # noqa: SLF001


@triton.jit
def _axis(index, first, step, size):
    return (first + index).to(tl.float32) * step / size


@triton.jit
def _coordinates(
    point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D: tl.constexpr
):  # fmt: skip
    """Return the coordinates of grid points, as (T, 1) columns; missing axes repeat the first."""
    if D == 1:
        x0 = _axis(point, first0, step0, size0)[:, None]
        x1, x2 = x0, x0
    elif D == 2:
        x0 = _axis(point // n1, first0, step0, size0)[:, None]
        x1 = _axis(point % n1, first1, step1, size1)[:, None]
        x2 = x0
    else:
        x0 = _axis(point // (n1 * n2), first0, step0, size0)[:, None]
        x1 = _axis((point // n2) % n1, first1, step1, size1)[:, None]
        x2 = _axis(point % n2, first2, step2, size2)[:, None]
    return x0, x1, x2


@triton.jit
def _row(p, start, unit, stride, d, there):
    """Return one number of each unit, as a (1, HB) row."""
    return tl.load(p + start + unit * stride + d, mask=there, other=0.0)[None, :]


@triton.jit
def _plane(p, start, unit, x0, x1, x2, there, D: tl.constexpr):
    """Return Σ_d w_d x_d for each unit, whose D weights are adjacent in memory."""
    z = _row(p, start, unit, D, 0, there) * x0
    if D > 1:
        z += _row(p, start, unit, D, 1, there) * x1
    if D > 2:
        z += _row(p, start, unit, D, 2, there) * x2
    return z


@triton.jit
def _matrix(p, start, unit, there, H: tl.constexpr):
    """Return a hidden map's weight transposed, (in, out), and its bias as a row."""
    both = there[:, None] & there[None, :]
    weight = tl.load(p + start + unit[None, :] * H + unit[:, None], mask=both, other=0.0)
    return weight, tl.load(p + start + H * H + unit, mask=there, other=0.0)[None, :]


@triton.jit
def _accumulate(q, at, value, mask, ADD: tl.constexpr):
    """Write a part of a gradient, or add it to the sum of the earlier tiles."""
    if ADD:
        value += tl.load(q + at, mask=mask, other=0.0)
    tl.store(q + at, value, mask=mask)


@triton.jit
def _reduce_angle(z):
    """Return z minus the nearest multiple of π, subtracted in three parts, and the sign of sine and cosine there.

    A library's sine has code for huge arguments, which would run for every element of a tile. The arguments here are
    frequencies times coordinates. Above 10⁵, float32 does not resolve the phase anyway.
    """
    turns = tl.floor(z * 0.3183098861837907 + 0.5)
    r = z - turns * 3.140625
    r = r - turns * 9.67502593994140625e-4
    r = r - turns * 1.509957990978376432e-7
    return r, tl.where((turns.to(tl.int32) & 1) == 0, 1.0, -1.0)


@triton.jit
def _sine(z):
    """Return sin z by a series on [-π/2, π/2] with an error below rounding."""
    r, sign = _reduce_angle(z)
    s = r * r
    odd = -1.984126984e-4 + s * (2.755731922e-6 + s * (-2.505210839e-8 + s * 1.605904384e-10))
    return sign * (r + r * s * (-0.1666666667 + s * (8.333333333e-3 + s * odd)))


@triton.jit
def _cosine(z):
    r, sign = _reduce_angle(z)
    s = r * r
    even = 2.480158730e-5 + s * (-2.755731922e-7 + s * (2.087675699e-9 - s * 1.147074560e-11))
    return sign * (1.0 + s * (-0.5 + s * (4.166666667e-2 + s * (-1.388888889e-3 + s * even))))


# Filter networks: h₀ = g₀(x), hₗ₊₁ = (Aₗhₗ + aₗ)·gₗ₊₁(x), g = sin(Wx + b)·exp(-½ Σ (γ(x - μ))²).


@triton.jit
def _envelope(p, f, unit, x0, x1, x2, there, F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, A: tl.constexpr):
    G: tl.constexpr = F * H * (D + 1)
    M: tl.constexpr = F * H * (D + 1 + A)
    own = f * H + unit
    root = (x0 - _row(p, M, own, D, 0, there)) * _row(p, G, own, A, 0, there)
    exponent = root * root
    if D > 1:
        root = (x1 - _row(p, M, own, D, 1, there)) * _row(p, G, own, A, 1 if A > 1 else 0, there)
        exponent += root * root
    if D > 2:
        root = (x2 - _row(p, M, own, D, 2, there)) * _row(p, G, own, A, 2 if A > 1 else 0, there)
        exponent += root * root
    return tl.exp(-0.5 * exponent)


@triton.jit
def _phase(p, f, unit, x0, x1, x2, there, F: tl.constexpr, H: tl.constexpr, D: tl.constexpr):
    own = f * H + unit
    return _plane(p, 0, own, x0, x1, x2, there, D) + _row(p, F * H * D, own, 1, 0, there)


@triton.jit
def _filter(p, f, unit, x0, x1, x2, there, F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, A: tl.constexpr):
    g = _sine(_phase(p, f, unit, x0, x1, x2, there, F, H, D))
    if A > 0:
        g *= _envelope(p, f, unit, x0, x1, x2, there, F, H, D, A)
    return g


@triton.jit
def filter_kernel(
    p, out, points, width, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2,
    F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, HB: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the last hidden layer, (networks, H, points)."""
    S: tl.constexpr = F * H * (D + 1 + (A + D if A > 0 else 0))
    point, unit = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, HB)
    p += tl.program_id(1).to(tl.int64) * width
    out += tl.program_id(1).to(tl.int64) * H * points
    there = unit < H
    x0, x1, x2 = _coordinates(point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D)
    h = _filter(p, 0, unit, x0, x1, x2, there, F, H, D, A)
    for l in range(F - 1):
        weight, bias = _matrix(p, S + l * (H * H + H), unit, there, H)
        h = tl.dot(h, weight, input_precision=PRECISION) + bias
        h *= _filter(p, l + 1, unit, x0, x1, x2, there, F, H, D, A)
    tl.store(out + unit[None, :] * points + point[:, None], h, mask=(point < points)[:, None] & there[None, :])


@triton.jit
def _filter_grads(
    p, q, f, slope, unit, x0, x1, x2, there,
    F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a filter's parameters from the gradient of its values; return the values."""
    own = f * H + unit
    z = _phase(p, f, unit, x0, x1, x2, there, F, H, D)
    by_phase, g = slope * _cosine(z), _sine(z)
    if A > 0:
        envelope = _envelope(p, f, unit, x0, x1, x2, there, F, H, D, A)
        by_phase *= envelope
        g *= envelope
        # The gradient of the exponent, -½ Σ (γ(x - μ))², is the gradient of the values times the values.
        _envelope_grads(p, q, own, slope * g, x0, x1, x2, there, F, H, D, A, ADD)
    _accumulate(q, own * D, tl.reduce(by_phase * x0, 0, _add), there, ADD)
    if D > 1:
        _accumulate(q, own * D + 1, tl.reduce(by_phase * x1, 0, _add), there, ADD)
    if D > 2:
        _accumulate(q, own * D + 2, tl.reduce(by_phase * x2, 0, _add), there, ADD)
    _accumulate(q, F * H * D + own, tl.reduce(by_phase, 0, _add), there, ADD)
    return g


@triton.jit
def _axis_grads(p, q, own, slope, x, d, G, M, there, D: tl.constexpr, A: tl.constexpr, ADD: tl.constexpr):
    """Write the gradient of the mean along an axis; return the gradient of its inverse width."""
    gamma, offset = _row(p, G, own, A, d if A > 1 else 0, there), x - _row(p, M, own, D, d, there)
    _accumulate(q, M + own * D + d, tl.reduce(slope * gamma * gamma * offset, 0, _add), there, ADD)
    return -tl.reduce(slope * gamma * offset * offset, 0, _add)


@triton.jit
def _envelope_grads(
    p, q, own, slope, x0, x1, x2, there,
    F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = F * H * (D + 1)
    M: tl.constexpr = F * H * (D + 1 + A)
    width = _axis_grads(p, q, own, slope, x0, 0, G, M, there, D, A, ADD)
    if D > 1:
        second = _axis_grads(p, q, own, slope, x1, 1, G, M, there, D, A, ADD)
        if A > 1:
            _accumulate(q, G + own * A + 1, second, there, ADD)
        else:
            width += second
    if D > 2:
        third = _axis_grads(p, q, own, slope, x2, 2, G, M, there, D, A, ADD)
        if A > 1:
            _accumulate(q, G + own * A + 2, third, there, ADD)
        else:
            width += third
    _accumulate(q, G + own * A, width, there, ADD)


@triton.jit
def _matrix_grads(q, start, slope, h, unit, there, H: tl.constexpr, PRECISION: tl.constexpr, ADD: tl.constexpr):
    """Write the gradients of a hidden map from its input and the gradient of its output."""
    both = there[:, None] & there[None, :]
    product = tl.dot(tl.trans(slope), h, input_precision=PRECISION)
    _accumulate(q, start + unit[:, None] * H + unit[None, :], product, both, ADD)
    _accumulate(q, start + H * H + unit, tl.reduce(slope, 0, _add), there, ADD)


@triton.jit
def filter_grads_kernel(
    grad, p, q, scratch, points, width, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2,
    F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, HB: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of all parameters, (networks, programs, width), EACH tiles in one row.

    The inputs of all hidden maps are recomputed and stored in ``scratch``, (networks, F - 1, H, points).
    """
    S: tl.constexpr = F * H * (D + 1 + (A + D if A > 0 else 0))
    ADD: tl.constexpr = EACH > 1
    unit = tl.arange(0, HB)
    there = unit < H
    net = tl.program_id(1).to(tl.int64)
    p += net * width
    q += (net * tl.num_programs(0) + tl.program_id(0)) * width
    grad += net * H * points
    scratch += net * (F - 1) * H * points
    for i in range(EACH):
        point = (tl.program_id(0) * EACH + i) * T + tl.arange(0, T)
        x0, x1, x2 = _coordinates(point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D)
        here = (point < points)[:, None] & there[None, :]
        at = unit[None, :] * points + point[:, None]
        h = _filter(p, 0, unit, x0, x1, x2, there, F, H, D, A)
        for l in range(F - 1):
            tl.store(scratch + l * H * points + at, h, mask=here)
            weight, bias = _matrix(p, S + l * (H * H + H), unit, there, H)
            h = tl.dot(h, weight, input_precision=PRECISION) + bias
            h *= _filter(p, l + 1, unit, x0, x1, x2, there, F, H, D, A)
        tl.debug_barrier()  # a thread may read what another one wrote
        slope = tl.load(grad + at, mask=here, other=0.0)
        for back in range(F - 1):
            l = F - 2 - back
            h = tl.load(scratch + l * H * points + at, mask=here, other=0.0)
            weight, bias = _matrix(p, S + l * (H * H + H), unit, there, H)
            by_filter = slope * (tl.dot(h, weight, input_precision=PRECISION) + bias)
            slope *= _filter_grads(p, q, l + 1, by_filter, unit, x0, x1, x2, there, F, H, D, A, ADD)
            _matrix_grads(q, S + l * (H * H + H), slope, h, unit, there, H, PRECISION, ADD)
            slope = tl.dot(slope, tl.trans(weight), input_precision=PRECISION)
        _filter_grads(p, q, 0, slope, unit, x0, x1, x2, there, F, H, D, A, ADD)
        if ADD:
            tl.debug_barrier()


# Networks of sines: h₀ = sin(ω(Wx + b)), hₗ₊₁ = sin(ω(Aₗhₗ + aₗ)).


@triton.jit
def _first(p, omega, unit, x0, x1, x2, there, H: tl.constexpr, D: tl.constexpr):
    """Return the arguments of the first sines."""
    return omega * (_plane(p, 0, unit, x0, x1, x2, there, D) + _row(p, H * D, unit, 1, 0, there))


@triton.jit
def sine_kernel(
    p, out, omega, points, width, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2,
    F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the last hidden layer, (networks, H, points), of F layers."""
    point, unit = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, HB)
    p += tl.program_id(1).to(tl.int64) * width
    out += tl.program_id(1).to(tl.int64) * H * points
    there = unit < H
    x0, x1, x2 = _coordinates(point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D)
    h = _sine(_first(p, omega, unit, x0, x1, x2, there, H, D))
    for l in range(F - 1):
        weight, bias = _matrix(p, H * (D + 1) + l * (H * H + H), unit, there, H)
        h = _sine(omega * (tl.dot(h, weight, input_precision=PRECISION) + bias))
    tl.store(out + unit[None, :] * points + point[:, None], h, mask=(point < points)[:, None] & there[None, :])


@triton.jit
def sine_grads_kernel(
    grad, p, q, scratch, omega, points, width, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2,
    F: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, T: tl.constexpr,
    PRECISION: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of all parameters, (networks, programs, width), EACH tiles in one row.

    The arguments of the sines of all layers but the last are recomputed and stored in ``scratch``.
    """
    S: tl.constexpr = H * (D + 1)
    ADD: tl.constexpr = EACH > 1
    unit = tl.arange(0, HB)
    there = unit < H
    net = tl.program_id(1).to(tl.int64)
    p += net * width
    q += (net * tl.num_programs(0) + tl.program_id(0)) * width
    grad += net * H * points
    scratch += net * (F - 1) * H * points
    for i in range(EACH):
        point = (tl.program_id(0) * EACH + i) * T + tl.arange(0, T)
        x0, x1, x2 = _coordinates(point, n1, n2, first0, first1, first2, step0, step1, step2, size0, size1, size2, D)
        here = (point < points)[:, None] & there[None, :]
        at = unit[None, :] * points + point[:, None]
        z = _first(p, omega, unit, x0, x1, x2, there, H, D)
        for l in range(F - 1):
            tl.store(scratch + l * H * points + at, z, mask=here)
            weight, bias = _matrix(p, S + l * (H * H + H), unit, there, H)
            z = omega * (tl.dot(_sine(z), weight, input_precision=PRECISION) + bias)
        tl.debug_barrier()  # a thread may read what another one wrote
        slope = tl.load(grad + at, mask=here, other=0.0) * (omega * _cosine(z))
        for back in range(F - 1):
            start = S + (F - 2 - back) * (H * H + H)
            z = tl.load(scratch + (F - 2 - back) * H * points + at, mask=here, other=0.0)
            weight, bias = _matrix(p, start, unit, there, H)
            _matrix_grads(q, start, slope, _sine(z), unit, there, H, PRECISION, ADD)
            slope = tl.dot(slope, tl.trans(weight), input_precision=PRECISION) * (omega * _cosine(z))
        _accumulate(q, unit * D, tl.reduce(slope * x0, 0, _add), there, ADD)
        if D > 1:
            _accumulate(q, unit * D + 1, tl.reduce(slope * x1, 0, _add), there, ADD)
        if D > 2:
            _accumulate(q, unit * D + 2, tl.reduce(slope * x2, 0, _add), there, ADD)
        _accumulate(q, H * D + unit, tl.reduce(slope, 0, _add), there, ADD)
        if ADD:
            tl.debug_barrier()

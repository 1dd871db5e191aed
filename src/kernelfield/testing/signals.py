"""Assertions about signals that are shifted, delayed or sampled at another step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import NOT_NEGATIVE, POSITIVE, Int, ListOf
from .._object_kinds import CALLABLE, IterableOf, TensorOf
from ._compare import assert_close, check_depends, evaluation, other_signal, scale_of, signal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["assert_causal", "assert_resolution_consistent", "assert_translation_equivariant"]


@checked(
    x=TensorOf("float", "batch, …, time", empty=False) | TensorOf("int", "batch, …, time", empty=False),
    times=IterableOf(Int(0)) | None,
    atol=NOT_NEGATIVE | None,
)
def assert_causal(
    model: Callable[[Tensor], Any],
    x: Tensor,
    *,
    times: Iterable[int] | None = None,
    atol: float | None = None,
) -> None:
    r"""Assert that no output up to time t depends on the input after t, by changing the input after t.

    Args:
        model: maps a signal to a signal of the same length; a module is run in evaluation mode.
        x: (batch, channels, time) signal, or (batch, time) token ids, at least two different ones.
        times: the times t to try; all by default, one forward pass each.
        atol: change allowed in the past. By default 64 units of rounding of the largest output, which a
            convolution by Fourier transforms needs; 0 requires bitwise equality.

    >>> x = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    >>> assert_causal(lambda x: x.cumsum(-1), x, atol=0)
    >>> assert_causal(lambda x: x + 0.5 * x.roll(1, -1), x)
    Traceback (most recent call last):
    AssertionError: not causal: the output at time 0 changes by ... (allowed ...) with the input after ...
    """
    if not len(x):
        raise ValueError(f"x must have at least one sample, got shape {tuple(x.shape)}")
    length = x.shape[-1]
    chosen = list(range(length - 1) if times is None else times)
    if any(t >= length for t in chosen):
        raise ValueError(f"times must be below the {length} times of x, got {chosen}")
    other = other_signal(x)
    depends = all(t == length - 1 for t in chosen)  # no input after the last time could be changed
    with evaluation(model):
        expected = signal_of(model(x))
        if expected.shape[-1:] != x.shape[-1:]:
            raise AssertionError(f"not causal: {length} times in, output of shape {tuple(expected.shape)}")
        for t in chosen:
            got = signal_of(model(torch.cat([x[..., : t + 1], other[..., t + 1 :]], dim=-1)))
            depends = depends or not torch.equal(got, expected)
            changed = (got - expected)[..., : t + 1].abs()
            rounding = _rounding(expected.dtype) * max(scale_of(expected), scale_of(got))
            allowed = 64 * rounding if atol is None else atol
            by_time = changed.flatten(0, -2).amax(dim=0)
            if not bool((by_time <= allowed).all()):
                first = int((~(by_time <= allowed)).nonzero()[0])
                raise AssertionError(
                    f"not causal: the output at time {first} changes by {by_time[first].item():.3g} "
                    f"(allowed {allowed:.2g}) with the input after time {t}"
                )
    if not depends:
        raise AssertionError("nothing to compare: no output changes with the input after any of the times")


def _rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


@checked(
    x=TensorOf("float", "batch, channels, *space"),
    shift=Int(-(2**28)) | ListOf(Int(-(2**28))),
    margin=Int(0) | None,
    rtol=NOT_NEGATIVE,
    atol=NOT_NEGATIVE,
)
def assert_translation_equivariant(
    model: Callable[[Tensor], Any],
    x: Tensor,
    shift: int | Sequence[int],
    *,
    periodic: bool = False,
    margin: int | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
) -> None:
    r"""Assert that a shifted input gives the same output, shifted.

    Unless ``periodic``, ``x`` is padded with zeros, and outputs are compared at its own positions: at least
    ``margin`` samples from an edge, both before and after the shift.

    Args:
        model: maps a signal to a signal of the same shape; a module is run in evaluation mode.
        x: (batch, channels, \*space) signal.
        shift: number of samples, one for all axes or one per axis.
        periodic: the signal is one period, and a shift rolls it.
        margin: number of zeros around ``x``, at least the reach of the model; the longest axis by default.
        rtol: difference allowed, relative to the largest entry of the output.
        atol: difference allowed on top of that.

    >>> x = torch.randn(1, 2, 9)
    >>> conv = torch.nn.Conv1d(2, 2, 3, padding=1)
    >>> assert_translation_equivariant(conv, x, 4)
    >>> assert_translation_equivariant(conv, x, 4, periodic=True)
    Traceback (most recent call last):
    AssertionError: not equivariant to a shift of (4,): differs by ...
    """
    dim = x.dim() - 2
    shifts = (shift,) * dim if isinstance(shift, int) else tuple(shift)
    if len(shifts) != dim:
        raise ValueError(f"shift must be an int or {dim} ints for x of shape {tuple(x.shape)}, got {shift!r}")
    axes = tuple(range(2, 2 + dim))
    zeros = [0] * dim
    if not periodic:
        reach = max(x.shape[2:]) if margin is None else margin
        zeros = [reach + abs(s) for s in shifts]
        x = nn.functional.pad(x, [n for n in reversed(zeros) for _ in range(2)])
    with evaluation(model):
        expected, got = (
            signal_of(model(x)),
            signal_of(model(x.roll(shifts, axes))).roll([-s for s in shifts], axes),
        )
        check_depends(model, x, expected, atol)
    if expected.shape[2:] != x.shape[2:]:
        raise AssertionError(f"space of {tuple(x.shape[2:])} in, output of shape {tuple(expected.shape)}")
    for axis, n in zip(axes, zeros, strict=True):
        length = x.shape[axis] - 2 * n
        expected, got = expected.narrow(axis, n, length), got.narrow(axis, n, length)
    assert_close(f"not equivariant to a shift of {shifts}", got, expected, rtol, atol)


@checked(
    signal=TensorOf("float", "batch, channels, *space") | CALLABLE,
    steps=IterableOf(POSITIVE | ListOf(POSITIVE), least=1),
    shape=IterableOf(Int(), least=1) | None,
    border=Int(0),
    rtol=NOT_NEGATIVE,
    atol=NOT_NEGATIVE,
)
def assert_resolution_consistent(
    model: Callable[..., Any],
    signal: Tensor | Callable[[Tensor], Tensor],
    *,
    steps: Iterable[float | Sequence[float]],
    shape: Sequence[int] | None = None,
    border: int = 0,
    rtol: float = 0.05,
    atol: float = 0.0,
) -> None:
    r"""Assert that ``model(x, step=s)`` agrees with ``model(x, step=1)`` wherever both grids have a sample.

    Args:
        model: called as ``model(x, step=step)``; returns a signal on the grid of its input. A module is run
            in evaluation mode.
        signal: a continuous signal, from positions (\*space, dim) in training steps to values
            (batch, channels, \*space); or such values at step 1, for integer steps n, which take every n-th value.
        steps: the sampling steps to try, in training steps, each one for all axes or one per axis.
        shape: number of samples per axis at step 1; needed if ``signal`` is a function.
        border: number of training steps at the edges that are not compared.
        rtol: difference allowed, relative to the largest entry of the output at step 1.
        atol: difference allowed on top of that.

    >>> def wave(positions):
    ...     return torch.sin(positions[..., 0] / 5)[None, None]
    >>> def integrate(x, step):
    ...     return step * x.cumsum(-1)
    >>> assert_resolution_consistent(integrate, wave, shape=[64], steps=[0.5, 0.4], rtol=0.1)
    >>> assert_resolution_consistent(lambda x, step: x.cumsum(-1), wave, shape=[64], steps=[0.5], rtol=0.1)
    Traceback (most recent call last):
    AssertionError: step (0.5,) disagrees with step 1 on the 64 positions they share: differs by ...
    """
    from fractions import Fraction  # noqa: PLC0415  # a slow import that nothing else needs

    if isinstance(signal, Tensor):
        shape = signal.shape[2:]
    elif shape is None:
        raise ValueError("shape must be given if signal is a function, got None")
    dim = len(shape)
    with evaluation(model):
        x = _sampled(signal, shape, (1.0,) * dim)
        reference = signal_of(model(x, step=1.0))
        check_depends(functools.partial(model, step=1.0), x, reference, atol)
        for step in steps:
            each = (float(step),) * dim if isinstance(step, (int, float)) else tuple(map(float, step))
            if len(each) != dim:
                raise ValueError(f"steps must have one number per axis, {dim}, got {step}")
            ours = signal_of(model(_sampled(signal, shape, each), step=step))
            theirs = reference
            for axis, (s, n) in enumerate(zip(each, shape, strict=True), start=2):
                # Step p/q puts sample q·i where sample p·i of step 1 lies.
                ratio = Fraction(s).limit_denominator(1000)
                ours = _every(ours, axis, ratio.denominator)
                theirs = _every(theirs, axis, ratio.numerator)
                skip = -(-border // ratio.numerator)
                count = max(0, (n - 1 - border) // ratio.numerator + 1 - skip)
                ours, theirs = ours.narrow(axis, skip, count), theirs.narrow(axis, skip, count)
            shared = ours[0, 0].numel()
            what = f"step {each} disagrees with step 1 on the {shared} positions they share"
            if shared == 0:
                raise ValueError(
                    f"steps must share a position with step 1 in a signal of shape {tuple(shape)}, got {step}"
                )
            assert_close(what, ours, theirs, 0.0, atol + rtol * scale_of(reference))


def _sampled(signal: Tensor | Callable[[Tensor], Tensor], shape: Sequence[int], step: tuple[float, ...]) -> Tensor:
    if isinstance(signal, Tensor):
        if any(s != int(s) for s in step):
            raise ValueError(f"steps must be integers if signal is a tensor, got {step}")
        for axis, s in enumerate(step, start=2):
            signal = _every(signal, axis, int(s))
        return signal
    # As many samples as lie within the extent of step 1; the allowance is for 0.3 / 0.1 = 2.9999999999999996.
    counts = [int((n - 1) / s * (1 + 1e-12)) + 1 for n, s in zip(shape, step, strict=True)]
    axes = [torch.arange(n) * s for n, s in zip(counts, step, strict=True)]
    return signal(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1))


def _every(x: Tensor, axis: int, n: int) -> Tensor:
    return x[(slice(None),) * axis + (slice(None, None, n),)]

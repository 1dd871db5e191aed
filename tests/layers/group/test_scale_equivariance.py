"""Layers on dilations of the line (chapter 10): equivariance, and the Haar factors that it needs."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.nn import functional as F

from kernelfield.fields import BSpline
from kernelfield.groups import Scale
from kernelfield.layers.group import GroupConv, LiftingConv
from kernelfield.layers.group.correlate import convolve
from tests.layers.group.scale_layers import F64, burst, seeded


def both_speeds(base, rate, layers, reach=40, margin=16):
    """Outputs for a burst, and for it dilated by the base: one scale further, at stretched times. (…, time) each.

    Positions whose stretched counterpart lies on a sample are compared: those at multiples of the base's denominator.
    """
    t = torch.arange(-reach * rate, reach * rate + 1, **F64) / rate
    plain, slow = (layers(burst(u)[None, None]) for u in (t, t / base))
    middle = reach * rate
    steps = [n for n in range(-margin * rate // 2, margin * rate // 2 + 1) if abs(n * base - round(n * base)) < 1e-9]
    here = torch.tensor([middle + n for n in steps])
    there = torch.tensor([middle + round(n * base) for n in steps])
    return plain[:, :, :-1][..., here], slow[:, :, 1:][..., there]


def stack(base, rate, scales=4):
    """A lift and a group convolution whose kernels are the same functions of time at every sampling rate."""
    field = functools.partial(BSpline, size=5, spacing=0.5)
    deep = functools.partial(BSpline, size=(3, 5), order=(1, 2), spacing=(1.0, 0.5))
    size = 4 * rate + 1
    lift = seeded(LiftingConv, 1, 3, group=Scale(scales, base), field=field, kernel_size=size)
    conv = seeded(
        GroupConv,
        3,
        2,
        group=Scale(scales, base),
        field=deep,
        kernel_size=size,
        interactions=3,
        scale_boundary="valid",
        bias=False,
    )
    # Kernels were scaled for the number of their samples.
    with torch.no_grad():
        lift.kernel.field.scale_(1 / math.sqrt(rate))
        conv.kernel.field.scale_(1 / math.sqrt(rate))
    return lambda x: conv(F.relu(lift(x).values)).values.detach()


def scale_error(base, rate):
    a, b = both_speeds(base, rate, stack(base, rate))
    return float((a - b).norm() / a.norm())


@pytest.mark.parametrize(("base", "bounds"), [(2.0, (0.06, 0.015, 0.004)), (1.5, (0.06, 0.015, 0.004))])
def test_dilating_the_signal_shifts_the_scale_axis(base, bounds):
    """Through two layers and a ReLU, within 6 percent at 2 samples a unit, 1.5 at 4, 0.4 at 8."""
    errors = [scale_error(base, rate) for rate in (2, 4, 8)]
    assert all(error < bound for error, bound in zip(errors, bounds, strict=True)), errors
    assert errors[2] < errors[1] < errors[0]


def test_wrong_haar_factors_break_equivariance(monkeypatch):
    """The same test with 1/s left out, or with 1/s² on the exponential grid."""
    for power in (0.0, 2.0):
        monkeypatch.setattr(Scale, "determinant", lambda self, a, p=power: torch.pow(self.base, p * a[..., 0]))
        monkeypatch.setattr("kernelfield.layers.group.scale._dilated", lambda *_: None)
        assert scale_error(2.0, 4) > 0.4


def test_on_a_linear_grid_of_scales_the_factor_is_the_square():
    """Σ f(ς)/s² Δ, bins Δ as wide as the scale is large, is Σ f(ς)/s up to the ratio ς/s that a kernel can hold."""
    conv = seeded(GroupConv, 1, 1, group=Scale(3), field=BSpline, bias=False)
    f = torch.randn(1, 1, 3, 40, **F64)
    rendered = conv.kernel()[0, :, 0]  # (out scale, in scale, points), with 1/s
    s = torch.tensor([1.0, 2.0, 4.0], **F64)
    psi = rendered * s[:, None, None]
    ratio = (s / s[:, None])[..., None]  # ς/s
    linear = psi / ratio / s[:, None, None] ** 2 * s[None, :, None]  # ψ/ratio · 1/s² · Δ(ς)
    torch.testing.assert_close(linear, rendered)
    y = convolve(f.flatten(1, 2), linear.reshape(3, 3, -1), "zero")
    torch.testing.assert_close(y[:, None], conv(f).values)

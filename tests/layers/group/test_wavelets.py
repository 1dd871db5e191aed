"""Section 4.3 of chapter 10 in numbers: lifting convolutions and the wavelet transform, and its equivariance."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from kernelfield.fields import BSpline, Field, Morlet
from kernelfield.groups import Scale, learned
from kernelfield.layers.group import GroupConv, LiftingConv

F64 = {"dtype": torch.float64}


def burst(t):
    return torch.exp(-0.5 * (t / 12) ** 2) * torch.cos(0.55 * t + 0.3) + 0.6 * torch.exp(-0.5 * ((t + 9) / 5) ** 2)


def transform(n=5, bandwidth=1.5, size=65, **options):
    field = functools.partial(Morlet, bandwidth=bandwidth)
    lift = LiftingConv(1, 2, group=Scale(n), field=field, kernel_size=size).double()
    return lift.as_wavelet_transform(**options)


@pytest.mark.parametrize("bandwidth", [1.5, 3.0])
def test_agrees_with_pywavelets(bandwidth):
    """Unit energy here; cmorB-C has the energy (2πB)^(-1/2). If its unit is m samples, our scale s is theirs of m·s.

    Theirs integrates the wavelet and takes differences: it lies half a sample later, and averages the wavelet over a
    sample, which lowers short waves by (π/m s)²/6.
    """
    pywt = pytest.importorskip("pywt")
    unit = 4  # 32 samples to either side are 8 units
    w = transform(n=4, bandwidth=bandwidth)
    with torch.no_grad():
        ours = w(burst(T - 0.5)[None, None])[0, 0]
        scalogram = w.scalogram(burst(T - 0.5)[None, None])[0, 0]
    scales = (unit * w.scales()).tolist()
    assert scales == [4, 8, 16, 32]
    found, _ = pywt.cwt(burst(T).numpy(), scales, f"cmor{bandwidth}-1.0", precision=16)
    energy = 1 / math.sqrt(2 * math.pi * bandwidth)
    theirs = torch.tensor(found) / math.sqrt(energy)
    error = (ours - theirs).norm(dim=1) / theirs.norm(dim=1).max()
    assert float(error.max()) < 0.02
    assert float(error[-1]) < 0.002
    assert float((scalogram - theirs.abs().square()).norm() / scalogram.norm()) < 0.04


class Waves(Field):
    """A pair of channels in quadrature, but not a Morlet wavelet."""

    quadrature = True

    def __init__(self, dim, channels):
        super().__init__(dim, channels)
        self.amplitude = torch.nn.Parameter(torch.ones(channels))

    def evaluate(self, coords):
        return self.amplitude * torch.cat([(9 * coords).cos(), (9 * coords).sin()], dim=-1)

    def scale_(self, factor):
        return self


@pytest.mark.parametrize(("field", "complex_"), [(Waves, True), (BSpline, False)])
def test_channel_pairs_of_any_field_in_quadrature_are_complex(field, complex_):
    lift = LiftingConv(1, 2, group=Scale(3), field=field, kernel_size=9, bias=False).double()
    out = lift.as_wavelet_transform()(torch.randn(1, 1, 30, **F64))
    assert (out.is_complex(), out.shape[1]) == ((True, 1) if complex_ else (False, 2))


@pytest.mark.parametrize("normalize", [True, False])
def test_the_transform_is_the_lifting_convolution_times_the_root_of_s(normalize):
    lift = LiftingConv(2, 3, group=Scale(4), field=BSpline, kernel_size=9).double()
    with torch.no_grad():
        lift.bias.normal_()
        x = torch.randn(2, 2, 60, **F64)
        values = lift(x).values - lift.bias.view(-1, 1, 1)
        got = lift.as_wavelet_transform(normalize=normalize)(x)
        norm = lift.kernel()[:, 0].square().sum(dim=(1, 2, 3)).sqrt() if normalize else torch.ones(3, **F64)
    root = torch.tensor([1.0, 2.0, 4.0, 8.0], **F64).sqrt()
    torch.testing.assert_close(got, values * root.view(-1, 1) / norm.view(-1, 1, 1))


def test_wavelets_keep_their_energy_and_their_layer():
    w = transform()
    kernels = w.lift.kernel().detach()[:, :, 0, 0] * (w.scales().sqrt() * 1.0)[:, None]
    energy = (kernels / w._norm().detach().view(-1, 1, 1)).square().sum(dim=(0, 2))
    torch.testing.assert_close(energy, torch.ones(5, **F64), rtol=1e-6, atol=0)
    w.scalogram(torch.randn(1, 1, 50, **F64)).sum().backward()
    assert all(p.grad is not None for name, p in w.lift.named_parameters() if name != "bias")


def test_the_group_convolution_is_a_wavelet_transform_of_a_wavelet_transform():
    """√s times it is Σ_ς f(·, ς) correlated with ψ(·/s, ς/s)/√s; on a linear grid of scales, s√s times it."""
    conv = GroupConv(1, 1, group=Scale(3), field=BSpline, interactions=2, kernel_size=5, bias=False).double()
    f = torch.randn(1, 1, 3, 50, **F64)
    with torch.no_grad():
        got = conv(f).values[0, 0]
        for k, s in enumerate((1.0, 2.0, 4.0)):
            wanted = torch.zeros(50, **F64)
            for j in range(k, min(k + 2, 3)):
                slot = conv.kernel.field.coefficients.view(2, 5)[j - k]
                for t in range(50):
                    tau = torch.arange(50, **F64)
                    u = (t - tau) / s  # a convolution's kernel is the wavelet in a mirror
                    psi = sum(slot[i] * _spline(u - (i - 2)) for i in range(5))
                    wanted[t] += (f[0, 0, j] * psi).sum() / math.sqrt(s)
            torch.testing.assert_close(math.sqrt(s) * got[k], wanted)


def _spline(u):
    u = u.abs()
    return torch.where(u < 0.5, 0.75 - u**2, torch.where(u < 1.5, (1.5 - u) ** 2 / 2, 0.0))


# The table of section 5.3: what translation by t₀ and dilation by s₀ do to each transform.

T = torch.arange(-400, 401, **F64)
SHIFT, STRETCH = 37, 2.0


def fourier(f, omega):
    return torch.exp(-1j * omega[:, None] * T) @ f.to(torch.complex128)


def short_time(f, at, omega, width):
    window = torch.exp(-0.5 * ((T[None] - at[:, None]) / width) ** 2)
    return (window * f).to(torch.complex128) @ torch.exp(-1j * T[:, None] * omega)


def close(a, b, tolerance):
    return float((a - b).abs().max() / b.abs().max()) < tolerance


def test_the_fourier_transform():
    omega = torch.linspace(-1, 1, 41, **F64)
    f, moved, slow = burst(T), burst(T - SHIFT), burst(T / STRETCH)
    assert close(fourier(moved, omega), torch.exp(-1j * omega * SHIFT) * fourier(f, omega), 1e-9)
    assert close(fourier(moved, omega).abs() ** 2, fourier(f, omega).abs() ** 2, 1e-9)
    assert close(fourier(slow, omega), STRETCH * fourier(f, STRETCH * omega), 1e-9)
    assert not close(fourier(slow, omega), fourier(f, omega), 0.5)


def test_the_short_time_fourier_transform():
    """Translations up to a phase; dilations only approximately, the better the larger the window."""
    at, omega = torch.arange(-60, 61, 4, **F64), torch.linspace(-1, 1, 41, **F64)
    f, moved, slow = burst(T), burst(T - SHIFT), burst(T / STRETCH)
    phase = torch.exp(-1j * omega * SHIFT)
    got = short_time(moved, at + SHIFT, omega, 15)
    assert close(got, phase * short_time(f, at, omega, 15), 1e-9)
    assert close(got.abs() ** 2, short_time(f, at, omega, 15).abs() ** 2, 1e-9)
    errors = []
    for width in (20, 100, 400, 1600):
        wanted = STRETCH * short_time(f, at, STRETCH * omega, width)
        errors.append(float((short_time(slow, STRETCH * at, omega, width) - wanted).abs().max() / wanted.abs().max()))
    assert errors[3] < errors[2] < errors[1], errors
    assert min(errors[:2]) > 0.2
    assert errors[-1] < 0.05


def test_the_wavelet_transform_is_equivariant_to_both():
    w = transform(n=4)
    f, moved, slow = (burst(t)[None, None] for t in (T, T - SHIFT, T / STRETCH))
    with torch.no_grad():
        plain, shifted, slower = w(f)[0, 0], w(moved)[0, 0], w(slow)[0, 0]
    inner = slice(200, 600)
    assert close(shifted[:, inner].roll(-SHIFT, 1)[:, :-SHIFT], plain[:, inner][:, :-SHIFT], 1e-9)
    # W[L_s f](t, s) = √s₀ W[f](t/s₀, s/s₀): one scale further, at every second sample.
    t = torch.arange(-90, 91)
    assert close(slower[1:, 400 + 2 * t], math.sqrt(STRETCH) * plain[:-1, 400 + t], 1e-3)
    energy = plain[:-1, 400 + t].abs() ** 2
    assert close(slower[1:, 400 + 2 * t].abs() ** 2, STRETCH * energy, 1e-3)
    # … which the scalogram of another scale is not
    assert not close(slower[:-1, 400 + 2 * t].abs() ** 2, STRETCH * energy, 0.5)


def test_a_transform_needs_all_dilations():
    """Its scales would not be those of its coefficients."""
    lift = LiftingConv(1, 2, group=Scale(5), field=Morlet, kernel_size=33, distribution=learned(Scale(5)))
    with pytest.raises(ValueError, match="lift must compute all dilations"):
        lift.as_wavelet_transform()

"""Layers on dilations of the line (chapter 10): the bank, its Haar factors, its boundaries, and equivariance."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.nn import functional as F

from kernelfield.fields import SIREN, BSpline, Table
from kernelfield.groups import Cyclic, Scale
from kernelfield.layers.group import GroupConv, GroupSignal, LiftingConv, PartialGroupConv, kernel, wavelet_loss
from kernelfield.layers.group.correlate import convolve
from kernelfield.layers.group.gconv import folded
from kernelfield.testing import (
    assert_compiles,
    assert_exports,
    assert_state_dict_round_trip,
    assert_translation_equivariant,
)

F64 = {"dtype": torch.float64}
Smooth = functools.partial(SIREN, omega_0=3.0, hidden=16)
FIELDS = [BSpline, Table, Smooth, functools.partial(BSpline, size=7), functools.partial(BSpline, order=3)]


def seeded(layer, *args, **options):
    torch.manual_seed(0)
    return layer(*args, **options).double()


@pytest.mark.parametrize("field", [BSpline, Table, Smooth])
def test_dilated_kernels(field):
    """Two octaves of one kernel: the wider one at every second point is the narrower, at half the height."""
    lift = seeded(LiftingConv, 1, 2, group=Scale(2), field=field, kernel_size=5)
    rendered = lift.kernel()[:, :, 0, 0]
    middle = rendered.shape[-1] // 2
    assert middle == {BSpline: 6, Table: 5, Smooth: 4}[field]  # (5 - 1 + order + 1) · 2 points less the ends
    near = middle // 2
    narrow = rendered[:, 0, middle - near : middle + near + 1]
    torch.testing.assert_close(rendered[:, 1, middle - 2 * near : middle + 2 * near + 1 : 2] * 2, narrow)


def test_the_kernel_of_the_chapter():
    """ψ_s(t) = 1/s Σ w_i B²(t/s - i), with one weight for each of the samples at dilation 1."""
    lift = seeded(LiftingConv, 3, 2, group=Scale(3), field=BSpline, kernel_size=5, bias=False)
    assert [p.shape for p in lift.parameters()] == [(5, 6)]
    weights = lift.kernel.field.coefficients.detach().view(5, 2, 3)
    t = torch.arange(-13, 14, **F64)

    def spline(u):
        u = u.abs()
        return torch.where(u < 0.5, 0.75 - u**2, torch.where(u < 1.5, (1.5 - u) ** 2 / 2, 0.0))

    for k, s in enumerate((1, 2, 4)):
        wanted = sum(weights[i, ..., None] * spline(t / s - (i - 2)) / s for i in range(5))
        torch.testing.assert_close(lift.kernel()[:, k, :, 0], wanted)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("base", [2.0, 1.5, 2**0.5])
@pytest.mark.parametrize("boundary", ["zero", "periodic", "valid"])
def test_the_bank_is_the_convolution_with_all_kernels_on_one_grid(field, base, boundary):
    group = Scale(4, base)
    lift = seeded(LiftingConv, 2, 3, group=group, field=field, kernel_size=5, boundary=boundary)
    x = torch.randn(2, 2, 160, **F64)
    y = lift(x)
    torch.testing.assert_close(y.values.flatten(1, 2), convolve(x, folded(lift.kernel()), boundary))
    for interactions in (None, 1, 3):
        conv = seeded(
            GroupConv, 3, 2, group=group, field=field, boundary=boundary, interactions=interactions, kernel_size=3
        )
        # Told its elements, a layer cannot know that they are the whole window in order.
        torch.testing.assert_close(conv(y.values).values, conv(y).values)


def test_interactions_read_the_own_scale_and_coarser_ones():
    conv = seeded(GroupConv, 1, 1, group=Scale(5), field=BSpline, interactions=3, bias=False)
    x = torch.zeros(1, 1, 5, 30, **F64)
    x[:, :, 3] = torch.randn(30, **F64)
    heard = conv(x).values.abs().amax(dim=(0, 1, 3)) > 1e-12
    assert heard.tolist() == [False, True, True, True, False]
    assert conv.kernel.field.coefficients.shape == (3 * 3, 1)


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_the_boundary_of_the_scale_axis(kernel_size):
    make = functools.partial(seeded, GroupConv, 2, 2, group=Scale(5), field=BSpline, kernel_size=kernel_size)
    x = torch.randn(1, 2, 5, 20, **F64)
    zero = make(interactions=3)(x)
    valid = make(interactions=3, scale_boundary="valid")(x)
    assert valid.values.shape[2] == len(valid.elements) == 3
    torch.testing.assert_close(valid.values, zero.values[:, :, :3])
    more = seeded(GroupConv, 2, 2, group=Scale(7), field=BSpline, interactions=3, kernel_size=kernel_size)
    padded = more(F.pad(x, (0, 0, 0, 2))).values[:, :, :5]
    torch.testing.assert_close(zero.values, padded)
    following = seeded(GroupConv, 2, 2, group=Scale(5).pooled(4), field=BSpline, interactions=3, scale_boundary="valid")
    assert following(valid.values).values.shape[2] == 1


def test_scale_grids_of_section_4_2_2():
    assert Scale.fitting(79 * 4, 79).n == 3
    assert Scale.fitting(79 * 4 - 1, 79).n == 2
    assert Scale.fitting(3**9, 3, base=3.0).n == 9
    assert Scale.fitting(100, 100).n == 1
    assert Scale(9, 2**0.5).pooled(4).n == 5
    assert [Scale(9).pooled(2**p).n for p in range(4)] == [9, 8, 7, 6]
    assert Scale(5, continuous=True).pooled(4).continuous


def burst(t):
    """Waves in a bell, all of it within |t| < 12; nothing of it above one wave in three units."""
    return torch.exp(-0.5 * (t / 3) ** 2) * torch.cos(1.9 * t + 0.4) + torch.exp(-0.5 * ((t + 2) / 2) ** 2)


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


def test_without_the_haar_factors_it_does_not(monkeypatch):
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


@pytest.mark.parametrize("base", [2.0, 1.5])
def test_translations_are_exact(base):
    lift = seeded(LiftingConv, 2, 3, group=Scale(3, base), field=BSpline, kernel_size=5, boundary="periodic")
    conv = seeded(
        GroupConv,
        3,
        2,
        group=Scale(3, base),
        field=BSpline,
        interactions=2,
        scale_boundary="valid",
        boundary="periodic",
    )
    x = torch.randn(2, 2, 50, **F64)
    assert_translation_equivariant(lambda v: conv(lift(v).values).values.flatten(1, 2), x, shift=7, periodic=True)
    padded = seeded(LiftingConv, 2, 3, group=Scale(3, base), field=BSpline, kernel_size=5)
    assert_translation_equivariant(lambda v: padded(v).values.flatten(1, 2), x, shift=7)


def test_kernels_longer_than_the_signal():
    for base in (2.0, 1.7):
        lift = seeded(LiftingConv, 1, 2, group=Scale(6, base), field=BSpline, kernel_size=9)
        x = torch.randn(1, 1, 20, **F64)
        far = lift(F.pad(x, (400, 400))).values[..., 400:-400]
        torch.testing.assert_close(lift(x).values, far)


def test_regulariser_drives_means_to_zero():
    torch.manual_seed(0)
    for field in (BSpline, Smooth):
        net = torch.nn.ModuleList(
            [
                LiftingConv(1, 4, group=Scale(3), field=field, kernel_size=7),
                GroupConv(4, 3, group=Scale(3), field=field, interactions=2),
                GroupConv(3, 3, group=Scale(3), field=field, interactions=2, kernel_size=1),
            ]
        )
        head = [p.detach().clone() for p in net[2].parameters()]
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        start = float(wavelet_loss(net).detach())
        for _ in range(150):
            optimiser.zero_grad()
            wavelet_loss(net).backward()
            optimiser.step()
        assert float(wavelet_loss(net).detach()) < 1e-4 * start
        means = net[0].kernel.render(torch.zeros(1, 1), torch.zeros(1, 1), 1.0).sum(dim=-1)
        assert float(means.detach().abs().max()) < 0.02
        # A kernel of one point has no mean to lose.
        assert all(a.equal(b) for a, b in zip(head, net[2].parameters(), strict=True))


def test_regulariser_in_closed_form():
    """A spline integrates to the sum of its coefficients."""
    conv = seeded(GroupConv, 2, 3, group=Scale(4), field=BSpline, interactions=3, kernel_size=5)
    weights = conv.kernel.field.coefficients.view(3, 5, 3, 2)
    torch.testing.assert_close(wavelet_loss(conv), weights.sum(dim=(0, 1)).square().mean())
    torch.testing.assert_close(wavelet_loss(conv, per_scale=True), weights.sum(dim=1).square().sum(dim=0).mean())
    assert float(wavelet_loss(torch.nn.Linear(2, 2))) == 0
    assert float(wavelet_loss(LiftingConv(1, 1, group=Cyclic(4)))) == 0


# Drawn and learned scales


def monte_carlo(samples, layer=GroupConv, scales=4, field=Smooth):
    group = Scale(scales, continuous=True)
    lift = seeded(LiftingConv, 1, 2, group=group, field=field, kernel_size=5, samples=samples)
    conv = seeded(
        layer, 2, 2, group=group, field=field, kernel_size=5, samples=samples, interactions=3, scale_boundary="valid"
    )
    return lift, conv


def test_drawn_scales_lie_in_the_window():
    lift, conv = monte_carlo(6)
    x = torch.randn(2, 1, 60, **F64)
    signal = lift(x)
    assert signal.values.shape == (2, 2, 6, 60)
    assert 0 <= float(signal.elements.min()) <= float(signal.elements.max()) <= 3
    out = conv(signal)
    assert float(out.elements.max()) <= 1  # what spans three scales of four begins at the first two
    assert not lift(x).elements.equal(signal.elements)
    assert lift.eval()(x).elements.equal(lift(x).elements)
    assert torch.allclose(
        Scale(4, continuous=True).spread(3, torch.tensor([0.5])).flatten(), torch.tensor([0.5, 1.5, 2.5])
    )


def test_monte_carlo_scales_are_unbiased():
    """The mean over draws of few scales is the integral over all of them."""
    lift, conv = monte_carlo(2)
    x = torch.randn(1, 1, 40, **F64)
    here = torch.tensor([[0.5]], **F64)
    with torch.no_grad():
        lift.distribution.samples = 1000
        truth = conv(lift.eval()(x), out_elements=here).values
        lift.train().distribution.samples = 2
        draws = torch.stack([conv(lift(x), out_elements=here).values for _ in range(600)])
    one = float((draws - truth).square().mean().sqrt())
    mean = float((draws.mean(dim=0) - truth).square().mean().sqrt())
    assert mean < 0.1 * one
    assert mean < 0.05 * float(truth.square().mean().sqrt())


def test_monte_carlo_scales_are_equivariant_in_expectation():
    """… to dilations between those of any grid: by √2, half a step of the window."""
    lift, conv = monte_carlo(3, scales=5, field=BSpline)
    t = torch.arange(-120, 121, **F64) / 4
    limits, means, errors = [], [], []
    for stretch, at in ((1.0, 1.0), (2**0.5, 1.5)):
        x, here = burst(t / stretch)[None, None], torch.tensor([[at]], **F64)
        with torch.no_grad():
            lift.eval().distribution.samples = 1000
            limits.append(conv(lift(x), out_elements=here).values[..., 120])
            lift.train().distribution.samples = 3
            # The middle of the signal stays where it is.
            draws = torch.stack([conv(lift(x), out_elements=here).values[..., 120] for _ in range(150)])
        means.append(draws.mean(dim=0))
        errors.append(draws.std(dim=0) / 150**0.5)
    assert float((limits[0] - limits[1]).norm() / limits[0].norm()) < 1e-3
    for mean, error in zip(means, errors, strict=True):
        assert bool(((mean - limits[0]).abs() < 4 * error).all())
    assert float(max(e.max() for e in errors)) < 0.1 * float(limits[0].norm())


@pytest.mark.parametrize("continuous", [False, True])
def test_a_partial_layer_on_all_scales_is_the_full_one(continuous):
    group = Scale(4, continuous=continuous)
    options = {"group": group, "field": Smooth, "samples": 4 if continuous else None, "interactions": 2}
    options |= {"scale_boundary": "valid", "kernel_size": 5}
    full, part = seeded(GroupConv, 2, 3, **options), seeded(PartialGroupConv, 2, 3, **options)
    part.kernel.load_state_dict(full.kernel.state_dict())
    with torch.no_grad():
        for name, p in part.distribution.named_parameters():
            p.fill_(1.0 if name.endswith("width") else 50.0)
    elements = group.spread(5, torch.tensor([0.5], **F64)) if continuous else group.elements(**F64)
    x = torch.randn(2, 2, len(elements), 30, **F64)
    x = GroupSignal(x, elements, group=group)
    a, b = full.eval()(x), part.eval()(x)
    torch.testing.assert_close(a.elements, b.elements)
    torch.testing.assert_close(a.values, b.values)


@pytest.mark.parametrize("continuous", [False, True])
def test_a_subset_of_one_scale_is_an_ordinary_convolution(continuous):
    group = Scale(4, continuous=continuous)
    part = seeded(PartialGroupConv, 2, 3, group=group, samples=6 if continuous else None, kernel_size=5, field=Smooth)
    with torch.no_grad():
        for name, p in part.distribution.named_parameters():
            p.fill_(0.0 if name.endswith("width") else -50.0)
    e = group.identity(**F64)[None]
    x = torch.randn(2, 2, 30, **F64)
    y = part.eval()(GroupSignal(x[:, :, None], e, group=group))
    assert y.elements.equal(e)
    weight = part.kernel(e, e)[:, 0, :, 0].flip(-1)
    measure = group.weight(1)
    torch.testing.assert_close(y.values[:, :, 0], measure * F.conv1d(x, weight, padding=weight.shape[-1] // 2))


def test_the_subset_of_scales_is_learned():
    """Asked for the response of the finest scale the interval shrinks, asked for that of all it grows."""
    for start, wanted, direction in ((0.9, 0.0, -1), (0.3, 1.0, 1)):
        lift, part = monte_carlo(6, PartialGroupConv)
        signal = lift.eval()(torch.randn(4, 1, 40, **F64))
        width = part.distribution.width
        with torch.no_grad():
            width.fill_(wanted)
            target = part.eval()(signal).values.mean(2)
            width.fill_(start)
        part.train()
        optimiser = torch.optim.SGD([width], lr=0.2)
        for _ in range(40):
            loss = (part(signal.detach()).values.mean(2) - target).square().mean()
            optimiser.zero_grad()
            (loss / target.square().mean()).backward()
            optimiser.step()
        assert direction * (float(width.detach()) - start) > 0.1
    counts = []
    for value in (1.0, 0.5, 0.0):
        with torch.no_grad():
            width.fill_(value)
        counts.append(part.eval()(signal).values.shape[2])
    assert counts == [6, 3, 1]


# What every layer is held to


def layers():
    yield LiftingConv(2, 3, group=Scale(2), field=BSpline, kernel_size=5), (torch.randn(2, 2, 40),)
    valid = {"interactions": 2, "scale_boundary": "valid"}
    yield GroupConv(2, 3, group=Scale(3), field=BSpline, **valid), (torch.randn(2, 2, 3, 40),)
    yield GroupConv(2, 3, group=Scale(2, 1.5), field=SIREN, **valid), (torch.randn(2, 2, 2, 40),)


@pytest.mark.parametrize("index", [1, *(pytest.param(i, marks=pytest.mark.slow) for i in (0, 2))])
def test_compiles_exports_and_keeps_its_dtype(index):
    layer, arguments = list(layers())[index]
    layer.eval()
    assert_compiles(layer, *arguments)
    shapes = (
        {0: torch.export.Dim("batch", min=2, max=64), arguments[0].dim() - 1: torch.export.Dim("length", min=30)},
    )
    shapes += (None,) * (len(arguments) - 1)
    more = torch.randn(5, *arguments[0].shape[1:-1], 57)
    assert_exports(layer, arguments, shapes, [(more, *arguments[1:])])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(*arguments).values
    high = layer(*arguments).values
    assert low.dtype == torch.bfloat16
    assert float((low - high).detach().norm() / high.detach().norm()) < 0.03
    low.float().square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.kernel.parameters())
    assert layer.double()(*[a.double() for a in arguments]).values.dtype == torch.float64


def test_gradcheck():
    lift = seeded(LiftingConv, 1, 2, group=Scale(3), field=BSpline, kernel_size=3)
    conv = seeded(GroupConv, 2, 1, group=Scale(3), field=BSpline, interactions=2)
    names = [name for name, _ in lift.named_parameters()]

    def response(x, *parameters):
        values = torch.func.functional_call(lift, dict(zip(names, parameters, strict=True)), (x,)).values
        return conv(values).values

    x = torch.randn(1, 1, 12, **F64, requires_grad=True)
    assert torch.autograd.gradcheck(response, (x, *lift.parameters()), fast_mode=True)


def test_state_dict_round_trip():
    def make():
        return GroupConv(2, 3, group=Scale(4), field=BSpline, interactions=3)

    assert_state_dict_round_trip(make, torch.randn(1, 2, 4, 30))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupConv(1, 1, group=Cyclic(4), interactions=2), "interactions must"),
        (lambda: GroupConv(1, 1, group=Scale(3), interactions=4), "interactions must"),
        (lambda: GroupConv(1, 1, group=Scale(3), scale_boundary="valid"), "scale_boundary must"),
        (
            lambda: GroupConv(1, 1, group=Scale(3), scale_boundary="edge"),
            "scale_boundary must",
        ),
        (
            lambda: GroupConv(1, 1, group=Scale(3, continuous=True), field=SIREN, samples=2, interactions=1),
            "interactions must",
        ),
        (lambda: Scale.fitting(10, 11), "kernel_size .*got 11"),
        (lambda: Scale.fitting(10, 3, base=1.0), "base must"),
        (lambda: Scale(3).pooled(0.5), "factor .*got 0.5"),
        (
            lambda: LiftingConv(1, 1, group=Cyclic(4)).as_wavelet_transform(),
            "lift must",
        ),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=rf"\b{message}"):
        make()


def test_tables_need_a_list_of_dilations():
    with pytest.raises(ValueError, match=r"\bfield must"):
        GroupConv(1, 1, group=Scale(3, continuous=True), field=Table, samples=2)
    assert kernel.GroupKernel(Scale(3), Table, 1, 1, kernel_size=3, interactions=2)().shape == (1, 3, 1, 3, 15)

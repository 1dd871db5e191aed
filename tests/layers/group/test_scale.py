"""Layers on dilations of the line (chapter 10): the bank, its boundaries and its regulariser."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn import functional as F

from kernelfield.fields import SIREN, BSpline, Table
from kernelfield.groups import Cyclic, Scale
from kernelfield.layers.group import GroupConv, LiftingConv, SeparableGroupConv, kernel, wavelet_loss
from kernelfield.layers.group.correlate import convolve
from kernelfield.layers.group.gconv import folded
from kernelfield.testing import (
    assert_compiles,
    assert_exports,
    assert_state_dict_round_trip,
    assert_translation_equivariant,
)
from tests.layers.group.scale_layers import F64, Smooth, seeded
from tests.pairwise import pairwise

FIELDS = [BSpline, Table, Smooth, functools.partial(BSpline, size=7), functools.partial(BSpline, order=3)]


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


@pairwise(field=FIELDS, base=[2.0, 1.5, 2**0.5], boundary=["zero", "periodic", "valid"])
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


@pytest.mark.parametrize("boundary", ["zero", "periodic"])
def test_grouped_kernels_may_be_much_longer_than_the_signal(boundary):
    x, kernels = torch.randn(2, 3, 7, **F64), torch.randn(3, 1, 41, **F64)
    each = [convolve(x[:, i : i + 1], kernels[i : i + 1], boundary) for i in range(3)]
    torch.testing.assert_close(convolve(x, kernels, boundary, groups=3), torch.cat(each, dim=1))
    layer = SeparableGroupConv(2, 3, group=Scale(4), kernel_size=9).double()
    assert layer(torch.randn(1, 2, 4, 5, **F64)).shape == (1, 3, 4, 5)


@pytest.mark.parametrize("form", ["pointwise", "depthwise"])
def test_wavelet_loss_counts_separable_convolutions(form):
    """The integral of a product is the product of the integrals of its factors."""
    torch.manual_seed(0)
    layer = SeparableGroupConv(3, 3, group=Scale(3), field=BSpline, form=form, kernel_size=9).double()
    over_group = layer.mix.render(torch.zeros(1, 1).double(), torch.arange(-2.0, 3.0).double()[:, None], 1.0)[..., 0]
    over_space = layer.space.render(torch.zeros(1, 1).double(), torch.zeros(1, 1).double(), 1.0).sum(dim=-1)
    per_dilation = over_group * over_space
    torch.testing.assert_close(wavelet_loss(layer), per_dilation.sum(dim=-1).square().mean())
    torch.testing.assert_close(wavelet_loss(layer, per_scale=True), per_dilation.square().sum(dim=-1).mean())


def test_wavelet_loss_skips_kernels_of_one_point():
    assert float(wavelet_loss(LiftingConv(1, 4, group=Scale(3), field=BSpline, kernel_size=1))) == 0


@pytest.mark.parametrize("field", [BSpline, Table, Smooth])
@pytest.mark.parametrize("boundary", ["zero", "periodic", "valid"])
@pytest.mark.parametrize("scale_boundary", ["zero", "valid"])
def test_hooks_of_kernels_are_called(field, boundary, scale_boundary):
    """A filter bank samples the kernels of single dilations, which such a hook does not see."""
    options = {"group": Scale(3), "field": field, "kernel_size": 5, "boundary": boundary, "bias": False}
    lift = LiftingConv(1, 2, **options).double()
    conv = GroupConv(2, 2, interactions=2, scale_boundary=scale_boundary, **options).double()
    x = torch.randn(1, 1, 90, **F64)
    before = lift(x), conv(lift(x))
    for layer in (lift, conv):
        layer.kernel.register_forward_hook(lambda module, inputs, kernel: 2 * kernel)
    torch.testing.assert_close(lift(x).values, 2 * before[0].values)
    torch.testing.assert_close(conv(lift(x)).values, 4 * before[1].values)


def test_layers_with_equal_groups_compile_for_any_shape():
    """Numbers of groups are symbols in such a program."""
    torch.compiler.reset()
    net = torch.nn.Sequential(
        LiftingConv(1, 2, group=Scale(3), field=BSpline), GroupConv(2, 2, group=Scale(3), field=BSpline, interactions=2)
    ).double()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 1, 40), (3, 1, 33)):
        x = torch.randn(shape, **F64)
        torch.testing.assert_close(compiled(x).values, net(x).values)
    torch.compiler.reset()

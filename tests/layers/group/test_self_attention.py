"""Self-attention to and on a group: equivariance, chapter 9's propositions, and what it can express."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from kernelfield.fields import Field
from kernelfield.groups import SO2, Cyclic, Dihedral, Mirror, Product, Scale, Trivial
from kernelfield.layers.group import (
    GroupConv,
    GroupSelfAttention,
    GroupSignal,
    LiftingSelfAttention,
    RelativeEncoding,
    SelfAttentionBlock,
)
from kernelfield.models.registry import create_model
from kernelfield.ops.attention import group_attention_reference
from kernelfield.testing import (
    assert_equivariant,
    assert_translation_equivariant,
    equivariance_error,
)
from tests.pairwise import pairwise

D = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
GROUPS = [Cyclic(4), Dihedral(4), Mirror(), Cyclic(2)]
SCALES = Scale(2, dim=2)
LOCAL, GLOBAL = {"neighborhood": 3}, {"neighborhood": None, "size": 6}


def lifting(group, channels=3, out=6, **options):
    return LiftingSelfAttention(channels, out, group=group, heads=2, **{**LOCAL, **options}).double()


def on_group(group, channels=3, out=6, **options):
    return GroupSelfAttention(channels, out, group=group, heads=2, **{**LOCAL, **options}).double()


def signal(group=None, size=6, channels=3, batch=2):
    elements = () if group is None else (group.order,)
    return torch.randn(batch, channels, *elements, size, size, dtype=D)


@pairwise(group=GROUPS, options=[LOCAL, {"neighborhood": 5}, GLOBAL], size=[6, 7])
def test_equivariant_on_the_grid(group, options, size):
    assert_equivariant(lifting(group, **options), group, signal(size=size), **EXACT)
    assert_equivariant(on_group(group, **options), group, signal(group, size), **EXACT)
    cropped = functools.partial(on_group(group, **options), crop=1)
    assert_equivariant(cropped, group, signal(group, size), **EXACT)
    block = SelfAttentionBlock(3, 6, group=group, crop=1, heads=2, norm_after=True, **options).double()
    assert_equivariant(block, group, signal(group, size), **EXACT)


class Quarters(Cyclic):
    """The quarter turns of a finer group of rotations, which the grid holds exactly."""

    def elements(self, dtype=None, device=None):
        return super().elements(dtype, device)[:: self.n // 4]

    def act(self, element, x):
        return Cyclic(self.n).act(element, x, Cyclic(self.n).elements())


@pytest.mark.parametrize("n", [8, 12, 16])
@pytest.mark.parametrize("size", [4, 5])
def test_finer_rotations_need_no_interpolation(n, size):
    group = Cyclic(n)
    assert_equivariant(lifting(group), Quarters(n), signal(None, size), **EXACT)
    assert_equivariant(on_group(group), Quarters(n), signal(group, size, batch=1), **EXACT)


POINT_GROUPS = [Cyclic(8), Cyclic(12), Cyclic(16), Dihedral(4), Dihedral(3), Cyclic(5), Mirror(), Trivial()]


@pytest.mark.parametrize("group", POINT_GROUPS, ids=str)
@pytest.mark.parametrize("options", [{"neighborhood": 5}, GLOBAL], ids=str)
def test_points_turn_by_any_angle_of_the_group(group, options):
    coords = 3 * torch.randn(2, 9, 2, dtype=D)
    x, f = torch.randn(2, 3, 9, dtype=D), torch.randn(2, 3, group.order, 9, dtype=D)
    lift, layer = lifting(group, **options), on_group(group, **options)
    lifted, attended = lift(x, coords=coords).values, layer(f, coords=coords).values
    elements = group.elements(D)
    shift = torch.tensor([0.3, -2.0], dtype=D)
    for element in elements:
        source = group._source_indices(element, elements)  # the group axis moves as the left regular representation
        moved = coords @ group.matrix(element).T + shift
        torch.testing.assert_close(lift(x, coords=moved).values, lifted[:, :, source], rtol=0, atol=1e-9)
        got = layer(f[:, :, source], coords=moved).values
        torch.testing.assert_close(got, attended[:, :, source], rtol=0, atol=1e-9)


def test_points_on_a_grid_equal_the_grid():
    group = Cyclic(4)
    at = torch.cartesian_prod(torch.arange(4), torch.arange(5)).to(D)[None]
    x, f = torch.randn(2, 3, 4, 5, dtype=D), torch.randn(2, 3, 4, 4, 5, dtype=D)
    lift, layer = lifting(group, **GLOBAL), on_group(group, **GLOBAL)
    torch.testing.assert_close(lift(x.flatten(2), coords=at).values, lift(x).values.flatten(3))
    torch.testing.assert_close(layer(f.flatten(3), coords=at).values, layer(f).values.flatten(3))


def test_masked_points_are_ignored():
    layer, coords = lifting(Cyclic(4), **GLOBAL), torch.randn(1, 9, 2, dtype=D)
    x = torch.randn(1, 3, 9, dtype=D)
    mask = torch.ones(1, 9, dtype=torch.bool)
    mask[:, 7:] = False
    got = layer(x, coords=coords, mask=mask).values[..., :7]
    torch.testing.assert_close(got, layer(x[..., :7], coords=coords[:, :7]).values)


@pytest.mark.parametrize("index", ["chapter", "code"])
@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
def test_other_relative_indices_are_not_equivariant(group, index):
    """h⁻¹ĥ is; h⁻¹h̃⁻¹ĥ of the chapter and h h̃⁻¹ĥ of its code are not."""
    layer = on_group(group)
    e = group.elements(D)
    between = group.relative(e[:, None], e[None])  # h̃⁻¹ĥ
    first = group.inverse(e) if index == "chapter" else e
    other = layer.codes.elements(group.chart(group.product(first[:, None, None], between[None])))
    right = layer.codes.element(e, e)

    def attend(codes, x):
        q, k, v = layer._parts(x, None)
        positions, _ = layer._codes(e, e, x.shape[3:], D, 1)
        y = group_attention_reference(q, k, v, positions, codes, neighborhood=(3, 3))
        y = y.unflatten(0, (-1, layer.heads)).movedim(-1, 2).flatten(1, 2)
        return layer.combine(y / group.order)

    x = signal(group)
    assert equivariance_error(functools.partial(attend, right), group, x) < 1e-12
    torch.testing.assert_close(attend(right, x), layer(x).values)
    assert equivariance_error(functools.partial(attend, other), group, x) > 1e-3


def test_attention_maps_turn_with_the_input():
    group = Dihedral(4)
    lift, layer = lifting(group), on_group(group, **GLOBAL)
    assert_equivariant(lift.maps, group, signal(), **EXACT)
    maps = layer.maps(signal(group))
    torch.testing.assert_close(maps.sum(dim=(-2, -1)), torch.ones(2, 2, 8, dtype=D))
    assert_equivariant(layer.maps, group, signal(group), **EXACT)


def test_without_encoding_it_is_permutation_equivariant():
    layer = lifting(Trivial(), encoding="none", **GLOBAL)
    x, order = signal(size=5), torch.randperm(25)
    shuffled = x.flatten(2)[..., order].unflatten(2, (5, 5))
    wanted = layer(x).values.flatten(3)[..., order].unflatten(3, (5, 5))
    torch.testing.assert_close(layer(shuffled).values, wanted, rtol=0, atol=1e-12)
    relative = lifting(Trivial(), **GLOBAL)
    assert not torch.allclose(
        relative(shuffled).values.flatten(3), relative(x).values.flatten(3)[..., order], atol=1e-3
    )


def test_with_a_relative_encoding_it_is_translation_equivariant():
    layer = lifting(Cyclic(4))
    assert_translation_equivariant(lambda x: layer(x).values.flatten(1, 2), signal(), (2, -1), **EXACT)


def test_with_an_absolute_encoding_it_is_not_equivariant():
    layer = lifting(Trivial(), encoding="absolute", **GLOBAL)
    x = signal(size=5)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_translation_equivariant(lambda x: layer(x).values.flatten(1, 2), x, (2, -1), rtol=1e-4)
    order = torch.randperm(25)
    shuffled = x.flatten(2)[..., order].unflatten(2, (5, 5))
    wanted = layer(x).values.flatten(3)[..., order]
    assert not torch.allclose(layer(shuffled).values.flatten(3), wanted, atol=1e-3)


@pytest.mark.parametrize("make", [lifting, on_group])
def test_local_equals_global_where_the_neighbourhood_covers_the_image(make):
    group = Cyclic(4)
    local, everywhere = make(group, neighborhood=11), make(group, neighborhood=None, size=5)
    everywhere.load_state_dict(local.state_dict())
    x = signal(None if make is lifting else group)
    torch.testing.assert_close(local(x).values, everywhere(x).values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [lifting, on_group])
def test_chunked_equals_unchunked(make):
    group = Dihedral(4)
    x = signal(None if make is lifting else group)
    one, all_at_once = make(group, chunk=1), make(group, chunk=100)
    all_at_once.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(x).values, all_at_once(x).values, rtol=0, atol=1e-13)


class Powers(Field):
    """The coordinate and its square: with them a query can point at any offset."""

    def evaluate(self, coords):
        return torch.cat([coords, coords.square()], dim=-1)


def test_suitable_heads_make_a_group_convolution():
    """One head for each point of a 3×3 kernel on p4, whose query is the same everywhere and points at it."""
    group, sharp = Cyclic(4), 60.0
    conv = GroupConv(2, 3, group=group, kernel_size=3, bias=False).double()
    steps = (-1, 0, 1)
    heads = [(r, c, g) for r in steps for c in steps for g in range(4)]
    layer = GroupSelfAttention(
        2, 3, group=group, heads=len(heads), head_channels=8, neighborhood=3, field=Powers
    ).double()
    elements = group.elements(D)
    weights = conv.kernel()[:, 0]  # (out, in, relative element, row, column) at the identity
    with torch.no_grad():
        nodes = layer.codes.elements.coefficients
        order = [round((float(group.chart(e)) + 1) * 1.5) for e in elements]
        nodes.zero_()
        nodes[order, torch.arange(4)] = 1.0
        layer.project.weight.zero_()
        layer.project.bias.zero_()
        bias = layer.project.bias.view(3, len(heads), 8)
        values = layer.project.weight.view(3, len(heads), 8, 2)
        combined = layer.combine.weight.view(3, len(heads), 8)
        combined.zero_()
        for i, (r, c, g) in enumerate(heads):
            query = torch.tensor([2 * r, -1, 2 * c, -1, 0, 0, 0, 0], dtype=D) * sharp
            query[4 + g] = sharp
            bias[0, i] = query * math.sqrt(2)  # undone by the scale of the scores
            values[2, i, :2] = torch.eye(2, dtype=D)
            combined[:, i, :2] = weights[:, :, g, 1 - r, 1 - c]  # a key at offset o meets the kernel at -o
    x = signal(group, channels=2)
    inner = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(layer(x).values[inner], conv(x).values[inner], rtol=0, atol=1e-9)


def test_dyadic_scales():
    """Twice as large an input, one scale further on: what lies between its samples does not matter."""
    n, small = 3, torch.randn(1, 2, 9, dtype=D)
    group = Scale(n, dim=1)
    large = torch.randn(1, 2, 17, dtype=D)
    large[..., ::2] = small
    lift = LiftingSelfAttention(2, 6, group=group, heads=2, neighborhood=3).double()
    torch.testing.assert_close(lift(large).values[:, :, 1:, ::2], lift(small).values[:, :, :-1])
    layer = GroupSelfAttention(2, 6, group=group, heads=2, neighborhood=3).double()
    small = torch.randn(1, 2, n, 9, dtype=D)
    large = torch.randn(1, 2, n, 17, dtype=D)
    large[..., ::2] = small
    elements = group.elements(D)
    moved = layer(GroupSignal(large, elements + 1, group=group))
    here = layer(GroupSignal(small, elements, group=group))
    torch.testing.assert_close(moved.values[..., ::2], here.values)
    assert moved.elements.equal(elements + 1)


def test_neighbourhoods_of_points_are_dilated():
    """A cloud that is twice as large, one scale further on, has the same points in each neighbourhood."""
    group, coords, x = Scale(2), 4 * torch.rand(1, 9, 1, dtype=D), torch.randn(1, 2, 2, 9, dtype=D)
    options = {"group": group, "heads": 2, "neighborhood": 3}
    lift, layer = LiftingSelfAttention(2, 6, **options).double(), GroupSelfAttention(2, 6, **options).double()
    small, large = (lift(x[:, :, 0], coords=at).values for at in (coords, 2 * coords))
    torch.testing.assert_close(large[:, :, 1], small[:, :, 0])
    assert not torch.allclose(small[:, :, 1], small[:, :, 0])
    here, moved = (GroupSignal(x, group.elements(D) + k, group=group) for k in (0, 1))
    torch.testing.assert_close(layer(moved, coords=2 * coords).values, layer(here, coords=coords).values)


def test_attention_maps_follow_the_elements_of_a_signal():
    group, order = Dihedral(3), torch.tensor([4, 0, 5, 2, 1, 3])
    layer, x = on_group(group), torch.randn(2, 3, 6, 5, 5, dtype=D)
    moved = GroupSignal(x[:, :, order], group.elements(D)[order], group=group)
    torch.testing.assert_close(layer.maps(moved), layer.maps(x)[:, :, order])


def test_scales_and_turns_together():
    group = Product(Scale(2, dim=2), Cyclic(4))
    layer = GroupSelfAttention(2, 8, group=group, neighborhood=3).double()
    assert layer(torch.randn(1, 2, 8, 6, 6, dtype=D)).values.shape == (1, 8, 8, 6, 6)


def test_dropout_keeps_the_mean_and_only_trains():
    group = Cyclic(4)
    layer = on_group(group, dropout=0.3, value_dropout=0.2)
    x = signal(group, batch=1)
    quiet = layer.eval()(x).values
    assert layer(x).values.equal(quiet)
    layer.train()
    with torch.no_grad():
        mean = torch.stack([layer(x).values for _ in range(200)]).mean(dim=0)
    assert (mean - quiet).norm() < 0.2 * (quiet - layer.combine.bias.view(-1, 1, 1, 1)).norm()


@pytest.mark.parametrize("make", [lifting, on_group])
def test_networks_computed_together_by_vmap_still_compute_alone(make):
    layers = [make(Cyclic(4)) for _ in range(2)]
    x = signal(Cyclic(4), batch=1) if make is on_group else torch.randn(1, 3, 5, 5, dtype=D)
    states = torch.func.stack_module_state(layers)
    together = torch.vmap(lambda *state: torch.func.functional_call(layers[0], state, (x,)).values)(*states)
    torch.testing.assert_close(together, torch.stack([layer(x).values for layer in layers]))


def at_points(**arguments):
    x = torch.randn(2, 3, 9, dtype=D)
    return lifting(Cyclic(4), **GLOBAL)(x, **({"coords": torch.randn(2, 9, 2, dtype=D)} | arguments))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lifting(Cyclic(4), neighborhood=4), "neighborhood must"),
        (lambda: lifting(Cyclic(4), neighborhood=None), "size must"),
        (lambda: lifting(SO2()), "group must"),
        (lambda: lifting("p4"), "group must"),
        (lambda: lifting(Cyclic(4), encoding="sine"), "encoding must"),
        (lambda: on_group(Cyclic(4), head_channels=2), "head_channels must"),
        (lambda: lifting(Cyclic(4))(torch.randn(1, 2, 6, 6)), "x must"),
        (lambda: on_group(Cyclic(4))(signal(Cyclic(2))), "x must"),
        (lambda: lifting(Cyclic(4))(torch.randn(1, 3, 9), coords=torch.randn(1, 8, 2)), "coords must"),
        (lambda: at_points(coords=torch.randn(3, 9, 2)), "coords must"),
        (lambda: at_points(mask=torch.ones(2, 1, dtype=torch.bool)), "mask must"),
        (lambda: at_points(mask=torch.ones(3, 9, dtype=torch.bool)), "mask must"),
        (lambda: at_points(crop=1), "crop must be 0 with coords"),
        (
            lambda: lifting(Cyclic(4))(torch.randn(1, 3, 9, 9), mask=torch.ones(1, 9, 9, dtype=torch.bool)),
            "mask must be None without coords",
        ),
        (lambda: RelativeEncoding(SO2(), 6), "group must"),
        (
            lambda: on_group(SCALES)(GroupSignal(signal(SCALES), torch.tensor([[-1.0], [0.0]]), group=SCALES)),
            "dilate by whole numbers",
        ),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=rf"\b{message}"):
        make()


def test_empty_batches_and_images_that_are_too_small():
    net = create_model("gsanet_rotmnist_r4")
    assert net(torch.randn(0, 1, 28, 28)).shape == (0, 10)
    with pytest.raises(ValueError, match=r"\bx must"):
        net(torch.randn(1, 1, 28, 3))

"""Co-attention and attentive group convolutions: equivariance, special cases, chunks."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernelfield.groups import SO2, Cyclic, Dihedral, Mirror, Trivial
from kernelfield.layers.group import (
    AttentiveGroupConv,
    AttentiveLiftingConv,
    CoAttentive,
    CyclicSelfAttention,
    GateAttention,
    GroupConv,
    GroupSignal,
    InputAttention,
    LiftingConv,
    ProjectionConv,
)
from kernelfield.layers.group.factory import make_group_conv, make_lifting_conv
from kernelfield.ops.attentive import chunked, responses
from kernelfield.testing import (
    assert_equivariant,
    assert_state_dict_round_trip,
    count_parameters,
    equivariance_error,
)
from tests.pairwise import pairwise

D = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
GROUPS = [Cyclic(4), Dihedral(4), Mirror()]
KINDS = ["full", "channel", "spatial", "input", "gate"]


def signal(group=None, size=6, channels=3, batch=2):
    elements = () if group is None else (group.order,)
    return torch.randn(batch, channels, *elements, size, size, dtype=D)


# Chapter 7


def randomised(layer, std=1.0):
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=std)
    return layer.double()


@pytest.mark.parametrize("group", [*GROUPS, Cyclic(8), Dihedral(3)], ids=str)
def test_coattention_commutes_with_the_group(group):
    layer = randomised(CyclicSelfAttention(3, group=group))
    assert count_parameters(layer) == 3 * group.order
    assert_equivariant(layer, group, signal(group), **EXACT) if group.on_grid else None
    matrix = layer.matrix()
    for element in group.elements(D):
        move = torch.eye(group.order, dtype=D)[group._source_indices(element, group.elements(D))]
        torch.testing.assert_close(move @ matrix, matrix @ move)


def test_coattention_of_a_cyclic_group_is_circulant():
    matrix = randomised(CyclicSelfAttention(1, group=Cyclic(5))).matrix()[0]
    for i in range(5):
        torch.testing.assert_close(matrix[:, i], matrix[:, 0].roll(i))


def test_the_block_circulant_matrix_commutes_with_the_mirror_only():
    group = Dihedral(4)
    layer = randomised(CyclicSelfAttention(3, group=group, form="blocks"))
    assert count_parameters(layer) == count_parameters(CyclicSelfAttention(3, group=group))
    x = signal(group)
    errors = {}
    for name, element in {"mirror": [0.0, -1.0], "turn": [1.0, 1.0]}.items():
        g = torch.tensor(element, dtype=D)
        errors[name] = float((layer(group.act(g, x)).values - group.act(g, layer(x).values)).detach().abs().max())
    assert errors["mirror"] < 1e-12
    assert errors["turn"] > 1e-2


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_unrestricted_coattention_is_not_equivariant(group):
    layer = randomised(CyclicSelfAttention(3, group=group, form="free"))
    assert count_parameters(layer) == 3 * group.order**2
    assert equivariance_error(layer, group, signal(group)) > 1e-2


def test_coattention_is_the_chapters_formula():
    layer = CyclicSelfAttention(2, group=Cyclic(4)).double()
    x = signal(Cyclic(4), channels=2)
    scores = torch.einsum("bcgyx,cgh->bchyx", x, layer.matrix()) / 4
    weights = scores.softmax(dim=2)
    torch.testing.assert_close(layer(x).values, weights / weights.amax(dim=2, keepdim=True) * x)
    assert layer.weights(x).amax(dim=2).eq(1).all()


@pytest.mark.parametrize("form", ["group", "free", "blocks"])
@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
def test_coattention_begins_near_the_identity(group, form):
    matrix = CyclicSelfAttention(50, group=group, form=form).matrix()
    assert matrix.diagonal(dim1=1, dim2=2).eq(1).all()
    others = matrix - torch.eye(group.order)
    assert float(others.detach().abs().max()) < 0.4


# Chapter 8


@pairwise(group=GROUPS, kind=KINDS, case=[(3, "zero"), (4, "valid"), (3, "periodic"), (1, "zero")])
def test_attentive_convolutions_are_equivariant(group, kind, case):
    kernel_size, boundary = case
    options = {"group": group, "kernel_size": kernel_size, "boundary": boundary, "attention": kind}
    lift, conv = AttentiveLiftingConv(2, 3, **options).double(), AttentiveGroupConv(2, 3, **options).double()
    for size in (6, 7):
        assert_equivariant(lift, group, signal(size=size, channels=2), **EXACT)
        assert_equivariant(conv, group, signal(group, size, channels=2), **EXACT)


@pairwise(group=GROUPS, size=[5, 6, 7], kind=KINDS)
def test_attention_maps_turn_with_the_input(kind, size, group):
    options = {"group": group, "attention": kind}
    lift, conv = (randomised(make(2, 3, **options), std=0.5) for make in (AttentiveLiftingConv, AttentiveGroupConv))
    for layer, x in ((lift, signal(None, size, channels=2)), (conv, signal(group, size, channels=2))):
        maps = layer.maps(x)
        assert bool((maps >= 0).all() and (maps <= 1).all())
        assert_equivariant(lambda x, layer=layer: layer.maps(x).unsqueeze(1), group, x, **EXACT)


@pytest.mark.parametrize(
    ("kind", "factor"), [("full", 0.75), ("channel", 0.5), ("spatial", 0.5), ("input", 0.75), ("gate", 0.5)]
)
def test_constant_attention_is_the_group_convolution_up_to_a_factor(kind, factor):
    group = Cyclic(4)
    conv = AttentiveGroupConv(3, 4, group=group, attention=kind).double()
    for name, p in conv.named_parameters():
        if name.startswith("branch"):
            torch.nn.init.zeros_(p)
    x = signal(group)
    torch.testing.assert_close(conv(x).values, factor * GroupConv.forward(conv, x).values)
    lift = AttentiveLiftingConv(3, 4, group=group, attention=kind).double()
    for name, p in lift.named_parameters():
        if name.startswith("branch"):
            torch.nn.init.zeros_(p)
    torch.testing.assert_close(lift(signal()).values.shape, torch.Size([2, 4, 4, 6, 6]))
    x = signal()
    torch.testing.assert_close(lift(x).values, factor * LiftingConv.forward(lift, x).values)


@pytest.mark.parametrize(("kernel_size", "boundary"), [(3, "zero"), (4, "valid"), (3, "periodic"), (1, "zero")])
def test_responses_sum_to_the_convolution(kernel_size, boundary):
    group = Dihedral(4)
    conv = AttentiveGroupConv(2, 3, group=group, kernel_size=kernel_size, boundary=boundary).double()
    x = signal(group, channels=2)
    found = responses(x, conv.kernel(), boundary)
    torch.testing.assert_close(found.sum(dim=(1, 2)), GroupConv.forward(conv, x).values)


def test_full_attention_is_the_chapters_formula():
    """One step of the definition at a time, for one output channel and element."""
    group = Cyclic(4)
    conv = AttentiveGroupConv(2, 3, group=group).double()
    x = signal(group, channels=2)
    first, second, psi = conv.branch.rendered()
    o, h = 1, 2
    f = responses(x, conv.kernel(), "zero")[:, :, :, o, h]  # (batch, c, h̃, *space)
    gate = 0
    for statistic in (f.mean(dim=(-2, -1)), f.amax(dim=(-2, -1))):
        hidden = torch.stack([statistic[:, :, g] @ first[o, :, h, :, g].T for g in range(4)], dim=-1).relu()
        gate = gate + torch.stack([hidden[:, :, g] @ second[o, :, h, :, g].T for g in range(4)], dim=-1)
    weighted = f * gate.sigmoid()[..., None, None]
    spatial = []
    for g in range(4):
        statistics = torch.stack([weighted[:, :, g].mean(dim=1), weighted[:, :, g].amax(dim=1)], dim=1)
        spatial.append(F.conv2d(statistics, psi[o, h, :, g].flip((-2, -1))[None], padding=3)[:, 0])
    minus = torch.stack(spatial, dim=1).sigmoid()[:, None] * weighted
    torch.testing.assert_close(conv(x).values[:, o, h], (f - minus).sum(dim=(1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches(kind):
    conv = AttentiveGroupConv(2, 3, group=Cyclic(4), attention=kind)
    assert conv(torch.randn(0, 2, 4, 6, 6)).shape == (0, 3, 4, 6, 6)


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("lifts", [True, False])
def test_chunked_equals_unchunked(kind, lifts, monkeypatch):
    group = Cyclic(4)
    layer = (AttentiveLiftingConv if lifts else AttentiveGroupConv)(3, 4, group=group, attention=kind, chunk=4).double()
    x = signal(None if lifts else group).requires_grad_()

    def results():
        y = layer(x).values
        return [y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]

    whole = results()
    layer.chunk = 3
    split = results()
    layer.chunk = None  # by a budget of almost nothing: one sample and one output channel at a time
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 1)
    monkeypatch.setattr(chunked, "CHUNK_INPUTS", 0)
    counted = []
    monkeypatch.setattr(chunked, "responses", lambda x, *rest: counted.append(len(x)) or responses(x, *rest))
    single = results()
    assert counted == [1] * 16  # 2 samples, 4 outputs, forward and again
    for a, b, c in zip(whole, split, single, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-11)


def test_responses_are_not_kept_for_the_backward_pass():
    group = Cyclic(4)
    conv = AttentiveGroupConv(16, 16, group=group)
    x = torch.randn(4, 16, 4, 24, 24, requires_grad=True)
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = conv(x).values
    all_responses = y.nbytes * 16 * 4
    assert sum(seen.values()) < all_responses / 10


def test_cbam_and_squeeze_and_excitation_are_special_cases():
    """For the trivial group the maps are CBAM's; where mean and maximum agree, those of channels are SE-Net's."""
    layer = InputAttention(6, group=Trivial(), hidden=2).double()
    x = signal(Trivial(), channels=6)
    plain = x[:, :, 0]
    squeeze, excite = (m().flatten(1).view(s) for m, s in ((layer.squeeze, (2, 6)), (layer.excite, (6, 2))))

    def mlp(statistic):
        return (statistic @ squeeze.T).relu() @ excite.T

    channel = (mlp(plain.mean(dim=(2, 3))) + mlp(plain.amax(dim=(2, 3)))).sigmoid()[..., None, None]
    weighted = channel * plain
    statistics = torch.stack([weighted.mean(dim=1), weighted.amax(dim=1)], dim=1)
    kernel = layer.kernel()[:, 0, :, 0].flip((-2, -1))
    spatial = F.conv2d(statistics, kernel, padding=3).sigmoid()
    ours = layer.maps(x)
    torch.testing.assert_close(ours[0][:, :, 0], channel)
    torch.testing.assert_close(ours[1][:, :, 0], spatial)
    torch.testing.assert_close(layer(x).values[:, :, 0], plain - spatial * weighted)
    flat = plain.mean(dim=(2, 3), keepdim=True).expand_as(plain)
    se = (2 * mlp(flat[..., 0, 0])).sigmoid()
    torch.testing.assert_close(layer.maps(flat.unsqueeze(2))[0].flatten(1), se)


def test_attention_can_suppress_and_keep():
    """α⁺ = 1 - α⁻ spans [0, 1]: a branch that says yes takes everything away."""
    group = Cyclic(4)
    layer = InputAttention(2, group=group, hidden=2).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(100.0)
    x = signal(group, channels=2).abs()
    assert layer(x).values.abs().max() < 1e-9
    with torch.no_grad():
        layer.kernel.field.coefficients.fill_(-100.0)
    torch.testing.assert_close(layer(x).values, x)


@pytest.mark.parametrize("kind", [None, "co", "free", *KINDS])
def test_trains_in_bf16_and_round_trips(kind):
    group = Cyclic(4)
    lift = make_lifting_conv(1, 3, group=group, attention=kind)
    conv = make_group_conv(3, 2, group=group, attention=kind)
    x = torch.randn(2, 1, 6, 6)
    wanted = conv(lift(x)).values
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = conv(lift(x)).values
    assert (y - wanted).norm() < 0.05 * wanted.norm()
    y.float().square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for m in (lift, conv) for p in m.parameters() if p.grad is not None)
    assert_state_dict_round_trip(lambda: make_group_conv(3, 2, group=group, attention=kind), torch.randn(2, 3, 4, 6, 6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CyclicSelfAttention(3, group=SO2()), "group must"),
        (lambda: CyclicSelfAttention(3, group="p4"), "group must"),
        (lambda: CyclicSelfAttention(3, group=Cyclic(4), form="diagonal"), "form must"),
        (lambda: CyclicSelfAttention(3, group=Cyclic(4))(torch.randn(1, 3, 2, 5)), "x must"),
        (lambda: AttentiveGroupConv(3, 4, group=Cyclic(4), attention="both"), "attention must"),
        (lambda: AttentiveGroupConv(3, 4, group=Cyclic(4), attention_size=4), "attention_size must"),
        (lambda: AttentiveGroupConv(3, 4, group=Cyclic(4), hidden=0), "hidden must"),
        (lambda: make_group_conv(3, 4, group=Cyclic(4), attention="self"), "attention must"),
        (lambda: InputAttention(3, group=Cyclic(4), kernel_size=6), "kernel_size must"),
        (lambda: InputAttention(3, group=Cyclic(4), lifting=True, hidden=2), "hidden must"),
        (lambda: AttentiveGroupConv(3, 4, group=Cyclic(4))(torch.randn(1, 3, 3, 6, 6)), "x must"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=rf"\b{message}"):
        make()


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("size", [5, 6, 7])
def test_coattentive_convolutions_are_equivariant(group, size):
    lift = randomised(CoAttentive(LiftingConv(2, 3, group=group)))
    conv = randomised(CoAttentive(GroupConv(2, 3, group=group)))
    assert_equivariant(lift, group, signal(None, size, channels=2), **EXACT)
    assert_equivariant(conv, group, signal(group, size, channels=2), **EXACT)


@pytest.mark.parametrize("per", ["channel", "filter"])
def test_coattention_over_a_single_element_changes_nothing(per):
    conv = GroupConv(2, 3, group=Trivial()).double()
    x = torch.randn(2, 2, 1, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(CoAttentive(conv, per=per).double()(x).values, conv(x).values)


@pytest.mark.parametrize(
    "layer",
    [
        GateAttention(3, group=Cyclic(4)),
        InputAttention(3, group=Cyclic(4)),
        CyclicSelfAttention(3, group=Cyclic(4)),
        CoAttentive(ProjectionConv(3, 2, group=Cyclic(4))),
        AttentiveGroupConv(3, 2, group=Cyclic(4)).maps,
    ],
    ids=["gate", "input", "co", "projection", "maps"],
)
@pytest.mark.parametrize("kind", ["order", "gates"])
def test_elements_in_another_order_or_with_gates_are_refused(layer, kind):
    """Matrices of these layers have a row for each element, in the order of the group."""
    elements = Cyclic(4).elements()
    values = torch.randn(2, 3, 4, 6, 6)
    if kind == "order":
        x = GroupSignal(values, elements[torch.tensor([2, 0, 3, 1])], group=Cyclic(4))
    else:
        x = GroupSignal(values, None, torch.ones(4), group=Cyclic(4))
    with pytest.raises(ValueError, match="x must hold all elements of Cyclic"):
        layer(x)

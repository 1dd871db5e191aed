"""The Triton kernels of attentive convolutions against the reference in float64, in the interpreter without a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfield.groups import Cyclic, Dihedral, Mirror, Trivial
from kernelfield.layers.group import AttentiveGroupConv, AttentiveLiftingConv, InputAttention
from kernelfield.ops import use_fast_paths
from kernelfield.ops.attentive import attend_responses, responses
from kernelfield.ops.attentive.reference import channel_attention
from tests.ops.interpreted import DEVICE, attentive_launch, interpreter
from tests.ops.interpreted import attentive_planes as planes

__all__ = ["interpreter"]

D = torch.float64


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def differences(layer, fused, exact, x):
    """Return the errors of results and gradients, each over the largest entry of the exact one, in float64."""
    found, slope = [], torch.ones(())
    for run, dtype in ((fused, x.dtype), (exact, D)):
        layer.to(torch.float32 if run is fused else D)
        x = x.detach().to(dtype).requires_grad_()
        y = run(x)
        assert y.dtype == dtype
        slope = torch.randn(y.shape, device=y.device) if run is fused else slope
        gradients = torch.autograd.grad((y * slope.to(dtype)).sum(), [x, *layer.parameters()], allow_unused=True)
        found.append([t.detach().double() for t in (y, *gradients) if t is not None])
    return [float((a - b).abs().max() / b.abs().max().clamp(min=0.01)) for a, b in zip(*found, strict=True)]


def gaps(values, dim):
    """Return how far the two largest of ``values`` are apart, as a part of the largest of them without its sign."""
    first, second = values.topk(2, dim=dim).values.split(1, dim=dim)
    return (first - second) / values.abs().amax(dim=dim, keepdim=True)


def close_calls(x, kernel, squeeze, excite, psi, boundary):
    """Return the outputs, (out,), of which a maximum is one that rounding might decide: then gradients go elsewhere."""
    f = responses(x, kernel, boundary)  # (batch, c, h̃, out, h, *space)
    found = []
    if squeeze is not None:
        flat = f.flatten(5)
        mean, peak = flat.mean(dim=5), flat.amax(dim=5)
        for statistic in (mean, peak):  # rectified, which is a maximum too
            hidden = torch.einsum("ouhcg,bcgoh->bugoh", squeeze, statistic)
            found.append(hidden.abs().movedim(3, 0) < 1e-6 * hidden.abs().amax())
        if flat.shape[5] > 1:
            found.append(gaps(flat, 5).movedim(3, 0) < 1e-4)
        f = f * channel_attention(mean, peak, squeeze, excite)[..., None, None]
    if psi is not None and f.shape[1] > 1:
        found.append(gaps(f, 1).movedim(3, 0) < 1e-4)
    return torch.stack([close.flatten(1).any(dim=1) for close in found]).any(dim=0) if found else None


def draw(x, tensors, boundary):
    """Fill a kernel and maps, or those there are, with normal numbers, each output until no maximum of it is close."""
    left = torch.arange(len(tensors[0]), device=x.device)
    for _ in range(1000):
        for t, std in zip(tensors, (0.5, 0.2, 0.2, 0.5), strict=True):  # such that gates are neither open nor shut
            if t is not None:
                t[left] = std * torch.randn_like(t[left])
        close = close_calls(x.to(D), *(None if t is None else t[left].to(D) for t in tensors), boundary)
        left = left[:0] if close is None else left[close]
        if not len(left):
            return
    raise AssertionError(f"no draw of outputs {left.tolist()} was free of close maxima")


def errors(
    kind="full", group=Cyclic(4), space=(5, 6), channels=(2, 2), kernel_size=3, boundary="zero", lifts=False,  # noqa: B008
    attention_size=5, n=2, dtype=torch.float32, device=DEVICE,
):  # fmt: skip
    """Return the errors of what attention takes away and of its gradients."""
    layer = (AttentiveLiftingConv if lifts else AttentiveGroupConv)(
        *channels,
        group=group,
        kernel_size=kernel_size,
        boundary=boundary,
        attention=kind,
        attention_size=attention_size,
    ).to(device)
    x = torch.randn(n, channels[0], 1 if lifts else group.order, *space, dtype=dtype, device=device)
    # Of the layer the shapes alone: numbers that are not tied by a symmetry can be drawn for each output by itself.
    made = [None if t is None else t.detach().clone() for t in (layer.kernel(), *layer.branch.rendered())]
    draw(x, made, boundary)
    numbers = torch.nn.ParameterDict({str(i): t for i, t in enumerate(made) if t is not None})

    def parts():
        return [numbers.get(str(i)) for i in range(4)]

    def fused(x):
        kernel, *maps = parts()
        return planes.planes_residual(x, kernel, maps, boundary)

    def exact(x):
        kernel, *maps = parts()
        return attend_responses(responses(x, kernel, boundary), *maps)[0]

    return differences(numbers, fused, exact, x)


def input_errors(group=Cyclic(4), channels=3, space=(5, 6), last=False, dilation=1, dtype=torch.float32, device=DEVICE):  # noqa: B008
    """Return the errors of an attended input and of its gradients."""
    layer = InputAttention(channels, group=group, kernel_size=5, dilation=dilation).to(device)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.5)
    x = torch.randn(2, channels * group.order, *space, dtype=dtype, device=device)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    x = x.unflatten(1, (channels, group.order))

    def fused(x):
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            y = layer(x).values
        assert y.stride() == x.stride()
        return y

    def exact(x):
        channel, space = layer.maps(x)
        return x - space * channel * x

    return differences(layer, fused, exact, x)


KINDS = [
    {"kind": "full", "group": Mirror(), "space": (3, 4), "boundary": "valid", "attention_size": 3, "n": 1},
    {"kind": "channel", "group": Mirror(), "channels": (2, 1), "space": (3, 2), "n": 1},
    {"kind": "spatial", "group": Mirror(), "space": (2, 2), "boundary": "periodic", "attention_size": 3, "n": 1},
    {"kind": "full", "lifts": True, "kernel_size": 1, "space": (2, 2), "attention_size": 3, "n": 1},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_each_kind(options):
    assert max(errors(**options)) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"last": True, "dilation": 2},
        {"group": Trivial(), "last": True, "space": (3, 3)},
        pytest.param({"group": Mirror(), "channels": 70, "space": (2, 2)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_input(options):
    assert max(input_errors(**options)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_half_precision(dtype):
    assert max(errors(group=Trivial(), space=(3, 3), attention_size=3, n=1, dtype=dtype)) < 2e-2
    assert max(input_errors(group=Mirror(), space=(3, 3), dtype=dtype)) < 2e-2


def test_few_samples_at_a_time(monkeypatch):
    """Where too much would be saved of all samples, they are computed one by one, and again in the backward pass."""
    seen, real = [], planes._residual
    monkeypatch.setattr(planes, "SAVED_BYTES", 1)
    monkeypatch.setattr(planes, "_residual", lambda x, *a, **options: seen.append(len(x)) or real(x, *a, **options))
    assert max(errors(group=Trivial(), space=(2, 2), attention_size=1, n=2)) < 1e-5
    assert seen == [1] * 4


def test_a_maximum_that_several_attain():
    """The gradient goes to one of them: for a constant signal, all of it goes to the first corner."""
    x, w = (torch.ones(shape, device=DEVICE, requires_grad=True) for shape in ((1, 2, 1, 4, 5), (3, 3, 2, 1, 3)))
    (slope,) = torch.autograd.grad(attentive_launch.response_peaks(x, w).sum(), x)
    corner = torch.zeros_like(slope)
    corner[..., :3, :3] = 3
    assert slope.equal(corner)


@pytest.mark.parametrize("kind", ["full", "channel", "spatial", "input"])
def test_second_derivatives_are_those_of_the_formula(kind):
    layer = AttentiveGroupConv(2, 1, group=Mirror(), kernel_size=1, attention=kind, attention_size=3).to(DEVICE)
    x = torch.randn(1, 2, 2, 3, 2, device=DEVICE, requires_grad=True)
    found = []
    for fast in (True, False):
        with use_fast_paths(fast):
            (slope,) = torch.autograd.grad(layer(x).values.square().sum(), x, create_graph=True)
            second = torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()])
        found.append([slope.detach(), *second])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def check_drawn(data, most):
    """Draw a convolution with up to ``most`` positions along each axis, and compare."""
    kind = data.draw(st.sampled_from(["full", "channel", "spatial"]))
    group = data.draw(st.sampled_from([Cyclic(4), Mirror(), Cyclic(2), Trivial()]))
    space, channels = (data.draw(st.tuples(*(st.integers(1, n),) * 2)) for n in (most, 3))
    size = data.draw(st.sampled_from([1, 2, 3, 4, 5][:most]))
    boundary = "valid" if size % 2 == 0 else data.draw(st.sampled_from(["zero", "periodic", "valid"]))
    if boundary == "valid":
        space = tuple(n + size - 1 for n in space)
    if boundary == "periodic":
        space = tuple(max(n, size // 2) for n in space)
    lifts, attention_size = data.draw(st.booleans()), data.draw(st.sampled_from([1, 3, 7][:most]))
    assert max(errors(kind, group, space, channels, size, boundary, lifts, attention_size, n=1)) < 5e-5


def check_drawn_input(data, most):
    """Draw a signal with up to ``most`` positions along each axis, and compare."""
    group = data.draw(st.sampled_from([Cyclic(4), Dihedral(4), Mirror(), Trivial()]))
    space = data.draw(st.tuples(*(st.integers(1, most),) * 2))
    channels, last, dilation = data.draw(st.integers(1, 10)), data.draw(st.booleans()), data.draw(st.integers(1, 3))
    assert max(input_errors(group, channels, space, last, dilation)) < 5e-5


@settings(max_examples=2, derandomize=True)
@given(data=st.data())
def test_any_small_shape(data):
    check_drawn(data, 2)
    check_drawn_input(data, 3)


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data())
def test_any_shape(data):
    check_drawn(data, 8)
    check_drawn_input(data, 8)


@pytest.mark.slow
def test_other_tiles(monkeypatch):
    tiles = {"peaks": (1, 4, 16), "sums": (4, 2, 16), "taps": (2, 4, 16), "sources": (1, 8, 16)}
    tiles |= {"attend": (1, 4, 16), "spread": (1, 2, 16), "filters": (1, 4, 16)}
    monkeypatch.setattr(attentive_launch, "TILES", tiles)
    monkeypatch.setattr(attentive_launch, "PROGRAMS", 1)
    # More outputs and channels than lanes.
    assert max(errors(group=Mirror(), channels=(17, 9), space=(3, 4), attention_size=3)) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["full", "channel", "spatial"])
@pytest.mark.parametrize(("kernel_size", "boundary"), [(3, "zero"), (4, "valid"), (5, "periodic"), (1, "zero")])
@pytest.mark.parametrize("lifts", [True, False])
def test_on_a_gpu(kind, kernel_size, boundary, lifts):
    torch.manual_seed(0)
    options = {"channels": (10, 24), "space": (13, 10), "attention_size": 7, "n": 3, "device": "cuda"}
    for _ in range(4):
        assert max(errors(kind, kernel_size=kernel_size, boundary=boundary, lifts=lifts, **options)) < 5e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["full", "channel", "spatial", "input"])
@pytest.mark.parametrize("make", [AttentiveLiftingConv, AttentiveGroupConv])
def test_a_layer_on_a_gpu(make, kind):
    layer = make(10, 24, group=Dihedral(4), attention=kind)
    x = torch.randn(3, 10, *(() if make is AttentiveLiftingConv else (8,)), 13, 10)
    with torch.backends.cudnn.flags(allow_tf32=False):
        got = layer.cuda()(x.cuda()).values.cpu().double()
    wanted = layer.cpu().double()(x.double()).values
    assert (got - wanted).abs().max() < 5e-5 * wanted.abs().max()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("last", [True, False])
def test_an_input_on_a_gpu(last):
    torch.manual_seed(0)
    for group in (Cyclic(4), Dihedral(4)):
        assert max(input_errors(group, 20, (13, 10), last, device="cuda")) < 5e-5


def test_training_after_a_prediction_in_inference_mode():
    planes._window_means.cache_clear()
    planes._statistic_factors.cache_clear()
    layer = AttentiveGroupConv(1, 1, group=Mirror(), kernel_size=3, attention_size=3).to(DEVICE)
    x = torch.randn(1, 1, 2, 3, 3, device=DEVICE)
    with torch.inference_mode():
        layer(x)
    layer(x).values.square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())

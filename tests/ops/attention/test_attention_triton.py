"""The Triton kernels of group attention against the reference in float64, in Triton's interpreter without a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfield.ops.attention import group_attention, group_attention_reference
from kernelfield.ops.attention.softmax import softmax_sum
from kernelfield.ops.attention.windows import neighbor_tables
from tests.ops.interpreted import DEVICE, attention_launch, interpreter, softmax_launch

__all__ = ["interpreter"]

D = torch.float64


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def errors(
    g=4, h=4, m=None, space=(5, 4), channels=(2, 1, 0), neighborhood=(3, 3), dilation=1, crop=0, dropped=True,
    dtype=torch.float32, device=DEVICE, n=2, hidden=False,
):  # fmt: skip
    """Return the errors of the sums and of all gradients, each over the largest entry of the exact one, or 0.1."""
    a, b, rest = channels
    m = g if m is None else m
    places, keys = math.prod(s - 2 * crop for s in space), math.prod(space)
    around = (places, keys) if neighborhood is None else neighborhood
    shapes = [(n, count, *space, a + b + rest) for count in (g, m, m)] + [(h, *around, a), (h, m, b)]
    tensors = [torch.randn(shape, dtype=D, device=device).to(dtype).requires_grad_() for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    shape = (n, m, keys if neighborhood is None else math.prod(neighborhood), places)
    keep = (torch.rand(shape, device=device) < 0.7).permute(0, 3, 1, 2) if dropped else None
    valid = None
    if hidden:
        valid = torch.rand(places, keys, device=device) < 0.6
        valid[:, 0] = True
    options = {"neighborhood": neighborhood, "dilation": dilation, "crop": crop, "valid": valid}
    got = group_attention(*tensors, **options, keep=keep, method="triton")
    wanted = group_attention_reference(*exact, **options, keep=None if keep is None else keep.double())
    assert got.dtype == dtype
    slope = torch.randn_like(wanted).to(dtype)
    ours, theirs = torch.autograd.grad(got, tensors, slope), torch.autograd.grad(wanted, exact, slope.double())
    pairs = zip((got, *ours), (wanted, *theirs), strict=True)
    return [
        float((x - y).detach().abs().max() / y.detach().abs().max().clamp(min=0.1)) if y.numel() else 0.0
        for x, y in pairs
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"g": 3, "h": 2, "space": (2, 3), "neighborhood": (1, 3), "n": 1},
        {"g": 2, "h": 3, "space": (2, 2), "neighborhood": None, "hidden": True, "n": 1},
        pytest.param({"g": 3, "h": 2, "space": (2, 3)}, marks=pytest.mark.slow),
        {"g": 1, "h": 3, "channels": (3, 0, 0), "crop": 1, "dropped": False, "n": 1},
    ],
    ids=str,
)
def test_a_few_elements(options):
    assert max(errors(**options)) < 1e-5


@pytest.mark.parametrize("neighborhood", [(1, 3), pytest.param(None, marks=pytest.mark.slow)])
def test_other_tiles(neighborhood, monkeypatch):
    monkeypatch.setattr(attention_launch, "FEWEST", 0)  # as in large problems
    tiles = {"forward": (2, 2, 32), "queries": (2, 4, 32), "keys": (2, 2, 32), "places": (4, 2, 64)}
    monkeypatch.setattr(attention_launch, "TILES", tiles)
    assert max(errors(g=3, h=3, space=(1, 3), neighborhood=neighborhood, n=1)) < 1e-5


@pytest.mark.slow
def test_the_tiles_of_large_problems(monkeypatch):
    monkeypatch.setattr(attention_launch, "FEWEST", 0)
    assert max(errors(g=3, h=3, space=(1, 3), neighborhood=(1, 3), n=1)) < 1e-5


def check_drawn(data, most):
    """Draw a shape with up to ``most`` elements and positions along each axis, and compare."""
    g, h, m, *space = (data.draw(st.integers(1, most)) for _ in range(5))
    channels = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)).filter(any))
    neighborhood = data.draw(st.sampled_from([None, (1, 1), (3, 3), (1, 3)]))
    dilation, dropped = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    crop = data.draw(st.integers(0, 1)) if min(space) > 2 else 0
    assert max(errors(g, h, m, tuple(space), channels, neighborhood, dilation, crop, dropped, n=1)) < 5e-5


@settings(max_examples=3, derandomize=True)
@given(data=st.data())
def test_any_small_shape(data):
    check_drawn(data, 2)


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data())
def test_any_shape(data):
    check_drawn(data, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("elements", "neighborhood"), [(4, (3, 1)), (8, None), (12, (1, 3)), (12, None), (16, None)])
def test_many_elements(elements, neighborhood):
    assert max(errors(elements, elements, space=(1, 2), neighborhood=neighborhood, n=1)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_half_precision(dtype):
    assert max(errors(g=2, h=2, space=(3, 1), neighborhood=(3, 1), dtype=dtype)) < 2e-2


@pytest.mark.parametrize("factor", [1000, pytest.param(30, marks=pytest.mark.slow)])
def test_large_scores(factor):
    q, k, v, positions, elements = (torch.randn(*s) for s in ((1, 2, 3, 1, 3),) * 3 + ((2, 3, 1, 2), (2, 2, 1)))
    tensors = [t.to(DEVICE).requires_grad_() for t in (q * factor, k, v, positions, elements)]
    y = group_attention(*tensors, neighborhood=(3, 1), method="triton")
    exact = group_attention_reference(*(t.detach().double() for t in tensors), neighborhood=(3, 1))
    assert (y - exact).abs().max() < 1e-3
    assert all(bool(t.isfinite().all()) for t in torch.autograd.grad(y.sum(), tensors))


@pytest.mark.parametrize("tile", [8, 2])  # all neighbours at once, and in tiles
def test_the_softmax_kernel_agrees_with_the_formula(tile, monkeypatch):
    arguments = softmax_launch._arguments
    monkeypatch.setattr(softmax_launch, "_arguments", lambda *a: {**arguments(*a), "JT": tile})
    shapes = (2, 3, 5), (2, 5, 5), (2, 5, 3)  # 5 elements: two programs
    tensors = [torch.randn(1, 2, *shape, device=DEVICE) for shape in shapes]
    tensors[0] = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)  # another order in memory
    tensors = [t.requires_grad_() for t in tensors]
    valid = torch.tensor([[True, True, False, True, True], [True] * 5], device=DEVICE)
    fast, slow = (softmax_sum(*tensors, valid, fused=fused) for fused in (True, False))
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
    weight = torch.randn_like(fast)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), tensors) for y in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("crop", [0, 1])
def test_tables_are_inverse(crop):
    index, inverse = neighbor_tables((5, 4), (3, 3), 1, crop, torch.device("cpu"))
    for j in range(9):
        seen = [(i, int(y)) for i, y in enumerate(index[j]) if y >= 0]
        assert sorted(seen) == sorted((int(i), y) for y, i in enumerate(inverse[j]) if i >= 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("elements", [1, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("neighborhood", [(5, 5), None])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_on_a_gpu(elements, neighborhood, dtype, least):
    torch.manual_seed(0)
    # Of one key element the codes add the same to all scores: their gradient is zero, and has no relative error.
    channels = (6, 4, 0) if elements > 1 else (6, 0, 4)
    options = {"g": elements, "h": max(4, elements), "space": (11, 10), "channels": channels, "device": "cuda"}
    assert max(errors(**options, neighborhood=neighborhood, dtype=dtype)) < least


@pytest.mark.parametrize(
    ("neighborhood", "around"), [((3,), (3,)), (None, (3, 3)), (None, (1, 1))], ids=["near", "all", "one code"]
)
def test_second_derivatives_are_those_of_the_reference(neighborhood, around):
    shapes = [(1, 2, 3, 3)] * 3 + [(2, *around, 1), (2, 2, 1)]
    tensors = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    keep = torch.rand(1, 3, 2, 3, device=DEVICE) < 0.7
    found = []
    for inputs, method in ((tensors, "triton"), (exact, "reference")):
        y = group_attention(*inputs, neighborhood=neighborhood, keep=keep, method=method)
        slopes = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        found.append((*slopes, *torch.autograd.grad(sum(s.sin().sum() for s in slopes), inputs)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-3, rtol=1e-3)


def test_second_derivatives_of_the_sum_of_softmaxes():
    shapes = (1, 2, 2, 2, 3), (1, 2, 2, 3, 3), (1, 2, 2, 3, 2)
    scores = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]
    seen = torch.tensor([[True, False, True]], device=DEVICE)
    found = []
    for fused in (True, False):
        y = softmax_sum(*scores, seen, fused=fused)
        slopes = torch.autograd.grad(y.square().sum(), scores, create_graph=True)
        found.append((*slopes, *torch.autograd.grad(sum(s.sin().sum() for s in slopes), scores)))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)

"""Group attention against its reference, in chunks and at once, with bounded time and memory."""

from __future__ import annotations

import math

import pytest
import torch

from kernelfield.ops.attention import attention_map, chunked, group_attention, group_attention_reference
from kernelfield.ops.attention.contract import contract
from kernelfield.ops.attention.windows import windows
from kernelfield.testing import assert_compiles
from tests.largest import Largest

D = torch.float64


def inputs(g=3, h=4, space=(5, 6), c=5, a=3, b=2, neighborhood=(3, 3), n=2, m=None, crop=0, dtype=D):
    m = g if m is None else m
    q = torch.randn(n, g, *space, c, dtype=dtype)
    k, v = (torch.randn(n, m, *space, c, dtype=dtype) for _ in range(2))
    places = math.prod(s - 2 * crop for s in space)
    around = (places, math.prod(space)) if neighborhood is None else neighborhood
    codes = torch.randn(h, *around, a, dtype=dtype), torch.randn(h, m, b, dtype=dtype)
    return [t.requires_grad_() for t in (q, k, v, *codes)]


CASES = [
    {"neighborhood": (3, 3)},
    {"neighborhood": (3, 5), "crop": 1},
    {"neighborhood": (5, 5), "dilation": 2},
    {"neighborhood": None},
    {"neighborhood": None, "crop": 1},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("chunk", [None, 1])
def test_values_and_gradients_are_those_of_the_formula(case, chunk):
    crop = case.get("crop", 0)
    tensors = inputs(neighborhood=case["neighborhood"], crop=crop)
    keys = 30 if case["neighborhood"] is None else math.prod(case["neighborhood"])
    keep = torch.rand(2, (5 - 2 * crop) * (6 - 2 * crop), 3, keys, dtype=D)
    got = group_attention(*tensors, **case, keep=keep, chunk=chunk)
    wanted = group_attention_reference(*tensors, **case, keep=keep)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(y.sin().sum(), tensors) for y in (got, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_lifting_has_one_element():
    tensors = inputs(g=1, h=4, b=0)
    torch.testing.assert_close(
        group_attention(*tensors, neighborhood=(3, 3)), group_attention_reference(*tensors, neighborhood=(3, 3))
    )


@pytest.mark.parametrize("space", [(7,), (3, 4, 3)])
def test_lines_and_volumes(space):
    around = (3,) * len(space)
    tensors = inputs(space=space, neighborhood=around)
    torch.testing.assert_close(
        group_attention(*tensors, neighborhood=around), group_attention_reference(*tensors, neighborhood=around)
    )


@pytest.mark.parametrize(("queries", "keys"), [(1, 4), (4, 1), (1, 1)])
def test_all_queries_or_keys_may_share_a_code(queries, keys):
    q, k, v = torch.randn(3, 2, 3, 4, 5, dtype=torch.float64)
    codes = torch.randn(2, queries, keys, 2, dtype=torch.float64), torch.randn(2, 3, 1, dtype=torch.float64)
    wanted = group_attention_reference(q, k, v, *codes)
    torch.testing.assert_close(group_attention(q, k, v, *codes), wanted)


def test_vmap():
    q, k, v = torch.randn(3, 2, 3, 4, 5, dtype=torch.float64)
    codes = torch.randn(2, 3, 2, dtype=torch.float64), torch.randn(2, 3, 1, dtype=torch.float64)

    def attend(q, k, v):
        return group_attention(q[None], k[None], v[None], *codes, neighborhood=(3,))[0]

    torch.testing.assert_close(torch.vmap(attend)(q, k, v), group_attention(q, k, v, *codes, neighborhood=(3,)))


def test_keys_may_be_hidden():
    tensors = inputs(neighborhood=None)
    valid = torch.rand(30, 30) < 0.5
    valid.fill_diagonal_(True)
    got = group_attention(*tensors, valid=valid)
    torch.testing.assert_close(got, group_attention_reference(*tensors, valid=valid))


def test_gradients_are_those_of_differences():
    tensors = inputs(g=2, h=3, space=(2, 3), c=2, a=1, b=1, n=1)
    assert torch.autograd.gradcheck(lambda *t: group_attention(*t, neighborhood=(3, 3)), tensors)
    tensors = [torch.randn(2, *shape, dtype=D, requires_grad=True) for shape in ((3, 4, 5), (3, 2, 5), (3, 2, 4))]
    assert torch.autograd.gradcheck(contract, tensors)


def test_large_scores_stay_finite_and_right():
    # Content, position and element that each decide alone, and disagree.
    q, k, v, positions, elements = inputs(dtype=torch.float32)
    for factor in (1, 4, 100):
        y = group_attention(q * factor, k, v, positions, elements, neighborhood=(3, 3))
        gradients = torch.autograd.grad(y.sum(), (q, k, v, positions, elements))
        assert all(bool(t.isfinite().all()) for t in (y, *gradients))
        if factor < 100:
            exact = group_attention_reference(
                *(t.double() for t in (q * factor, k, v, positions, elements)), neighborhood=(3, 3)
            )
            torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-4)


def test_little_is_saved_for_the_backward_pass():
    """R12 attention on 12² with 5×5: reference and ours, by all that autograd saves."""
    q, k, v, positions, elements = inputs(
        g=12, h=12, space=(12, 12), c=5, neighborhood=(5, 5), n=1, dtype=torch.float32
    )

    def saved(function):
        seen = {}

        def pack(tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = function(q, k, v, positions, elements, neighborhood=(5, 5))
        return sum(seen.values()) + y.nbytes

    assert saved(group_attention) * 100 < saved(group_attention_reference)


@pytest.mark.parametrize("neighborhood", [(3, 3), None])
def test_all_scores_are_never_held_at_once(neighborhood, monkeypatch):
    """R12 attention of 16 samples and heads: no tensor is near (batch, heads, |H|, |H|, positions, neighbourhood).

    There are |H| times as many scores as that: of h, h̃ and ĥ, no two of which know the third.
    """
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 1 << 20)
    n, g, space = 16, 12, (6, 6) if neighborhood else (5, 5)
    tensors = inputs(g=g, h=g, space=space, neighborhood=neighborhood, n=n, dtype=torch.float32)
    places = math.prod(space)
    full = n * g**2 * places * (places if neighborhood is None else math.prod(neighborhood))
    with Largest() as largest:
        y = group_attention(*tensors, neighborhood=neighborhood, method="chunked")
        torch.autograd.grad(y.sum(), tensors)
    assert largest.elements < full / 10
    with Largest() as largest, torch.no_grad():
        group_attention_reference(*tensors, neighborhood=neighborhood)
    assert largest.elements >= full * g


def test_chunks_keep_to_the_budget(monkeypatch):
    sizes = []
    real = chunked._weights
    monkeypatch.setattr(chunked, "_weights", lambda q, *rest: sizes.append(len(q)) or real(q, *rest))
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 1)
    monkeypatch.setattr(chunked, "CHUNK_INPUTS", 0)
    group_attention(*inputs(n=3), neighborhood=(3, 3))
    assert sizes == [1, 1, 1]


def test_maps_sum_to_one_and_are_the_weights():
    q, k, _, positions, elements = inputs(n=1)
    a = attention_map(q, k, positions, elements, neighborhood=(3, 3))
    torch.testing.assert_close(a.sum(dim=(-2, -1)), torch.ones(1, 4, dtype=D))
    # The values that tell positions apart give back how much of each was taken.
    spots = torch.eye(30, dtype=D).view(1, 1, 5, 6, 30).expand(1, 3, -1, -1, -1)
    taken = group_attention(q, k, spots, positions, elements, neighborhood=(3, 3)).sum(dim=(2, 3)) / 90
    torch.testing.assert_close(a.flatten(2), taken)


@pytest.mark.slow  # the layers' own test compiles it too
def test_compiles():
    tensors = [t.detach().requires_grad_() for t in inputs(dtype=torch.float32)]
    assert_compiles(lambda *t: group_attention(*t, neighborhood=(3, 3)), *tensors, rtol=1e-4, atol=1e-5)


def test_windows_are_views():
    x = torch.arange(20.0).view(4, 5)
    w = windows(x, (3, 3), (0, 0))
    assert w.shape == (2, 3, 3, 3)
    assert w.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    torch.testing.assert_close(w[1, 2], x[1:4, 2:5])
    assert windows(x, (3, 3), (2, 2), dilation=2)[0, 0, 1, 1] == x[0, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("elements", "neighborhood"), [(4, (5, 5)), (12, (5, 5)), (8, (9, 9)), (3, None), (1, (3, 3))])
def test_on_a_gpu(elements, neighborhood):
    tensors = inputs(g=elements, h=max(elements, 4), space=(11, 10), neighborhood=neighborhood, dtype=torch.float32)
    tensors = [t.detach().cuda().requires_grad_() for t in tensors]
    keys = 110 if neighborhood is None else math.prod(neighborhood)
    keep = torch.rand(2, 110, elements, keys, device="cuda") < 0.8
    fast = group_attention(*tensors, neighborhood=neighborhood, keep=keep, method="chunked")
    slow = group_attention_reference(*tensors, neighborhood=neighborhood, keep=keep.float())
    torch.testing.assert_close(fast, slow, rtol=0, atol=2e-4)
    for a, b in zip(*(torch.autograd.grad(y.sin().sum(), tensors) for y in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-3)

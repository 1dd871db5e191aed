"""The Triton kernels of group attention against the formula in float64, run by Triton's interpreter on a CPU."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys

import pytest
import torch

from kernelfield.ops.attention import group_attention, group_attention_reference
from kernelfield.ops.attention.windows import neighbor_tables

D = torch.float64
triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def errors(
    g=4, h=4, m=None, space=(5, 4), channels=(2, 1, 0), neighborhood=(3, 3), dilation=1, crop=0, dropped=True,
    dtype=torch.float32, device="cpu", n=2, hidden=False,
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
    got = group_attention(*tensors, **options, keep=keep, method="fused")
    wanted = group_attention_reference(*exact, **options, keep=None if keep is None else keep.double())
    assert got.dtype == dtype
    slope = torch.randn_like(wanted).to(dtype)
    ours, theirs = torch.autograd.grad(got, tensors, slope), torch.autograd.grad(wanted, exact, slope.double())
    pairs = zip((got, *ours), (wanted, *theirs), strict=True)
    return [
        float((x - y).detach().abs().max() / y.detach().abs().max().clamp(min=0.1)) if y.numel() else 0.0
        for x, y in pairs
    ]


def interpreted(code):
    """Run code of this module with Triton's interpreter, which must be asked for before Triton is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", f"from tests.ops.attention.test_attention_triton import *\n{code}"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


@triton
def test_a_few_elements():
    interpreted("""
torch.manual_seed(0)
for options in (
    {"g": 3, "h": 2, "space": (3, 4)},
    {"g": 2, "h": 3, "space": (2, 3), "neighborhood": None, "hidden": True},
    {"g": 1, "h": 3, "channels": (3, 0, 0), "crop": 1, "dropped": False},
):
    assert max(errors(**options)) < 1e-5, options
""")


@triton
def test_other_tiles():
    interpreted("""
from kernelfield.ops import attention_fused as fused
torch.manual_seed(0)
fused.FEWEST = 0  # as in large problems
assert max(errors(g=3, h=3, space=(1, 3), neighborhood=(1, 3), n=1)) < 1e-5
fused.TILES.update(forward=(2, 2, 32), queries=(2, 4, 32), keys=(2, 2, 32), places=(4, 2, 64))
for neighborhood in ((1, 3), None):
    assert max(errors(g=3, h=3, space=(1, 3), neighborhood=neighborhood, n=1)) < 1e-5, neighborhood
""")


#: after COUNT, how many to draw, and MOST, how many elements and positions each has
DRAWN = """
from hypothesis import HealthCheck, given, settings, strategies as st

@settings(max_examples=COUNT, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    *(st.integers(1, MOST),) * 3, st.tuples(st.integers(1, MOST), st.integers(1, MOST)),
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)).filter(any),
    st.sampled_from([None, (1, 1), (3, 3), (1, 3)]), st.integers(1, 2), st.integers(0, 1), st.booleans(),
)
def check(g, h, m, space, channels, neighborhood, dilation, crop, dropped):
    if min(space) <= 2 * crop:
        crop = 0
    assert max(errors(g, h, m, space, channels, neighborhood, dilation, crop, dropped, n=1)) < 5e-5

torch.manual_seed(0)
check()
"""


@triton
@pytest.mark.parametrize(("count", "most"), [(3, 3), pytest.param(12, 5, marks=pytest.mark.slow)])
def test_any_shape(count, most):
    interpreted(f"COUNT, MOST = {count}, {most}\n{DRAWN}")


@triton
@pytest.mark.slow
@pytest.mark.parametrize(("elements", "neighborhood"), [(4, (3, 1)), (8, None), (12, (1, 3)), (12, None), (16, None)])
def test_many_elements(elements, neighborhood):
    interpreted(f"""
torch.manual_seed(0)
assert max(errors({elements}, {elements}, space=(1, 2), neighborhood={neighborhood}, n=1)) < 1e-5
""")


@triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    interpreted(f"""
torch.manual_seed(0)
assert max(errors(g=2, h=2, space=(3, 2), neighborhood=(3, 1), dtype={dtype})) < 2e-2
""")


@triton
def test_large_scores():
    interpreted("""
torch.manual_seed(0)
q, k, v, positions, elements = (torch.randn(*s) for s in ((1, 2, 3, 2, 3),) * 3 + ((2, 3, 1, 2), (2, 2, 1)))
for factor in (1, 30, 1000):
    tensors = [t.clone().requires_grad_() for t in (q * factor, k, v, positions, elements)]
    y = group_attention(*tensors, neighborhood=(3, 1), method="fused")
    exact = group_attention_reference(*(t.detach().double() for t in tensors), neighborhood=(3, 1))
    assert float((y - exact).abs().max()) < 1e-3, factor
    assert all(bool(t.isfinite().all()) for t in torch.autograd.grad(y.sum(), tensors))
""")


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

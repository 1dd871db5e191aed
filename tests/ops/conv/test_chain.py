"""Outer transforms as chains of products, for signals that no other layout holds."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfield.ops import conv
from kernelfield.ops.conv.triton import outer_chain, plan_of
from kernelfield.ops.conv.triton import plan as plans
from kernelfield.ops.conv.triton.plan import Plan, make_plan
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, assert_right, blocks, interpreter, launch, results

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["interpreter"]

#: limits that turn small signals into large ones
LIMITS: dict[str, Any] = {
    "LONGEST_OUTER": 1,
    "LONGEST_LINE": 256,
    "LONGEST_DIGIT": 16,
    "LONGEST_SINGLE": 3,
    "ALIGNMENT": 1,
    "BLOCK": 256,
}
CASES = {
    "causal line": Case((1, 2, 1200), (2, 1, 1200), 2, causal=True),
    "line as long as its transform": Case((2, 1, 1024), (1, 1, 1024), 1, causal=True),
    "line": Case((1, 1, 1100), (1, 1, 2199), 1),
    "circle": Case((1, 1, 1024), (1, 1, 1024), 1, "periodic"),
    "plane": Case((2, 2, 6, 70), (2, 1, 11, 139), 2),
    "torus": Case((1, 1, 4, 200), (1, 1, 8, 210), 1, "periodic"),
    "cylinder": Case((1, 2, 4, 90), (2, 1, 8, 179), 2, ("periodic", "zero")),
    "blocks of rows": Case((1, 1, 5, 300), (1, 1, 9, 599), 1),
    "blocks of the rows of a torus": Case((2, 1, 4, 512), (1, 1, 7, 599), 1, "periodic"),
    "volume": Case((1, 2, 3, 4, 60), (2, 1, 5, 7, 119), 2),
    "volume with long rows": Case((2, 1, 4, 3, 130), (1, 1, 3, 5, 100), 1),
    "periodic volume": Case((1, 1, 4, 3, 36), (1, 1, 5, 5, 40), 1, ("periodic", "zero", "periodic")),
}
FAST = ("causal line", "line", "plane", "cylinder", "blocks of rows", "volume", "periodic volume")
#: largest relative error in bfloat16, on tensor cores, where a chain rounds after each of its products
BFLOAT16 = 1e-2
every = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if n in FAST else pytest.mark.slow) for n, c in CASES.items()], ids=CASES
)


def clear() -> None:
    for cached in (plans.make_plan, plans.find_digits, launch.make_call):
        cached.cache_clear()
    sys.modules[plan_of.__module__]._planned.clear()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in LIMITS.items():
        monkeypatch.setattr(plans, name, value)
    clear()
    yield
    clear()


def layout(case: Case) -> Plan | None:
    boundary = (case.boundary,) * (len(case.x) - 2) if isinstance(case.boundary, str) else case.boundary
    return plan_of(case.x[2:], case.kernel[2:], case.causal, [b == "periodic" for b in boundary], torch.bfloat16)


@every
@pytest.mark.usefixtures("small")
def test_every_layout_equals_float64(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = layout(case)
    assert plan is not None
    assert plan.digits
    if DEVICE == "cuda":  # where tables of half precision alone can be read transposed
        assert_right(case, torch.bfloat16)
        return
    # The layout of half precision in float32: rounding hides no error.
    for module in (launch, sys.modules[plan_of.__module__]):
        monkeypatch.setattr(module, "plan_of", lambda *args, **limits: plan_of(*args[:-1], torch.bfloat16, **limits))
    assert_right(case)


@pytest.mark.parametrize(
    ("dtype", "precision", "allowed"),
    [(torch.bfloat16, "highest", BFLOAT16), (torch.float32, "high", 2e-3), (torch.float16, "highest", 2e-3)],
    ids=["bfloat16", "float32", "float16"],
)
@pytest.mark.parametrize(
    "name", ["line", *(pytest.param(name, marks=pytest.mark.slow) for name in ("blocks of rows", "volume"))]
)
@pytest.mark.usefixtures("small")
def test_errors_of_half_precision_and_scaled_products(
    name: str, dtype: torch.dtype, precision: str, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    case = CASES[name]
    x, kernel = case.tensors(torch.float64)
    # Signals and kernels of different size, which float16 meets scaled.
    got, expected = results(case, (30 * x).to(dtype), (0.03 * kernel).to(dtype))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).norm() <= allowed * b.norm()


@pytest.mark.usefixtures("small")
def test_chunks_of_channels_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((2, 3, 4, 70), (3, 1, 7, 139), 3)
    seen = []
    original = blocks.Blocks.channels_of_a_chunk
    monkeypatch.setattr(blocks.Blocks, "channels_of_a_chunk", lambda *args: seen.append(original(*args)) or 1)
    plan = layout(case)
    assert plan is not None
    assert plan.digits
    got, expected = results(case, *case.tensors(torch.bfloat16))
    assert seen == [3, 3]  # forward and backward
    for a, b in zip(got, expected, strict=True):
        assert (a.double() - b).norm() <= BFLOAT16 * b.norm()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("learned", [0, 1], ids=["x", "kernel"])
def test_a_single_gradient(learned: int) -> None:
    case = CASES["plane"]
    tensors = [t.to(DEVICE).requires_grad_(i == learned) for i, t in enumerate(case.tensors(torch.bfloat16))]
    y = conv(*tensors, **case.how, method="triton")
    (alone,) = torch.autograd.grad(y.float().square().sum(), tensors[learned])
    exact = [t.detach().double().requires_grad_(i == learned) for i, t in enumerate(tensors)]
    (wanted,) = torch.autograd.grad(conv(*exact, **case.how, method="fft").square().sum(), exact[learned])
    # The gradient has the errors of the output and of its own convolution.
    assert (alone.double() - wanted).norm() <= 2 * BFLOAT16 * wanted.norm()


@st.composite
def chains(draw: st.DrawFn) -> Plan:
    digits = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(1, 2))))
    second = draw(st.integers(1, 4))
    valid = draw(st.integers(1, math.prod(digits))), draw(st.integers(1, second))
    shift = draw(st.sampled_from([0.0, 0.25]))
    outer = math.prod(digits) * second
    return Plan(outer, 3, False, shift, 1, 3, 1, 3, 3, True, 2, digits, second, valid)


@settings(max_examples=60)
@given(plan=chains(), parts=st.integers(1, 2), scaled=st.booleans())
def test_a_chain_is_a_fourier_transform_and_its_inverse(plan: Plan, parts: int, scaled: bool) -> None:
    how = parts, torch.float64, torch.device("cpu"), scaled
    ahead, back = outer_chain.chain_tables(plan, False, *how)
    rest = plan.first // plan.digits[0]
    filled = rest * -(-plan.valid[0] // rest)
    x = torch.randn(2, parts, filled, plan.valid[1], 3, dtype=torch.float64)
    x[:, :, plan.valid[0] :] = 0
    out = torch.empty(2, plan.outer, 2, 3, dtype=torch.float64)
    outer_chain.chain_forward(ahead, x.flatten(1), out)
    signal = torch.complex(x[:, 0], x[:, 1] if parts == 2 else torch.zeros_like(x[:, 0]))
    turns = torch.arange(filled).double() * (plan.shift / plan.first)
    turned = signal * torch.polar(torch.ones_like(turns), -2 * math.pi * turns)[:, None, None]
    spectrum = torch.fft.fft2(turned, s=(plan.first, plan.second), dim=(1, 2))
    # The order of memory: the shift that is left of frequency r is (r + shift) / N.
    order = (outer_chain.digit_shifts(plan.digits, 0.0) * plan.first).round().long()
    expected = torch.view_as_real(spectrum[:, order].flatten(1, 2)).movedim(-1, 2)
    share = plan.outer / plan.digits[0] if scaled else 1
    torch.testing.assert_close(out * share, expected)
    restored = torch.empty(2, parts * filled * plan.valid[1] * 3, dtype=torch.float64)
    outer_chain.chain_inverse(back, out, restored)
    torch.testing.assert_close(restored / (plan.digits[0] if scaled else 1), x.flatten(1))


@pytest.mark.parametrize("wraps", [False, True], ids=["zero", "periodic"])
@pytest.mark.parametrize(
    "lengths",
    [
        *[(1 << n,) for n in (21, 22, 23, 24)],
        (3_000_000,),
        *[(n, n) for n in (512, 1024, 2048, 4096)],
        (4096, 300),
        (300, 4096),
        (1000, 700),
        *[(n, n, n) for n in (64, 128, 256)],
        (100, 60, 80),
        (3, 400, 400),
    ],
    ids=str,
)
def test_large_signals_have_layouts(lengths: tuple[int, ...], wraps: bool) -> None:
    plan = make_plan(lengths, tuple(n - 1 for n in lengths), (wraps,) * len(lengths))
    assert plan is not None
    transform = plan.outer * plan.m1 * plan.m2
    # Padded along all axes but the first, each to a power of two at most.
    assert (
        math.prod(lengths)
        <= transform
        <= (1.3 if len(lengths) == 1 else 1.3 * 4 ** (len(lengths) - 1)) * math.prod(lengths)
    )
    if plan.digits:
        assert plan.outer == math.prod(plan.digits) * plan.second
        assert max(plan.digits) <= 256
        if wraps:
            assert transform == math.prod(lengths)


@pytest.mark.parametrize("lengths", [(4099**2,), (4099, 512)])
def test_circles_that_have_no_factors_have_no_layout(lengths: tuple[int, ...]) -> None:
    assert make_plan(lengths, tuple(n - 1 for n in lengths), (True,) * len(lengths)) is None


def test_three_products_of_tf32_have_no_chain() -> None:
    assert make_plan((1024, 1024), (1023, 1023), (False, False), 8) is None

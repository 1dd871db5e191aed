"""Convolution on tensor cores: every kernel against float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelfield.ops import conv
from kernelfield.ops.conv import cost
from kernelfield.ops.conv.triton import obstacle, plan_of, selfcheck
from kernelfield.ops.conv.triton.plan import make_plan
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, LAYOUTS, assert_right, blocks, interpreter, launch, layouts

__all__ = ["interpreter"]

slow = pytest.mark.slow
MORE_LAYOUTS = ("upright line", "slices", "line of blocks")


@st.composite
def depthwise(draw: st.DrawFn) -> Case:
    dim = draw(st.integers(1, 3))
    lengths = tuple(draw(st.integers(1 if dim < 3 else 2, (300, 20, 7)[dim - 1])) for _ in range(dim))
    points = tuple(draw(st.integers(1, 2 * n)) for n in lengths)
    causal = dim == 1 and draw(st.booleans())
    boundary = tuple("zero" if causal else draw(st.sampled_from(["zero", "periodic"])) for _ in range(dim))
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    return Case((batch, channels, *lengths), (channels, 1, *points), channels, boundary, causal)


@settings(max_examples=4)
@given(case=depthwise())
def test_any_shape_equals_float64(case: Case) -> None:
    assert_right(case)


@layouts
def test_every_layout_equals_float64(case: Case) -> None:
    assert_right(case)


@pytest.mark.parametrize("name", ["upright plane", *(pytest.param(n, marks=slow) for n in MORE_LAYOUTS)])
def test_every_layout_of_bfloat16_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cuda":  # in float32 these layouts need more shared memory than a GPU has
        assert_right(LAYOUTS[name], torch.bfloat16)
        return
    # Half precision has layouts of its own, whose errors its rounding would hide.
    monkeypatch.setattr(launch, "plan_of", lambda *args, **limits: plan_of(*args[:-1], torch.bfloat16, **limits))
    launch.make_call.cache_clear()
    assert_right(LAYOUTS[name])
    launch.make_call.cache_clear()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("line", torch.bfloat16),
        ("upright plane", torch.bfloat16),
        ("slices", torch.float16),
        pytest.param("line", torch.float16, marks=slow),
        pytest.param("upright plane", torch.float16, marks=slow),
        pytest.param("slices", torch.bfloat16, marks=slow),
    ],
    ids=str,
)
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    assert_right(LAYOUTS[name], dtype)


@slow
def test_half_precision_of_blocks_of_4096() -> None:
    assert_right(Case((1, 1, 66000), (1, 1, 300), 1, causal=True), torch.bfloat16)


@pytest.mark.parametrize("learned", [0, 1])
def test_a_single_gradient(learned: int) -> None:
    for name in ("line", "slices"):
        case = LAYOUTS[name]
        tensors = [t.to(DEVICE) for t in case.tensors(torch.float32)]
        tensors[learned].requires_grad_()
        got, expected = (
            torch.autograd.grad(conv(*tensors, **case.how, method=m).square().sum(), tensors[learned])[0]
            for m in ("triton", "fft")
        )
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_strided_and_channels_last() -> None:
    x, kernel = torch.randn(2, 4, 9, 10, device=DEVICE), torch.randn(4, 1, 5, 5, device=DEVICE)
    expected = conv(x, kernel, groups=4, method="triton")
    last = conv(x.to(memory_format=torch.channels_last), kernel, groups=4, method="triton")
    strided = conv(torch.stack([x, x], -1)[..., 0], kernel.flip(-1).flip(-1), groups=4, method="triton")
    assert last.equal(expected)
    assert strided.equal(expected)


@pytest.mark.parametrize("form", ["expanded", "permuted"])
def test_gradients_of_channels_last(form: str) -> None:
    tensors = [torch.randn(2, 4, 9, 10, device=DEVICE), torch.randn(4, 1, 5, 5, device=DEVICE)]
    last = [tensors[0].to(memory_format=torch.channels_last), tensors[1]]
    weights = torch.randn(10, 2, 9, 4, device=DEVICE).permute(1, 3, 2, 0)

    def gradients(tensors: list[torch.Tensor], method: str) -> tuple[torch.Tensor, ...]:
        tensors = [t.requires_grad_() for t in tensors]
        y = conv(*tensors, groups=4, method=method)
        return torch.autograd.grad(y.sum(), tensors) if form == "expanded" else torch.autograd.grad(y, tensors, weights)

    for got, expected in zip(gradients(last, "triton"), gradients(tensors, "fft"), strict=True):
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(
    "change",
    [
        {"shares": ((0.0, 0.0), (0.0, 0.0)), "kernel_shares": (0.0, 0.0), "least_bytes": 1},
        pytest.param({"least_bytes": 1 << 40}, marks=slow),
        {"tiles": 2},
        pytest.param({"split_grads": True}, marks=slow),
        {"precompute": True, "hold": False, "hold_backward": False},
        {"fused_batch": 2, "fused_batch_backward": 2},
        {"stack": 2, "split_columns": 2, "split_grads": True, "precompute": True},
    ],
    ids=str,
)
def test_tuning_does_not_change_results(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), **change))
    launch.make_call.cache_clear()
    assert_right(Case((2, 2, 3, 3, 4), (2, 1, 5, 5, 7), 2))
    assert_right(Case((2, 5, 40), (5, 1, 40), 5))
    launch.make_call.cache_clear()


@pytest.mark.parametrize("rows", [16, pytest.param(32, marks=slow)])
def test_tables_are_read_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), depth=16, stages=2, rows=rows))
    launch.make_call.cache_clear()
    assert_right(Case((1, 1, 33, 2, 3), (1, 1, 65, 3, 5), 1))
    launch.make_call.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=slow)], ids=str)
@pytest.mark.parametrize(
    ("case", "chunks"),
    [
        (Case((1, 2, 8, 72), (2, 1, 15, 143), 2), 2),  # a kernel of two parts
        pytest.param(Case((2, 3, 8, 2, 8), (3, 1, 8, 3, 15), 3, ("periodic", "zero", "zero")), 1, marks=slow),
        pytest.param(Case((1, 2, 8192), (2, 1, 8192), 2, causal=True), 2, marks=slow),  # in its place
        (Case((1, 1, 8192), (1, 1, 300), 1), 1),
    ],
    ids=str,
)
def test_outer_transform_by_torch_matmul(
    case: Case, chunks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = launch.tuning
    shares = {"shares": ((0.0, 0.0), (0.0, 0.0)), "kernel_shares": (0.0, 0.0)}
    small = shares | {"least_bytes": 1 if chunks > 1 else 1 << 40}
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), by_library=True, **small))
    launch.make_call.cache_clear()
    with mock.patch.object(blocks, "multiply", wraps=blocks.multiply) as products:
        assert_right(case, dtype)
    # Of signal and kernel, of both signals and the kernel, by chunk; and back, if there are no factors to multiply.
    assert products.call_count == (8 if dtype == torch.bfloat16 else 5) * chunks
    launch.make_call.cache_clear()


def test_unaligned_sizes_do_not_use_torch_matmul() -> None:
    how = torch.bfloat16, torch.device("cpu"), False, (False, False)
    assert launch.Call((1, 1, 72, 72), (5, 5), *how).by_library
    assert not launch.Call((1, 1, 72, 72), (5, 5), torch.float32, *how[1:]).by_library
    assert not launch.Call((1, 1, 72, 70), (5, 5), *how).by_library
    assert not launch.Call((1, 1, 70, 72), (5, 5), *how).by_library
    lines = torch.bfloat16, torch.device("cpu"), True, (False,)
    assert launch.Call((1, 1, 72 * 4096), (5,), *lines).by_library
    assert not launch.Call((1, 1, 72 * 4096 - 8), (5,), *lines).by_library


@pytest.mark.parametrize(
    "name", ["rows of a plane", *(pytest.param(n, marks=slow) for n in ("longer rows of a plane", "line of blocks"))]
)
def test_spectra_of_blocks_by_separate_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), fused_batch=0, fused_batch_backward=0))
    launch.make_call.cache_clear()
    assert_right(LAYOUTS[name], torch.bfloat16)
    launch.make_call.cache_clear()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("least", [1, 100_000, 1 << 40])
def test_chunks_hold_all_channels_within_the_budget(
    least: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = launch.tuning
    small = {"shares": ((0.0, 0.0), (0.0, 0.0)), "kernel_shares": (0.0, 0.0), "least_bytes": least}
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), **small))
    call = launch.Call((2, 23, 5000), (5000,), torch.float32, torch.device("cpu"), True, (False,))
    chunks = list(call.chunks(training))
    assert [c for chunk in chunks for c in range(23)[chunk]] == list(range(23))
    # Outer transforms of one channel: of two signals or, backward, of four, and of its kernel.
    bytes_of_one = 2 * 5 * 1024 * call.dtype.itemsize * (4 if training else 2)
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    assert max(sizes) == 1 or max(sizes) * bytes_of_one <= least


def test_grids_stay_within_gpu_limits() -> None:
    shape = 70_000, 2, 5000
    call = launch.Call(shape, (5000,), torch.float32, torch.device("cpu"), True, (False,))
    call.tuning = replace(call.tuning, outer_programs=1 << 20)
    numbers, each, _ = call.outer_numbers(torch.empty(shape, device="meta"), call.tables[:0])
    assert numbers[0] == 140_000
    assert -(-140_000 // each) <= 65_535


def test_several_kernels_per_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.Call, "tiles", lambda call, channels: (-(-channels // (4 * call.tuning.stack)), 4))
    assert_right(Case((2, 3, 3, 4, 4), (3, 1, 5, 7, 7), 3))


def test_saves_only_input_and_kernel() -> None:
    x, kernel = (t.to(DEVICE).requires_grad_() for t in LAYOUTS["line"].tensors(torch.float32))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        conv(x, kernel, **LAYOUTS["line"].how, method="triton")
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), kernel.data_ptr()}


def test_cost_model_prefers_tensor_cores_where_measured_faster() -> None:
    for shape, points in (((64, 140, 256), (256,)), ((32, 140, 16384), (16384,)), ((64, 140, 32, 32), (63, 63))):
        work = cost.Work.of(shape, (140, 1, *points), tuple(n // 2 for n in points), [False] * len(points))
        seconds = {name: cost.seconds(name, work, "cuda", training=True) for name in ("direct", "fft", "triton")}
        assert min(seconds, key=seconds.__getitem__) == "triton"
    short = cost.Work.of((64, 140, 1024), (140, 1, 5), (2,), [False])
    assert cost.seconds("direct", short, "cuda", True) < cost.seconds("triton", short, "cuda", True)


@pytest.mark.parametrize(
    ("x", "kernel", "says"),
    [
        (torch.ones(1, 2, 8).double(), torch.ones(2, 1, 3).double(), "does not support float64"),
        (torch.ones(1, 2, 8), torch.ones(2, 2, 3), "needs one kernel per channel, got (2, 2) for 2 channels"),
        (torch.ones(1, 2, 8), torch.ones(4, 1, 3), "needs one kernel per channel, got (4, 1) for 2 channels"),
        (torch.ones(1, 1, 4099), torch.ones(1, 1, 3), None),
    ],
)
def test_unsupported_convolutions(x: torch.Tensor, kernel: torch.Tensor, says: str | None) -> None:
    x, kernel = x.to(DEVICE), kernel.to(DEVICE)
    assert obstacle(x, kernel, False, ("zero",)) == says
    if says is not None:
        with pytest.raises(ValueError, match=r"\bmethod must"):
            conv(x, kernel, groups=x.shape[1] // kernel.shape[1], method="triton")


@given(dim=st.integers(1, 3), data=st.data())
def test_plans_are_large_enough(dim: int, data: st.DataObject) -> None:
    lengths = tuple(data.draw(st.integers(1, (2**20, 300, 40)[dim - 1])) for _ in range(dim))
    periodic = tuple(data.draw(st.booleans()) for _ in range(dim))
    reaches = tuple(data.draw(st.integers(0, n)) for n in lengths)
    plan = make_plan(lengths, reaches, periodic)
    assume(plan is not None)
    assert all(a <= b for a, b in zip((plan.rows, plan.cols, plan.m1, plan.m2), plan.tile, strict=True))
    # What is contracted has 16 numbers at least; half as many rows where two parts lie below each other.
    assert plan.tile[0] * (2 if plan.complex else 1) >= 16
    assert min(plan.tile[1:]) >= 16
    # A kernel's rows fit the tile, or are twice as many, which begin in the middle of the circle.
    assert not plan.complex or plan.m1 <= plan.tile[0] or plan.m1 == 2 * plan.tile[0]
    assert plan.rows * plan.cols >= plan.length
    assert not plan.complex or plan.outer * plan.outer_step >= torch.Size(lengths).numel()


def test_long_lines_with_zero_boundary_always_have_a_plan() -> None:
    for length in (1, 63, 64, 784, 4096, 4097, 16_000, 65_536, 10**6, 2**20, 2**20 + 1, 10**7, 2**24):
        assert plan_of((length,), (2 * length,), False, (False,), torch.bfloat16) is not None
    assert plan_of((2**24 + 1,), (3,), False, (False,), torch.bfloat16) is None


def test_tiles_that_do_not_fit_fall_back_to_the_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise launch.TooLarge(300_000, 232_448, "shared memory")

    x, kernel = torch.randn(1, 2, 30, device=DEVICE), torch.randn(2, 1, 30, device=DEVICE, requires_grad=True)
    monkeypatch.setattr(selfcheck, "_refused", set())
    monkeypatch.setattr(launch, "spectral_conv", fail)
    monkeypatch.setattr(launch, "spectral_grads", fail)
    with pytest.warns(UserWarning, match="does not fit this GPU"):
        y = conv(x, kernel, groups=2, method="triton")
    assert y.equal(conv(x, kernel, groups=2, method="fft"))
    (got,) = torch.autograd.grad(y.square().sum(), kernel)  # which warns no more
    (expected,) = torch.autograd.grad(conv(x, kernel, groups=2, method="fft").square().sum(), kernel)
    torch.testing.assert_close(got, expected)

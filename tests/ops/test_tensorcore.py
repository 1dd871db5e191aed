"""Convolution on tensor cores: every kernel against float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfield.ops import conv, conv_reference, cost, tensorcore
from kernelfield.ops.tensorcore import obstacle, plan_of, precision, trust
from kernelfield.ops.tensorcore.plan import make_plan
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, interpreter, launch, poisoned

__all__ = ["interpreter"]

#: rounding allowed, relative to the largest output; the interpreter cuts bfloat16 off where a GPU rounds
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@st.composite
def depthwise(draw: st.DrawFn) -> Case:
    dim = draw(st.integers(1, 3))
    lengths = tuple(draw(st.integers(1 if dim < 3 else 2, (300, 20, 7)[dim - 1])) for _ in range(dim))
    points = tuple(draw(st.integers(1, 2 * n)) for n in lengths)
    causal = dim == 1 and draw(st.booleans())
    boundary = tuple("zero" if causal else draw(st.sampled_from(["zero", "periodic"])) for _ in range(dim))
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    return Case((batch, channels, *lengths), (channels, 1, *points), channels, boundary, causal)


#: one of each layout: upright lines, blocks of a line, rows of a plane, slices of a volume; their sides fill no tile
LAYOUTS = {
    "line": Case((2, 3, 255), (3, 1, 255), 3, causal=True),
    "longer line": Case((2, 1, 1000), (1, 1, 1999), 1),
    "still longer line": Case((1, 1, 1500), (1, 1, 700), 1, causal=True),
    "upright line": Case((1, 1, 2500), (1, 1, 4999), 1),
    "line of blocks": Case((1, 2, 4200), (2, 1, 4200), 2, causal=True),
    "circle": Case((2, 2, 48), (2, 1, 96), 2, "periodic"),
    "circle of blocks": Case((1, 1, 4500), (1, 1, 33), 1, "periodic"),
    "plane": Case((2, 3, 13, 17), (3, 1, 25, 30), 3),
    "tall plane": Case((1, 1, 64, 20), (1, 1, 127, 39), 1),
    "upright plane": Case((1, 1, 60, 40), (1, 1, 119, 79), 1),
    "cylinder": Case((1, 2, 12, 20), (2, 1, 5, 40), 2, ("zero", "periodic")),
    "torus": Case((1, 2, 12, 20), (2, 1, 24, 3), 2, "periodic"),
    "rows of a plane": Case((2, 1, 5, 70), (1, 1, 9, 139), 1),
    "rows of a torus": Case((1, 2, 5, 130), (2, 1, 9, 9), 2, "periodic"),
    "slices": Case((2, 2, 3, 5, 6), (2, 1, 5, 9, 11), 2),
    "slices with kernels of more rows": Case((1, 1, 2, 10, 9), (1, 1, 3, 19, 17), 1),
    "slices of a torus": Case((1, 1, 4, 5, 6), (1, 1, 5, 9, 4), 1, ("periodic", "zero", "periodic")),
}
layouts = pytest.mark.parametrize("case", LAYOUTS.values(), ids=LAYOUTS)


def assert_right(case: Case, dtype: torch.dtype = torch.float32) -> None:
    """Compare output and both gradients with float64, outputs poisoned."""
    tensors = [t.to(DEVICE).requires_grad_() for t in case.tensors(dtype)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    with poisoned():
        y = conv(*tensors, **case.how, method="triton")
        weights = torch.randn(y.shape, dtype=torch.float64).to(y)
        got = [y, *torch.autograd.grad(y, tensors, weights)]
    reference = conv(*exact, **case.how, method="fft")
    expected = [reference, *torch.autograd.grad(reference, exact, weights.double())]
    for a, b, like in zip(got, expected, [tensors[0], *tensors], strict=True):
        assert a.shape == b.shape
        assert a.dtype == like.dtype
        assert (a - b).abs().max() <= ROUNDING[dtype] * b.abs().max().clamp(min=1e-6)


@settings(max_examples=12)
@given(case=depthwise())
def test_any_shape_equals_float64(case: Case) -> None:
    assert_right(case)


@layouts
def test_every_layout_equals_float64(case: Case) -> None:
    assert_right(case)


@pytest.mark.parametrize("name", ["upright line", "upright plane", "slices", "line of blocks"])
def test_every_layout_of_bfloat16_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half precision has layouts of its own, whose errors its rounding would hide.
    monkeypatch.setattr(launch, "plan_of", lambda *args: plan_of(*args[:-1], torch.bfloat16))
    launch.make_call.cache_clear()
    assert_right(LAYOUTS[name])
    launch.make_call.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["line", "upright plane", "slices"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    assert_right(LAYOUTS[name], dtype)


def test_half_precision_of_blocks_of_4096() -> None:
    assert_right(Case((1, 1, 66000), (1, 1, 300), 1, causal=True), torch.bfloat16)


def test_small_case_equals_the_readable_reference() -> None:
    case = Case((2, 3, 9), (3, 1, 14), 3)
    x, kernel = (t.to(DEVICE) for t in case.tensors(torch.float32))
    expected = conv_reference(x.cpu().double(), kernel.cpu().double(), **case.how)
    torch.testing.assert_close(conv(x, kernel, **case.how, method="triton").cpu(), expected.float())


@pytest.mark.parametrize("learned", [0, 1])
def test_one_gradient_alone(learned: int) -> None:
    for name in ("line", "slices"):
        case = LAYOUTS[name]
        tensors = [t.to(DEVICE) for t in case.tensors(torch.float32)]
        tensors[learned].requires_grad_()
        got, expected = (
            torch.autograd.grad(conv(*tensors, **case.how, method=m).square().sum(), tensors[learned])[0]
            for m in ("triton", "fft")
        )
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_derivatives_of_second_order() -> None:
    case = Case((1, 2, 20), (2, 1, 9), 2)
    results = []
    for method in ("triton", "fft"):
        x, kernel = (t.to(DEVICE).requires_grad_() for t in case.tensors(torch.float32))
        (first,) = torch.autograd.grad(
            conv(x, kernel, **case.how, method=method).pow(3).sum(), kernel, create_graph=True
        )
        results.append(torch.autograd.grad(first.square().sum(), (x, kernel)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_strided_and_channels_last() -> None:
    x, kernel = torch.randn(2, 4, 9, 10, device=DEVICE), torch.randn(4, 1, 5, 5, device=DEVICE)
    expected = conv(x, kernel, groups=4, method="triton")
    last = conv(x.to(memory_format=torch.channels_last), kernel, groups=4, method="triton")
    strided = conv(torch.stack([x, x], -1)[..., 0], kernel.flip(-1).flip(-1), groups=4, method="triton")
    assert last.equal(expected)
    assert strided.equal(expected)


def test_no_batch() -> None:
    x, kernel = torch.randn(0, 2, 5, requires_grad=True), torch.randn(2, 1, 4, requires_grad=True)
    x, kernel = x.to(DEVICE), kernel.to(DEVICE)
    y = conv(x, kernel, groups=2, method="triton")
    assert y.shape == (0, 2, 5)
    (gradient,) = torch.autograd.grad(y.sum(), kernel)
    assert (gradient == 0).all()


@pytest.mark.parametrize(
    "change",
    [
        {"shares": ((0.0, 0.0), (0.0, 0.0)), "kernel_shares": (0.0, 0.0), "least_bytes": 1},
        {"least_bytes": 1 << 40},
        {"tiles": 2},
        {"apart": True},
        {"ready": True, "hold": False, "hold_too": False},
        {"few": 2, "few_too": 2},
        {"stack": 2, "columns_apart": 2, "apart": True, "ready": True},
    ],
    ids=str,
)
def test_what_a_launch_chooses_changes_nothing(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), **change))
    launch.make_call.cache_clear()
    assert_right(Case((2, 3, 3, 4, 4), (3, 1, 5, 7, 7), 3))
    assert_right(Case((2, 5, 40), (5, 1, 40), 5))
    launch.make_call.cache_clear()


@pytest.mark.parametrize("rows", [16, 32])
def test_tables_are_read_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), depth=16, stages=2, rows=rows))
    launch.make_call.cache_clear()
    assert_right(Case((2, 1, 33, 2, 3), (1, 1, 65, 3, 5), 1))
    assert_right(Case((1, 1, 17_000), (1, 1, 300), 1))  # with phases
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


def test_grids_are_not_too_large_for_a_gpu() -> None:
    shape = 70_000, 2, 5000
    call = launch.Call(shape, (5000,), torch.float32, torch.device("cpu"), True, (False,))
    call.tuning = replace(call.tuning, outer_programs=1 << 20)
    numbers, each, _ = call.outer_numbers(torch.empty(shape, device="meta"), call.tables[:0])
    assert numbers[0] == 140_000
    assert -(-140_000 // each) <= 65_535


def test_several_kernels_of_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.Call, "tiles", lambda call, channels: (-(-channels // (4 * call.tuning.stack)), 4))
    assert_right(Case((2, 3, 3, 4, 4), (3, 1, 5, 7, 7), 3))


@pytest.mark.parametrize(("setting", "expected"), [("highest", "tf32x3"), ("high", "tf32"), ("medium", "tf32")])
def test_precision_follows_the_setting_of_torch(setting: str, expected: str) -> None:
    with mock.patch.object(torch, "get_float32_matmul_precision", return_value=setting):
        assert precision(torch.float32) == expected
        assert precision(torch.float16) == "tf32"


def test_tf32_rounds_no_worse_than_it_should() -> None:
    case = LAYOUTS["plane"]
    x, kernel = (t.to(DEVICE) for t in case.tensors(torch.float32))
    with mock.patch.object(torch, "get_float32_matmul_precision", return_value="high"):
        got = conv(x, kernel, **case.how, method="triton")
    exact = conv(x.double(), kernel.double(), **case.how, method="fft")
    assert (got - exact).norm() <= 2e-3 * exact.norm()


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with scaled products of float16."""
    monkeypatch.setattr(tensorcore, "SCALED", True)
    monkeypatch.setattr(tensorcore, "UNSCALED", 0)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")


SCALED = ["line", "upright line", "line of blocks", "plane", "upright plane", "slices with kernels of more rows"]


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("kind", ["noise", "constant", "tiny", "huge"])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_products_are_as_precise_as_tf32(name: str, kind: str) -> None:
    case = LAYOUTS[name]
    x, kernel = case.tensors(torch.float32)
    if kind == "constant":  # the largest spectrum there is, beyond the range of float16
        x, kernel = x.abs() + 1e5, kernel.abs() + 1e4
    elif kind == "tiny":
        x, kernel = x * 1e-12, kernel * 1e-9
    elif kind == "huge":
        x, kernel = x * 1e12, kernel * 1e9
    assert relative_errors(case, x, kernel).max() <= 4e-3


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("name", ["line", "plane", "rows of a torus"])
def test_scaled_products_of_small_channels_beside_large_ones(name: str) -> None:
    case = LAYOUTS[name]
    x, kernel = case.tensors(torch.float32)
    x[:, 0] *= 1e6
    kernel[-1] *= 1e6
    assert relative_errors(case, x, kernel).max() <= 2e-3


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize("name", ["line of blocks", "rows of a plane", "slices with kernels of more rows"])
def test_scaled_products_of_few_signals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = launch.tuning
    monkeypatch.setattr(launch, "tuning", lambda *how: replace(usual(*how), few=2, few_too=2))
    launch.make_call.cache_clear()
    case = LAYOUTS[name]
    x, kernel = case.tensors(torch.float32)
    assert relative_errors(case, x * 1e3, kernel * 1e-3).max() <= 2e-3
    launch.make_call.cache_clear()


@pytest.mark.usefixtures("scaled")
def test_scaled_products_of_half_precision() -> None:
    for name in ("line", "slices"):
        assert_right(LAYOUTS[name], torch.float16)


def relative_errors(case: Case, x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Return the errors of output and both gradients, (3, channels)."""
    tensors = [t.to(DEVICE).requires_grad_() for t in (x, kernel)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    with poisoned():
        y = conv(*tensors, **case.how, method="triton")
        weights = torch.randn(y.shape).to(y)
        got = [y, *torch.autograd.grad(y, tensors, weights)]
    reference = conv(*exact, **case.how, method="fft")
    expected = [reference, *torch.autograd.grad(reference, exact, weights.double())]
    errors = []
    for a, b, axis in zip(got, expected, (1, 1, 0), strict=True):
        rest = [d for d in range(a.dim()) if d != axis]
        errors.append((a - b).square().sum(rest).sqrt() / b.square().sum(rest).sqrt())
    return torch.stack(errors).detach()


def test_what_has_the_precision_of_tf32_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tensorcore.scaled(torch.float32, (1024,))  # torch's own setting is "highest"
    assert tensorcore.scaled(torch.float16, (1024,))
    assert not tensorcore.scaled(torch.bfloat16, (1024,))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert tensorcore.scaled(torch.float32, (1024,))
    assert tensorcore.scaled(torch.float32, (32, 8))
    assert not tensorcore.scaled(torch.float32, (256,))
    monkeypatch.setattr(tensorcore, "SCALED", False)
    assert not tensorcore.scaled(torch.float32, (1024,))


@pytest.mark.usefixtures("scaled")
def test_zeros_and_infinities_stay_what_they_are() -> None:
    case = LAYOUTS["line"]
    x, kernel = (t.to(DEVICE) for t in case.tensors(torch.float32))
    x[0, 0], x[1, 1, 7] = 0.0, float("inf")
    with np.errstate(invalid="ignore"):
        y = conv(x, kernel, **case.how, method="triton")
    assert (y[0, 0] == 0).all()
    assert not y[1, 1].isfinite().all()
    others = torch.ones(2, 3, dtype=torch.bool)
    others[1, 1] = False
    assert y[others].isfinite().all()


def test_saves_input_and_kernel_alone() -> None:
    x, kernel = (t.to(DEVICE).requires_grad_() for t in LAYOUTS["line"].tensors(torch.float32))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        conv(x, kernel, **LAYOUTS["line"].how, method="triton")
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), kernel.data_ptr()}


def test_compiles_whole() -> None:
    x, kernel = (t.to(DEVICE).requires_grad_() for t in LAYOUTS["plane"].tensors(torch.float32))

    def loss(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return conv(x, kernel, groups=3, method="triton").square().mean()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for got, expected in zip(
        torch.autograd.grad(compiled(x, kernel), (x, kernel)),
        torch.autograd.grad(loss(x, kernel), (x, kernel)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_choice_for_a_gpu_compiles(dtype: torch.dtype) -> None:
    work = cost.Work.of((64, 140, 1024), (140, 1, 1024), (0,), [False])

    def times(x: torch.Tensor) -> torch.Tensor:
        return x * cost.seconds(cost._on_tensor_cores(x.dtype), work, "cuda", training=True)

    assert 0 < torch.compile(times, fullgraph=True, backend="eager")(torch.ones((), dtype=dtype)) < 0.1


def test_tensor_cores_are_expected_to_win_where_they_were_measured_to() -> None:
    for shape, points in (((64, 140, 256), (256,)), ((32, 140, 16384), (16384,)), ((64, 140, 32, 32), (63, 63))):
        work = cost.Work.of(shape, (140, 1, *points), tuple(n // 2 for n in points), [False] * len(points))
        seconds = {name: cost.seconds(name, work, "cuda", training=True) for name in ("direct", "fft", "triton")}
        assert min(seconds, key=seconds.__getitem__) == "triton"
    short = cost.Work.of((64, 140, 1024), (140, 1, 5), (2,), [False])
    assert cost.seconds("direct", short, "cuda", True) < cost.seconds("triton", short, "cuda", True)


@pytest.mark.parametrize(
    ("x", "kernel", "says"),
    [
        (torch.ones(1, 2, 8).double(), torch.ones(2, 1, 3).double(), "computes no float64"),
        (torch.ones(1, 2, 8), torch.ones(2, 2, 3), "needs one kernel per channel, got (2, 2) for 2 channels"),
        (torch.ones(1, 2, 8), torch.ones(4, 1, 3), "needs one kernel per channel, got (4, 1) for 2 channels"),
        (torch.ones(1, 1, 4099), torch.ones(1, 1, 3), None),
    ],
)
def test_what_it_cannot_do(x: torch.Tensor, kernel: torch.Tensor, says: str | None) -> None:
    assert obstacle(x, kernel, False, ("zero",)) == says
    if says is not None:
        with pytest.raises(ValueError, match="method must be one that can compute this convolution, got 'triton'"):
            conv(x, kernel, groups=x.shape[1] // kernel.shape[1], method="triton")


def test_needs_a_gpu_outside_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x, kernel = torch.ones(1, 1, 8), torch.ones(1, 1, 3)
    assert obstacle(x, kernel, False, ("zero",)) == "needs a CUDA device, got cpu"


def test_without_triton_another_way_is_taken_and_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorcore, "_HAS_TRITON", False)
    x, kernel = torch.ones(1, 1, 8), torch.ones(1, 1, 3)
    assert obstacle(x, kernel, False, ("zero",)) == "needs Triton, which comes with CUDA builds of torch"
    on_gpu = mock.Mock(device=torch.device("cuda"))
    tensorcore._say_what_is_missing.cache_clear()
    with pytest.warns(UserWarning, match="triton is not installed"):
        obstacle(on_gpu, kernel, False, ("zero",))
    obstacle(on_gpu, kernel, False, ("zero",))  # a second warning would be an error


def test_one_method_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["kernelfield.ops.conv"]  # whose name in the package is the function's
    monkeypatch.setattr(module, "_plans", {})
    x, kernel = torch.randn(1, 2, 8, device=DEVICE), torch.randn(2, 1, 3, device=DEVICE)
    for forced in ("direct", "fft", "triton"):
        module._plans.clear()
        monkeypatch.setattr(module, "FORCED", forced)
        assert module._plan(x, kernel, False, "zero", 2, "auto")[1] == forced
    # A dense convolution cannot be done on tensor cores: it is done otherwise.
    assert module._plan(x, torch.randn(2, 2, 3, device=DEVICE), False, "zero", 1, "auto")[1] in ("direct", "fft")
    monkeypatch.setattr(module, "FORCED", "cudnn")
    with pytest.raises(ValueError, match="KERNELFIELD_CONV must be one of"):
        module._plan(x, kernel.clone(), True, "zero", 2, "auto")


@given(dim=st.integers(1, 3), data=st.data())
def test_plans_hold_the_convolution(dim: int, data: st.DataObject) -> None:
    lengths = tuple(data.draw(st.integers(1, (2**20, 300, 40)[dim - 1])) for _ in range(dim))
    periodic = tuple(data.draw(st.booleans()) for _ in range(dim))
    reaches = tuple(data.draw(st.integers(0, n)) for n in lengths)
    plan = make_plan(lengths, reaches, periodic)
    if plan is None:
        return
    assert all(a <= b for a, b in zip((plan.rows, plan.cols, plan.m1, plan.m2), plan.tile, strict=True))
    assert min(plan.tile) >= 16
    assert plan.rows * plan.cols >= plan.length
    assert plan.outer * plan.outer_step >= torch.Size(lengths).numel() if plan.complex else True


def test_long_lines_of_zeros_always_have_a_plan() -> None:
    for length in (1, 63, 64, 784, 4096, 4097, 16_000, 65_536, 10**6, 2**20):
        assert plan_of((length,), (2 * length,), False, (False,), torch.bfloat16) is not None
    assert plan_of((2**20 + 1,), (3,), False, (False,), torch.bfloat16) is None


def test_tiles_that_do_not_fit_are_left_to_the_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise launch.TooLarge(300_000, 232_448, "shared memory")

    x, kernel = torch.randn(1, 2, 30, device=DEVICE), torch.randn(2, 1, 30, device=DEVICE, requires_grad=True)
    monkeypatch.setattr(trust, "_refused", set())
    monkeypatch.setattr(launch, "spectral_conv", fail)
    monkeypatch.setattr(launch, "spectral_grads", fail)
    with pytest.warns(UserWarning, match="does not fit this GPU"):
        y = conv(x, kernel, groups=2, method="triton")
    assert y.equal(conv(x, kernel, groups=2, method="fft"))
    (got,) = torch.autograd.grad(y.square().sum(), kernel)  # which warns no more
    (expected,) = torch.autograd.grad(conv(x, kernel, groups=2, method="fft").square().sum(), kernel)
    torch.testing.assert_close(got, expected)

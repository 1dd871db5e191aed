"""Convolution by FFT: transform sizes, chunks and memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelfield.ops import conv, conv_reference
from kernelfield.ops.conv import fft
from kernelfield.ops.conv.fft import fast_size, transform_sizes, working_dtype
from kernelfield.ops.conv.fft_columns import Columns
from tests.contracts.convolutions import KINDS, Case, assert_matches, cases, kinds
from tests.largest import Largest

if TYPE_CHECKING:
    from collections.abc import Callable


@given(n=st.integers(1, 5000))
def test_fast_sizes_are_the_least_even_products_of_small_primes(n: int) -> None:
    def is_fast(m: int) -> bool:
        if m % 2:
            return False
        for prime in (2, 3, 5):
            while m % prime == 0:
                m //= prime
        return m == 1

    assert fast_size(n) == next(m for m in range(n, 4 * n + 4) if is_fast(m))


def test_transforms_are_padded_by_the_longer_side_of_the_kernel_alone() -> None:
    assert transform_sizes((100, 100), (41, 41), (20, 20), [False, True]) == (fast_size(120), 100)
    assert transform_sizes((100,), (41,), (0,), [False]) == (fast_size(140),)  # causal


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float64, torch.float64)] + [(d, torch.float32) for d in (torch.float32, torch.bfloat16, torch.float16)],
    ids=str,
)
def test_working_dtype(dtype: torch.dtype, expected: torch.dtype) -> None:
    assert working_dtype(torch.ones(1, dtype=dtype)) == expected


@pytest.mark.parametrize("budget", [1, 700])
@kinds
def test_chunks_change_nothing(case: Case, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [t.requires_grad_() for t in case.tensors()]

    def results() -> list[torch.Tensor]:
        y = conv(*tensors, **case.how, method="fft")
        return [y, *torch.autograd.grad(y.square().sum(), tensors)]

    whole = results()
    monkeypatch.setitem(fft.CHUNK_BYTES, "cpu", budget)
    chunked = results()
    assert_matches(case, chunked[0].detach(), *[t.detach() for t in tensors])
    for got, expected in zip(chunked, whole, strict=True):
        torch.testing.assert_close(got, expected)


@given(case=cases(), budget=st.integers(1, 4000), needs=st.sampled_from([(True, True), (True, False), (False, True)]))
def test_columns_equal_the_reference(case: Case, budget: int, needs: tuple[bool, bool]) -> None:
    tensors = [t.requires_grad_(need) for t, need in zip(case.tensors(), needs, strict=True)]
    learned = [t for t in tensors if t.requires_grad]
    with mock.patch.dict(fft.CHUNK_BYTES, {"cpu": budget}):
        y = conv(*tensors, **case.how, method="fft")
        weights = torch.randn_like(y)
        found = torch.autograd.grad(y, learned, weights)
    expected = conv_reference(*tensors, **case.how)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected, learned, weights))


def test_large_planes_and_volumes_are_convolved_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    original = Columns._blocks

    def spy(self: Columns, *tensors: torch.Tensor) -> list[slice]:
        used.append(list(original(self, *tensors)))
        return used[-1]

    monkeypatch.setattr(Columns, "_blocks", spy)
    monkeypatch.setitem(fft.CHUNK_BYTES, "cpu", 4096)
    for lengths in ((24, 40), (6, 9, 8)):
        x, kernel = torch.randn(1, 2, *lengths), torch.randn(2, 1, *lengths)
        conv(x, kernel, groups=2, method="fft")
        assert len(used) == 2  # channels
        assert len(used[0]) > 2
        used.clear()
    conv(torch.randn(1, 2, 4096), torch.randn(2, 1, 4096), groups=2, method="fft")
    assert not used


def test_a_small_budget_really_makes_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = fft._Transform._chunks

    def spy(self: fft._Transform, *args: torch.Tensor) -> list[tuple[slice, list[slice]]]:
        seen.append(original(self, *args))
        return seen[-1]

    monkeypatch.setattr(fft._Transform, "_chunks", spy)
    x, kernel = KINDS["depthwise"].tensors()
    conv(x, kernel, groups=3, method="fft")
    assert seen == []  # one chunk
    monkeypatch.setitem(fft.CHUNK_BYTES, "cpu", 1)
    conv(x, kernel, groups=3, method="fft")
    assert [len(batches) for _, batches in seen[0]] == [2, 2, 2]  # three groups, two signals


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@kinds
def test_backward_keeps_the_input_and_the_kernel_and_no_spectrum(case: Case, dtype: torch.dtype) -> None:
    x, kernel = (t.requires_grad_() for t in case.tensors(dtype))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        conv(x, kernel, **case.how, method="fft")
    assert sum(t.nbytes for t in saved) == x.nbytes + kernel.nbytes
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), kernel.data_ptr()}


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory in use at once during a call, beyond what was in use before it."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    # Without acc_events, torch 2.11 warns that later cycles would clear the events of this one.
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as profile:
        call()
    changes = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(changes, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def test_the_meter_counts_what_is_held_at_once() -> None:
    size = 1 << 20

    def one_after_the_other() -> None:
        for _ in range(5):
            torch.empty(size, dtype=torch.uint8)

    def together() -> None:
        held = [torch.empty(size, dtype=torch.uint8) for _ in range(5)]
        held.clear()

    assert peak_bytes(one_after_the_other) == pytest.approx(size, rel=0.01)
    assert peak_bytes(together) == pytest.approx(5 * size, rel=0.01)


def test_chunks_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernel = torch.randn(8, 16, 4096), torch.randn(16, 1, 4096)
    peaks = []
    for budget in (1 << 40, 1 << 18):
        monkeypatch.setitem(fft.CHUNK_BYTES, "cpu", budget)
        peaks.append(peak_bytes(lambda: conv(x, kernel, groups=16, method="fft")))
    whole, chunked = peaks
    assert whole > 3 * x.nbytes
    assert chunked < 2 * x.nbytes


@pytest.mark.parametrize("space", [(4096,), (64, 64)], ids=["1d", "2d"])
def test_training_takes_less_than_half_the_memory_of_the_plain_formula(space: tuple[int, ...]) -> None:
    dim = len(space)
    axes = tuple(range(2, 2 + dim))
    x = torch.randn(8, 16, *space, requires_grad=True)
    kernel = torch.randn(16, 1, *space, requires_grad=True)
    sizes = [2 * n for n in space]

    def plain() -> torch.Tensor:
        product = torch.fft.rfftn(x, sizes, dim=axes) * torch.fft.rfftn(kernel[:, 0], sizes, dim=axes_of_kernel)
        y = torch.fft.irfftn(product, sizes, dim=axes)
        return y[(..., *(slice((n - 1) // 2, (n - 1) // 2 + n) for n in space))]

    axes_of_kernel = tuple(a - 1 for a in axes)

    def ours() -> torch.Tensor:
        return conv(x, kernel, groups=16, method="fft")

    torch.testing.assert_close(ours(), plain(), atol=1e-3, rtol=1e-3)
    peaks = {}
    for name, formula in (("plain", plain), ("ours", ours)):

        def train(formula: Callable[[], torch.Tensor] = formula) -> None:
            torch.autograd.grad(formula().sum(), [x, kernel])

        peaks[name] = peak_bytes(train)
    assert peaks["ours"] >= x.nbytes  # at least its output
    assert peaks["ours"] < peaks["plain"] / 2


def formula(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Convolve depthwise with centred kernels as one writes it with torch.fft."""
    lengths, points = x.shape[2:], kernel.shape[2:]
    axes, sizes = tuple(range(2, x.dim())), [2 * n for n in lengths]
    product = torch.fft.rfftn(x, sizes, dim=axes) * torch.fft.rfftn(kernel, sizes, dim=axes).squeeze(1)
    y = torch.fft.irfftn(product, sizes, dim=axes)
    return y[(..., *(slice((k - 1) // 2, (k - 1) // 2 + n) for n, k in zip(lengths, points, strict=True)))]


@pytest.mark.parametrize("lengths", [(192, 256), (24, 32, 32)], ids=["plane", "volume"])
@pytest.mark.parametrize("channels", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_columns_take_a_fraction_of_the_formulas_memory(
    channels: int, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fft.CHUNK_BYTES, "cpu", 1 << 14)  # as small beside these signals as it is beside large ones
    tensors = torch.randn(1, channels, *lengths), torch.randn(channels, 1, *(2 * n - 1 for n in lengths))
    x, kernel = (t.requires_grad_() for t in tensors)
    torch.testing.assert_close(conv(x, kernel, groups=channels, method="fft"), formula(x, kernel), atol=2e-3, rtol=1e-3)
    ours = peak_bytes(lambda: torch.autograd.grad(conv(x, kernel, groups=channels, method="fft").sum(), (x, kernel)))
    plain = peak_bytes(lambda: torch.autograd.grad(formula(x, kernel).sum(), (x, kernel)))
    assert ours < (0.36 if channels == 1 else 0.26) * plain


def test_transforms_of_torch_func() -> None:
    x, kernel = torch.randn(2, 3, 16), torch.randn(3, 1, 16, requires_grad=True)

    def loss(kernel: torch.Tensor) -> torch.Tensor:
        return conv(x, kernel, groups=3, method="fft").square().sum()

    (wanted,) = torch.autograd.grad(loss(kernel), kernel)
    torch.testing.assert_close(torch.func.grad(loss)(kernel), wanted, rtol=1e-4, atol=1e-4)
    several = torch.stack([kernel.detach(), 2 * kernel.detach()])
    torch.testing.assert_close(torch.vmap(loss)(several), torch.stack([loss(k) for k in several]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dense", "depthwise", "multiplied depthwise"])
def test_operators_pass_opcheck(name: str) -> None:
    case = KINDS[name]
    x, kernel = (t.requires_grad_() for t in case.tensors())
    how = case.causal, [case.boundary == "periodic"], case.groups
    grad = torch.randn(x.shape[0], kernel.shape[0], x.shape[2], dtype=x.dtype, requires_grad=True)
    torch.library.opcheck(torch.ops.kernelfield.fft_conv.default, (x, kernel, *how))
    torch.library.opcheck(torch.ops.kernelfield.fft_conv_grads.default, (grad, x, kernel, True, True, *how))


@kinds
def test_modes_that_see_operators_change_nothing(case: Case) -> None:
    # Below a mode, operations inside an operator do without what resolves lazy conjugates.
    x, kernel = case.tensors()
    boundaries = case.boundary if isinstance(case.boundary, tuple) else (case.boundary,) * (x.dim() - 2)
    how = True, True, case.causal, [name == "periodic" for name in boundaries], case.groups
    grad = torch.randn(x.shape[0], kernel.shape[0], *x.shape[2:], dtype=x.dtype)
    with Largest():
        got = torch.ops.kernelfield.fft_conv_grads(grad, x, kernel, *how)
    torch.testing.assert_close(got, torch.ops.kernelfield.fft_conv_grads(grad, x, kernel, *how))


@pytest.mark.parametrize("lengths", [(200,), (15, 14)])
def test_dense_products_of_spectra_never_hold_all_indices(lengths: tuple[int, ...]) -> None:
    batch, inputs, outputs = 24, 20, 22
    x = torch.randn(batch, inputs, *lengths, requires_grad=True)
    kernel = torch.randn(outputs, inputs, *lengths, requires_grad=True)
    with Largest() as seen:
        y = conv(x, kernel, method="fft")
        torch.autograd.grad(y.square().sum(), (x, kernel))
    pairs = max(batch * inputs, batch * outputs, outputs * inputs)
    frequencies = 2 ** len(lengths) * math.prod(lengths)
    # Spectra of signals and of kernels, real and imaginary; batch by outputs by inputs would be 20 times that.
    assert seen.elements <= 1.5 * pairs * frequencies < batch * outputs * inputs * math.prod(lengths) / 2


@pytest.mark.parametrize("method", ["fft_conv", "matmul_conv"])
@pytest.mark.parametrize("causal", [True, False])
def test_operators_return_tensors_that_compiled_code_can_read(method: str, causal: bool) -> None:
    """A view with an offset is not aligned, even where it is contiguous: one signal of one channel."""
    operators = torch.ops.kernelfield
    x, kernel = torch.randn(1, 1, 40), torch.randn(1, 1, 23)
    how = causal, [False], 1
    y = getattr(operators, method)(x, kernel, *how)
    for t in (y, *getattr(operators, f"{method}_grads")(torch.randn_like(y), x, kernel, True, True, *how)):
        assert t.storage_offset() == 0
        assert t.is_contiguous()
    got = torch.compile(lambda x, k: conv(x, k, causal=causal, method=method.removesuffix("_conv")) * 2)(x, kernel)
    torch.testing.assert_close(got, 2 * conv(x, kernel, causal=causal, method="direct"), rtol=1e-4, atol=1e-4)

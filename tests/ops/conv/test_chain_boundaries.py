"""Layouts of large signals: every boundary per axis, rectangular, one channel, batches of one, any strides."""

from __future__ import annotations

import itertools
import sys
import warnings
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield.ops.architectures import ARCHITECTURES
from kernelfield.ops.conv import cost, triton
from kernelfield.ops.conv.triton import plan_of
from kernelfield.ops.conv.triton.plan import MOST_VALUES, make_plan
from tests.contracts.convolutions import Case
from tests.ops.conv.test_chain import layout, small
from tests.ops.interpreted import DEVICE, assert_right, conv, interpreter, launch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["interpreter", "small"]

NAMES = ("zero", "periodic")
#: signal and kernel for each number of axes: sides differ, and kernels are shorter, longer than a period, or even
SHAPES = {
    1: [((1, 1, 1024), (1, 1, 1300)), ((2, 3, 1100), (3, 1, 200))],
    2: [((1, 1, 6, 70), (1, 1, 11, 100)), ((2, 1, 70, 6), (1, 1, 30, 8))],
    3: [((1, 1, 3, 5, 40), (1, 1, 4, 9, 50)), ((2, 2, 6, 4, 33), (2, 1, 5, 3, 33))],
}
#: those of the default run; the others take minutes in the interpreter
FAST = {(1, 0, ("zero",)), (2, 0, ("periodic", "zero")), (2, 1, ("zero", "periodic"))}
FAST |= {(3, 0, ("zero", "periodic", "zero"))}


def cases() -> list[object]:
    found = []
    for dim, shapes in SHAPES.items():
        for i, (x, kernel) in enumerate(shapes):
            for names in itertools.product(NAMES, repeat=dim):
                marks = () if (dim, i, names) in FAST else pytest.mark.slow
                case = Case(x, kernel, kernel[0], names)
                found.append(pytest.param(case, marks=marks, id=f"{'×'.join(map(str, x))} {' '.join(names)}"))
    return found


@pytest.mark.parametrize("case", cases())
@pytest.mark.usefixtures("small")
def test_every_boundary(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = layout(case)
    if plan is None:
        pytest.skip("a periodic axis of this length has no layout, and uses the FFT")
    if DEVICE == "cuda":  # in float32 these layouts need more shared memory than a GPU has
        assert_right(case, torch.bfloat16)
        return
    for module in (launch, sys.modules[plan_of.__module__]):
        monkeypatch.setattr(module, "plan_of", lambda *args, **limits: plan_of(*args[:-1], torch.bfloat16, **limits))
    assert_right(case)


def strided(shape: Sequence[int], how: str) -> torch.Tensor:
    """Return a tensor of this shape whose strides are not those of a contiguous one."""
    if how == "transposed":
        return draw(*shape[:-2], shape[-1], shape[-2]).mT
    if how == "every other":
        return draw(*shape[:-1], 2 * shape[-1])[..., ::2]
    if how == "expanded":
        return draw(1, *shape[1:]).expand(shape)
    return draw(shape[0], 2 * shape[1], *shape[2:])[:, : shape[1]]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, torch.bfloat16)


@pytest.mark.parametrize("how", ["transposed", "every other", "expanded", "channels of more"])
@pytest.mark.usefixtures("small")
def test_strides_change_nothing(how: str) -> None:
    case = Case((2, 2, 6, 70), (2, 1, 11, 139), 2)
    assert layout(case) is not None
    found = []
    for contiguous in (False, True):
        torch.manual_seed(0)
        x, kernel, grad = (strided(s, how) for s in (case.x, case.kernel, case.x))
        if contiguous:
            x, kernel, grad = (t.contiguous() for t in (x, kernel, grad))
        else:
            assert not x.is_contiguous()
        x, kernel = x.detach().requires_grad_(), kernel.detach().requires_grad_()
        y = conv(x, kernel, **case.how, method="triton")
        found.append((y, *torch.autograd.grad(y, (x, kernel), grad)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("lengths", [(16384, 65536), (8192, 65536), (3000, 500, 2000), (1 << 25,)], ids=str)
def test_signals_that_32_bits_cannot_index_have_no_layout(lengths: tuple[int, ...]) -> None:
    assert make_plan(lengths, tuple(n - 1 for n in lengths), (False,) * len(lengths)) is None


@pytest.mark.parametrize("lengths", [(1 << 24,), (4096, 4096), (256, 256, 256), (512, 512, 512)], ids=str)
def test_the_largest_layouts_stay_within_32_bits(lengths: tuple[int, ...]) -> None:
    plan = make_plan(lengths, tuple(n - 1 for n in lengths), (False,) * len(lengths))
    assert plan is not None
    assert 2 * plan.outer * plan.m1 * plan.m2 < MOST_VALUES


class _Gpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def choose(shape: tuple[int, ...], points: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> str:
    x = torch.empty(shape, dtype=dtype, device="meta").as_subclass(_Gpu)
    kernel = torch.empty(shape[1], 1, *points, dtype=dtype, device="meta")
    return cost.cheapest(x, kernel, False, ("zero",) * len(points))


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "unavailable", lambda _: None)
    monkeypatch.setattr(triton, "architecture_of", lambda _: ARCHITECTURES[9, 0])
    monkeypatch.setattr(triton, "_announced", set())


@pytest.mark.usefixtures("h200")
def test_a_long_shape_without_a_layout_uses_the_fft_and_says_so_once() -> None:
    with pytest.warns(UserWarning, match=r"no tile layout for signals of \(33554432,\).*FFT, which is slower"):
        assert choose((1, 2, 1 << 25), (1 << 25,)) == "fft"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose((1, 2, 1 << 25), (1 << 25,)) == "fft"
        assert choose((1, 2, 1 << 24), ((1 << 25) - 1,)) == "triton"


@pytest.mark.usefixtures("h200")
def test_full_precision_is_told_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    with pytest.warns(UserWarning, match=r"in float32; bfloat16 has one, and float32 under .*'high'"):
        assert choose((1, 2, 2048, 2048), (4095, 4095), torch.float32) == "fft"


@pytest.mark.usefixtures("h200")
def test_under_autocast_the_dtype_of_the_computation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals in float32 that are convolved in bfloat16 have its layouts, without a warning."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose((1, 2, 2048, 2048), (4095, 4095), torch.float32) == "triton"
        assert choose((1, 2, 2048, 2048), (4095, 4095), torch.float64) == "fft"


@pytest.mark.usefixtures("h200")
def test_short_shapes_without_a_layout_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose((8, 2, 1009, 1), (2017, 1))
        choose((8, 2, 7), (13,))


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 6), (12, 0)], ids=str)
def test_smaller_gpus_run_everything_and_say_once_what_is_slower(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "unavailable", lambda _: None)
    monkeypatch.setattr(triton, "architecture_of", lambda _: ARCHITECTURES[capability])
    monkeypatch.setattr(triton, "_announced", set())
    shapes = [((8, 4, n), (n,)) for n in (64, 784, 1024, 4096, 16_000, 1 << 20)]
    shapes += [((2, 4, n, n), (2 * n - 1,) * 2) for n in (32, 64, 128, 256, 1024)]
    shapes += [((1, 2, n, n, n), (2 * n - 1,) * 3) for n in (16, 32, 64)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen = [choose(*shape) for shape in shapes * 2]
    assert set(chosen) <= {"direct", "fft", "triton"}
    lines = [str(w.message) for w in caught]
    assert len(lines) <= 1
    if capability < (8, 0):
        assert "triton" not in chosen
        assert f"sm_{capability[0]}{capability[1]}" in lines[0]
        assert "long convolutions use the FFT, which is slower" in lines[0]
    else:
        assert "triton" in chosen

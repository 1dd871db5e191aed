"""What every way to convolve promises. A new method names itself and inherits the tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelfield.ops import conv, conv_reference
from kernelfield.testing import assert_causal, assert_compiles, assert_exports, assert_translation_equivariant

#: longest axis that is drawn, by number of axes: the reference meets every pair of points
LONGEST = {1: 13, 2: 7, 3: 4}
#: rounding allowed, relative to the sum of absolute products
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-10}

# One test inherited by several classes is what this check warns of; nothing is stored for them to mix up.
inherited = settings(suppress_health_check=[HealthCheck.differing_executors])


@dataclass(frozen=True)
class Case:
    """Shapes and arguments of one convolution."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int = 1
    boundary: str | tuple[str, ...] = "zero"
    causal: bool = False

    @property
    def how(self) -> dict[str, Any]:
        return {"groups": self.groups, "boundary": self.boundary, "causal": self.causal}

    def tensors(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x, kernel = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (self.x, self.kernel))
        return x.to(dtype), kernel.to(dtype)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dim = draw(st.integers(1, 3))
    lengths = tuple(draw(st.integers(1, LONGEST[dim])) for _ in range(dim))
    groups, fan_in, fan_out = (draw(st.integers(1, 3)) for _ in range(3))
    causal = dim == 1 and draw(st.booleans())
    kinds = ["zero", "valid"] if causal else ["zero", "periodic", "valid"]
    boundary = tuple(draw(st.sampled_from(kinds)) for _ in range(dim))
    points = tuple(
        draw(st.integers(1, n if name == "valid" else 2 * n)) for n, name in zip(lengths, boundary, strict=True)
    )
    x = (draw(st.integers(1, 3)), groups * fan_in, *lengths)
    return Case(x, (groups * fan_out, fan_in, *points), groups, boundary, causal)


#: one of each kind, for what is too slow to draw
KINDS = {
    "dense": Case((2, 3, 5), (2, 3, 4)),
    "depthwise": Case((2, 3, 5), (3, 1, 9), groups=3),
    "multiplied depthwise": Case((1, 2, 4), (4, 1, 3), groups=2),
    "grouped": Case((2, 4, 4), (2, 2, 3), groups=2),
    "causal": Case((2, 2, 5), (3, 2, 5), causal=True),
    "periodic, twice as long": Case((1, 2, 4), (2, 2, 8), boundary="periodic"),
    "plane": Case((1, 2, 3, 4), (2, 1, 5, 2), groups=2),
    "cylinder": Case((1, 1, 3, 4), (2, 1, 3, 5), boundary=("periodic", "zero")),
    "valid": Case((2, 3, 6), (2, 3, 4), boundary="valid"),
    "valid, causal": Case((2, 2, 5), (3, 2, 3), boundary="valid", causal=True),
    "valid and zero": Case((1, 2, 4, 3), (2, 1, 3, 2), groups=2, boundary=("valid", "zero")),
    "space": Case((1, 2, 2, 3, 2), (1, 2, 3, 2, 1)),
}
kinds = pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)


def assert_matches(case: Case, got: torch.Tensor, x: torch.Tensor, kernel: torch.Tensor) -> None:
    expected = conv_reference(x.double(), kernel.double(), **case.how)
    scale = conv_reference(x.double().abs(), kernel.double().abs(), **case.how).max()
    assert got.shape == expected.shape
    assert got.dtype == x.dtype
    assert (got - expected).abs().max() <= ROUNDING[x.dtype] * scale


DTYPES = "float32, float64, bfloat16, float16"
SIGNAL = "(batch, channels, *space) with 1 to 3 spatial axes"
#: x and kernel, where they are not a good pair, the other arguments, and the error's type and what it says
BAD_ARGUMENTS = [
    (torch.ones(1, 2, 8).long(), None, {}, TypeError, f"x must be one of {DTYPES}, got torch.int64"),
    (
        None,
        torch.ones(2, 2, 3).to(torch.complex64),
        {},
        TypeError,
        f"kernel must be one of {DTYPES}, got torch.complex64",
    ),
    (
        None,
        torch.ones(2, 2, 3).double(),
        {},
        TypeError,
        "kernel must have the dtype of x, torch.float32, got torch.float64",
    ),
    ([[[1.0]]], None, {}, TypeError, "x must be a torch.Tensor, got list"),
    (None, "kernel", {}, TypeError, "kernel must be a torch.Tensor, got str"),
    (torch.ones(2, 8), None, {}, ValueError, f"x must have shape {SIGNAL}, got (2, 8)"),
    (
        torch.ones(1, 2, 2, 2, 2, 2),
        None,
        {},
        ValueError,
        f"x must have shape {SIGNAL}, got (1, 2, 2, 2, 2, 2)",
    ),
    (
        None,
        torch.ones(2, 2, 3, 3),
        {},
        ValueError,
        "kernel must have shape (out, in / groups, *points) with 1 spatial axes like x, got (2, 2, 3, 3)",
    ),
    (
        None,
        torch.ones(2, 3, 3),
        {},
        ValueError,
        "kernel must have in / groups = 2 / 1 = 2 input channels, got 3",
    ),
    (None, None, {"groups": 2}, ValueError, "kernel must have in / groups = 2 / 2 = 1 input channels, got 2"),
    (
        None,
        None,
        {"groups": 3},
        ValueError,
        "groups must divide the channels of x (2) and of the output (2), got 3",
    ),
    (None, None, {"groups": 0}, ValueError, "groups must be an int of at least 1, got 0"),
    (None, None, {"groups": -1}, ValueError, "groups must be an int of at least 1, got -1"),
    (None, None, {"groups": 1.0}, TypeError, "groups must be an int, got 1.0"),
    (None, None, {"causal": 1}, TypeError, "causal must be True or False, got 1"),
    (
        torch.ones(1, 2, 8, 8),
        torch.ones(2, 2, 3, 3),
        {"causal": True},
        ValueError,
        "causal must be False for a signal with 2 spatial axes, got True",
    ),
    (
        None,
        None,
        {"causal": True, "boundary": "periodic"},
        ValueError,
        "boundary must be 'zero' if causal is True",
    ),
    (
        None,
        None,
        {"boundary": "reflect"},
        ValueError,
        "boundary must be one of 'zero', 'periodic', 'valid', got 'reflect'",
    ),
    (
        None,
        None,
        {"boundary": ("zero", "zero")},
        ValueError,
        "boundary must be a name or 1 names, one per spatial axis, got ('zero', 'zero')",
    ),
    (None, None, {"boundary": 3}, TypeError, "boundary must be"),
    (
        None,
        torch.ones(2, 2, 17),
        {},
        ValueError,
        "kernel must have at most twice as many points as x along each axis, got 17 for 8 along",
    ),
    (
        None,
        torch.ones(2, 2, 9),
        {"boundary": "valid"},
        ValueError,
        "kernel must have at most as many points as x along an axis with boundary 'valid', got 9 for 8 along",
    ),
    (
        torch.ones(1, 2, 0),
        None,
        {},
        ValueError,
        "x and kernel must not be empty, got lengths 0 and 3 along spatial axis 0",
    ),
    (
        None,
        torch.ones(2, 2, 0),
        {},
        ValueError,
        "x and kernel must not be empty, got lengths 8 and 0 along spatial axis 0",
    ),
    (torch.ones(1, 0, 8), torch.ones(2, 0, 3), {}, ValueError, "x "),
    (None, torch.ones(0, 2, 3), {}, ValueError, "kernel "),
]


class ConvContract:
    """Tests of one method; a subclass sets its name."""

    method: ClassVar[str]

    def conv(self, x: torch.Tensor, kernel: torch.Tensor, **how: Any) -> torch.Tensor:
        return conv(x, kernel, method=self.method, **how)

    @inherited
    @given(case=cases(), seed=st.integers(0, 99))
    def test_equals_the_reference_in_float64(self, case: Case, seed: int) -> None:
        x, kernel = case.tensors(seed=seed)
        assert_matches(case, self.conv(x, kernel, **case.how), x, kernel)

    @inherited
    @given(case=cases(), seed=st.integers(0, 99))
    def test_equals_the_reference_in_float32(self, case: Case, seed: int) -> None:
        x, kernel = case.tensors(torch.float32, seed)
        assert_matches(case, self.conv(x, kernel, **case.how), x, kernel)

    @inherited
    @given(case=cases())
    def test_gradients_are_those_of_the_reference(self, case: Case) -> None:
        tensors = [t.requires_grad_() for t in case.tensors()]
        ours, theirs = self.conv(*tensors, **case.how), conv_reference(*tensors, **case.how)
        weights = torch.randn_like(ours)
        for got, expected in zip(
            torch.autograd.grad(ours, tensors, weights),
            torch.autograd.grad(theirs, tensors, weights),
            strict=True,
        ):
            torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)

    @kinds
    def test_gradcheck(self, case: Case) -> None:
        tensors = [t.requires_grad_() for t in case.tensors()]
        assert torch.autograd.gradcheck(lambda x, k: self.conv(x, k, **case.how), tensors)

    @kinds
    def test_gradgradcheck(self, case: Case) -> None:
        tensors = [t.requires_grad_() for t in case.tensors()]
        assert torch.autograd.gradgradcheck(lambda x, k: self.conv(x, k, **case.how), tensors)

    @pytest.mark.parametrize("learned", ["x", "kernel"])
    def test_gradients_of_one_argument_alone(self, learned: str) -> None:
        tensors = dict(zip(("x", "kernel"), KINDS["grouped"].tensors(), strict=True))
        tensors[learned].requires_grad_()
        how = KINDS["grouped"].how

        def values(t: torch.Tensor) -> torch.Tensor:
            return self.conv(**{**tensors, learned: t}, **how)

        assert torch.autograd.gradcheck(values, tensors[learned])
        assert torch.autograd.gradgradcheck(values, tensors[learned])

    @kinds
    def test_strides_do_not_count(self, case: Case) -> None:
        x, kernel = case.tensors()
        expected = self.conv(x, kernel, **case.how)
        strided = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in (x, kernel)]
        sliced = [torch.stack([t, t], dim=-1)[..., 0] for t in (x, kernel)]
        for other in (strided, sliced):
            torch.testing.assert_close(self.conv(*other, **case.how), expected)

    def test_broadcast_inputs(self) -> None:
        x, kernel = torch.randn(1, 1, 6).expand(3, 2, 6), torch.randn(1, 1, 3).expand(2, 2, 3)
        torch.testing.assert_close(self.conv(x, kernel), self.conv(x.contiguous(), kernel.contiguous()))

    @pytest.mark.parametrize(("name", "form"), [("plane", torch.channels_last), ("space", torch.channels_last_3d)])
    def test_channels_last(self, name: str, form: torch.memory_format) -> None:
        case = KINDS[name]
        x, kernel = case.tensors()
        x, kernel = (t.repeat(2, *[1] * (t.dim() - 1)) for t in (x, kernel))
        expected = self.conv(x, kernel, **case.how)
        got = self.conv(x.to(memory_format=form), kernel.to(memory_format=form), **case.how)
        torch.testing.assert_close(got, expected)

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_one_of_everything(self, dim: int) -> None:
        case = Case((1, 1, *[3] * dim), (1, 1, *[1] * dim))
        x, kernel = case.tensors()
        torch.testing.assert_close(self.conv(x, kernel), x * kernel.item())

    def test_no_batch(self) -> None:
        x = torch.randn(0, 2, 5, requires_grad=True)
        kernel = torch.randn(3, 2, 4, requires_grad=True)
        y = self.conv(x, kernel)
        assert y.shape == (0, 3, 5)
        y.sum().backward()
        assert (kernel.grad == 0).all()
        assert x.grad.shape == x.shape

    def test_leaves_its_arguments_alone(self) -> None:
        x, kernel = KINDS["depthwise"].tensors()
        before = x.clone(), kernel.clone()
        x.requires_grad_()
        kernel.requires_grad_()
        self.conv(x, kernel, groups=3).square().sum().backward()
        assert x.equal(before[0])
        assert kernel.equal(before[1])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @kinds
    def test_half_precision_is_kept(self, case: Case, dtype: torch.dtype) -> None:
        tensors = [t.requires_grad_() for t in case.tensors(dtype)]
        got = self.conv(*tensors, **case.how)
        assert got.dtype == dtype
        exact = [t.detach().double() for t in tensors]
        scale = conv_reference(*[t.abs() for t in exact], **case.how).max()
        assert (got - conv_reference(*exact, **case.how)).abs().max() < 4 * torch.finfo(dtype).eps * scale
        gradients = torch.autograd.grad(got.sum(), tensors)
        assert [g.dtype for g in gradients] == [dtype, dtype]
        assert all(g.isfinite().all() for g in gradients)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast_gives_its_dtype(self, dtype: torch.dtype) -> None:
        tensors = [t.requires_grad_() for t in KINDS["grouped"].tensors(torch.float32)]
        with torch.autocast("cpu", dtype=dtype):
            y = self.conv(*tensors, groups=2)
            mixed = self.conv(tensors[0], tensors[1].to(dtype), groups=2)
        assert y.dtype == mixed.dtype == dtype
        assert (y.float() - self.conv(*tensors, groups=2)).abs().max() < 0.1
        gradients = torch.autograd.grad(y.sum(), tensors)
        assert [g.dtype for g in gradients] == [torch.float32, torch.float32]

    def test_autocast_leaves_float64_alone(self) -> None:
        x, kernel = KINDS["dense"].tensors()
        expected = self.conv(x, kernel)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = self.conv(x, kernel)
        assert got.dtype == torch.float64
        assert got.equal(expected)

    @kinds
    def test_compiles(self, case: Case) -> None:
        tensors = [t.requires_grad_() for t in case.tensors(torch.float32)]
        assert_compiles(lambda x, k: self.conv(x, k, **case.how), *tensors, atol=1e-5)

    @pytest.mark.parametrize("name", ["dense", "depthwise", "causal", "periodic, twice as long", "cylinder", "valid"])
    def test_exports_with_any_length_and_batch(self, name: str) -> None:
        case = KINDS[name]
        kernel = case.tensors(torch.float32)[1]
        # Without a boundary there are no outputs below the kernel's length, and from one to several is another graph.
        least = case.kernel[-1] + 1 if case.boundary == "valid" else 0
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=least)
        axis = len(case.x) - 1

        def signal(batch: int, length: int) -> torch.Tensor:
            return torch.randn(batch, *case.x[1:-1], length)

        assert_exports(
            lambda x: self.conv(x, kernel, **case.how),
            (signal(3, 16),),
            ({0: batch, axis: length},),
            [(signal(2, 16),), (signal(5, 23),), (signal(4, 40),)],
            atol=1e-5,
        )

    def test_exports_with_a_kernel_as_long_as_the_input(self) -> None:
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length")

        def signals(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.randn(batch, 2, length), torch.randn(2, 1, length)

        assert_exports(
            lambda x, k: self.conv(x, k, groups=2, causal=True),
            signals(3, 16),
            ({0: batch, 2: length}, {2: length}),
            [signals(2, 9), signals(5, 40)],
            atol=1e-5,
        )

    def test_is_causal(self) -> None:
        kernel = torch.randn(3, 2, 9)
        assert_causal(lambda x: self.conv(x, kernel, causal=True), torch.randn(2, 2, 9))
        with pytest.raises(AssertionError, match="the output at time 0 changes"):
            assert_causal(lambda x: self.conv(x, kernel), torch.randn(2, 2, 9))

    def test_commutes_with_shifts(self) -> None:
        kernel = torch.randn(3, 2, 5, 4)
        assert_translation_equivariant(lambda x: self.conv(x, kernel), torch.randn(1, 2, 6, 5), (2, -3))
        assert_translation_equivariant(
            lambda x: self.conv(x, kernel, boundary="periodic"),
            torch.randn(1, 2, 6, 5),
            (2, -3),
            periodic=True,
        )

    @pytest.mark.parametrize(
        ("x", "kernel", "how", "error", "says"),
        BAD_ARGUMENTS,
    )
    def test_bad_arguments(self, x: Any, kernel: Any, how: dict[str, Any], error: type[Exception], says: str) -> None:
        x = torch.ones(1, 2, 8) if x is None else x
        kernel = torch.ones(2, 2, 3) if kernel is None else kernel
        with pytest.raises(error, match=re.escape(says)):
            self.conv(x, kernel, **how)

"""The contract of a convolution method. A new method names itself and inherits the tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelfield.ops import conv, conv_reference
from kernelfield.testing import assert_causal, assert_compiles, assert_exports, assert_translation_equivariant

#: longest axis that is drawn, by number of axes: the reference visits every pair of points
LONGEST = {1: 13, 2: 7, 3: 4}
#: rounding allowed, relative to the sum of absolute products
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-10}

# Hypothesis warns of a test that several classes inherit; no examples are stored that they could mix up.
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
def cases(draw: st.DrawFn, depthwise: bool = False) -> Case:
    dim = draw(st.integers(1, 3))
    lengths = tuple(draw(st.integers(1, LONGEST[dim])) for _ in range(dim))
    groups, fan_in, fan_out = (draw(st.integers(1, 3)) if i == 0 or not depthwise else 1 for i in range(3))
    causal = dim == 1 and draw(st.booleans())
    kinds = ["zero", "valid"] if causal else ["zero", "periodic", "valid"]
    boundary = tuple(draw(st.sampled_from(kinds)) for _ in range(dim))
    points = tuple(
        draw(st.integers(1, n if name == "valid" else 2 * n)) for n, name in zip(lengths, boundary, strict=True)
    )
    x = (draw(st.integers(1, 3)), groups * fan_in, *lengths)
    return Case(x, (groups * fan_out, fan_in, *points), groups, boundary, causal)


#: one convolution of each kind, for tests that are too slow to draw them
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


def exact(case: Case, x: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the reference in float64, and the largest sum of absolute products."""
    x, kernel = (t.detach().cpu().double() for t in (x, kernel))
    return conv_reference(x, kernel, **case.how), conv_reference(x.abs(), kernel.abs(), **case.how).max()


def assert_matches(case: Case, got: torch.Tensor, x: torch.Tensor, kernel: torch.Tensor) -> None:
    """Compare with the reference in float64."""
    expected, scale = exact(case, x, kernel)
    assert got.shape == expected.shape
    assert got.dtype == x.dtype
    assert (got - expected).abs().max() <= ROUNDING[x.dtype] * scale


kinds = pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)

#: x and kernel, where they are not a good pair, the other arguments, the error's type and the argument that it names
BAD_ARGUMENTS = [
    (torch.ones(1, 2, 8).long(), None, {}, TypeError, "x"),
    (None, torch.ones(2, 2, 3).to(torch.complex64), {}, TypeError, "kernel"),
    (None, torch.ones(2, 1, 3).double(), {"groups": 2}, TypeError, "kernel"),
    ([[[1.0]]], None, {}, TypeError, "x"),
    (None, "kernel", {}, TypeError, "kernel"),
    (torch.ones(2, 8), None, {}, ValueError, "x"),
    (torch.ones(1, 2, 2, 2, 2, 2), None, {}, ValueError, "x"),
    (None, torch.ones(2, 2, 3, 3), {}, ValueError, "kernel"),
    (None, torch.ones(2, 3, 3), {}, ValueError, "kernel"),
    (None, None, {"groups": 2}, ValueError, "kernel"),
    (None, None, {"groups": 3}, ValueError, "groups"),
    (None, None, {"groups": 0}, ValueError, "groups"),
    (None, None, {"groups": -1}, ValueError, "groups"),
    (None, None, {"groups": 1.0}, TypeError, "groups"),
    (None, None, {"causal": 1}, TypeError, "causal"),
    (torch.ones(1, 2, 8, 8), torch.ones(2, 2, 3, 3), {"causal": True}, ValueError, "causal"),
    (None, None, {"causal": True, "boundary": "periodic"}, ValueError, "boundary"),
    (None, None, {"boundary": "reflect"}, ValueError, "boundary"),
    (None, None, {"boundary": ("zero", "zero")}, ValueError, "boundary"),
    (None, None, {"boundary": 3}, TypeError, "boundary"),
    (None, torch.ones(2, 2, 17), {}, ValueError, "kernel"),
    (None, torch.ones(2, 2, 9), {"boundary": "valid"}, ValueError, "kernel"),
    (torch.ones(1, 2, 0), None, {}, ValueError, "x"),
    (None, torch.ones(2, 2, 0), {}, ValueError, "x and kernel"),
    (torch.ones(1, 0, 8), torch.ones(2, 0, 3), {}, ValueError, "x"),
    (None, torch.ones(0, 2, 3), {}, ValueError, "x and kernel"),
]


#: rows, columns and kernel of planes on which torch's own convolution returns wrong gradients, or crashes, on some CPUs
LONG_KERNELS = [(21, 6, (41, 11)), (11, 17, (21, 1)), (10, 13, (19, 5)), (6, 21, (11, 41))]
#: kinds that are compiled by default
COMPILED = ("dense", "causal")


class ConvContract:
    """Tests that every method passes. A subclass names its method, and what it computes if that is not everything."""

    method: ClassVar[str]
    #: the most precise dtype of the method
    precise: ClassVar[torch.dtype] = torch.float64
    #: whether the method computes depthwise convolutions alone
    depthwise: ClassVar[bool] = False
    device: ClassVar[str] = "cpu"
    #: rounding allowed, relative to the sum of absolute products
    rounding: ClassVar[dict[torch.dtype, float]] = ROUNDING

    @pytest.fixture(params=KINDS.values(), ids=KINDS)
    def case(self, request: pytest.FixtureRequest) -> Case:
        """One convolution of each kind; a subclass may override it."""
        found: Case = request.param
        return found

    @property
    def usual(self) -> Case:
        """A convolution for tests that need only one."""
        return KINDS["depthwise" if self.depthwise else "grouped"]

    def conv(self, x: torch.Tensor, kernel: torch.Tensor, **how: Any) -> torch.Tensor:
        return conv(x, kernel, method=self.method, **how)

    def tensors(self, case: Case, dtype: torch.dtype | None = None, seed: int = 0) -> list[torch.Tensor]:
        """Return signal and kernel, as leaves of a graph."""
        return [t.to(self.device).requires_grad_() for t in case.tensors(dtype or self.precise, seed)]

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(self.device)

    def assert_equals_the_reference(self, data: st.DataObject, dtype: torch.dtype) -> None:
        case = data.draw(cases(self.depthwise))
        x, kernel = self.tensors(case, dtype, data.draw(st.integers(0, 99)))
        got, expected, scale = self.conv(x, kernel, **case.how), *exact(case, x, kernel)
        assert got.shape == expected.shape
        assert got.dtype == x.dtype
        assert (got.cpu() - expected).abs().max() <= self.rounding[dtype] * scale

    def assert_gradients_are_those_of_the_reference(self, case: Case, dtype: torch.dtype | None = None) -> None:
        tensors = self.tensors(case, dtype)
        ours = self.conv(*tensors, **case.how)
        weights = self.noise(*ours.shape).to(ours)
        double = [t.detach().cpu().double().requires_grad_() for t in tensors]
        theirs = conv_reference(*double, **case.how)
        found = torch.autograd.grad(ours, tensors, weights)
        for got, expected in zip(found, torch.autograd.grad(theirs, double, weights.cpu().double()), strict=True):
            allowed = 10 * self.rounding[dtype or self.precise] * expected.abs().max().clamp(min=1.0)
            assert (got.cpu() - expected).abs().max() <= allowed

    @inherited
    @given(data=st.data())
    def test_equals_the_reference_in_float64(self, data: st.DataObject) -> None:
        if self.precise != torch.float64:
            pytest.skip("the method does not support float64")
        self.assert_equals_the_reference(data, torch.float64)

    @inherited
    @given(data=st.data())
    def test_equals_the_reference_in_float32(self, data: st.DataObject) -> None:
        self.assert_equals_the_reference(data, torch.float32)

    @inherited
    @given(data=st.data())
    def test_gradients_are_those_of_the_reference(self, data: st.DataObject) -> None:
        self.assert_gradients_are_those_of_the_reference(data.draw(cases(self.depthwise)))

    @inherited
    @given(data=st.data())
    def test_gradients_are_those_of_the_reference_in_float32(self, data: st.DataObject) -> None:
        self.assert_gradients_are_those_of_the_reference(data.draw(cases(self.depthwise)), torch.float32)

    @pytest.mark.parametrize(("rows", "columns", "kernel"), LONG_KERNELS)
    @pytest.mark.parametrize("channels", [3, 16])
    def test_gradients_of_kernels_longer_than_the_plane(
        self, rows: int, columns: int, kernel: tuple[int, int], channels: int
    ) -> None:
        groups = channels if self.depthwise else 1
        case = Case((2, channels, rows, columns), (channels, channels // groups, *kernel), groups=groups)
        self.assert_gradients_are_those_of_the_reference(case, torch.float32)

    def test_gradcheck(self, case: Case) -> None:
        if self.precise != torch.float64:
            pytest.skip("finite differences need float64")
        assert torch.autograd.gradcheck(lambda x, k: self.conv(x, k, **case.how), self.tensors(case))

    def test_gradgradcheck(self, case: Case) -> None:
        if self.precise != torch.float64:
            pytest.skip("finite differences need float64")
        # Every entry is compared with the reference below; here a random direction will do.
        assert torch.autograd.gradgradcheck(
            lambda x, k: self.conv(x, k, **case.how), self.tensors(case), fast_mode=True
        )

    def test_second_derivatives_are_those_of_the_reference(self, case: Case) -> None:
        results = []
        for function, tensors in (
            (self.conv, self.tensors(case)),
            (conv_reference, [t.requires_grad_() for t in case.tensors()]),
        ):
            y = function(*tensors, **case.how)
            first = torch.autograd.grad(y.pow(3).sum(), tensors, create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), tensors)
            results.append([t.cpu().double() for t in second])
        for got, expected in zip(*results, strict=True):
            assert (got - expected).abs().max() <= 100 * self.rounding[self.precise] * expected.abs().max()

    @pytest.mark.parametrize("learned", [0, 1], ids=["x", "kernel"])
    def test_gradients_of_one_argument_alone(self, learned: int) -> None:
        case = self.usual
        tensors = self.tensors(case)
        both = torch.autograd.grad(self.conv(*tensors, **case.how).pow(2).sum(), tensors)
        tensors[1 - learned] = tensors[1 - learned].detach()
        (alone,) = torch.autograd.grad(self.conv(*tensors, **case.how).pow(2).sum(), tensors[learned])
        torch.testing.assert_close(alone, both[learned])

    def test_strides_do_not_matter(self, case: Case) -> None:
        x, kernel = (t.detach() for t in self.tensors(case))
        expected = self.conv(x, kernel, **case.how)
        strided = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in (x, kernel)]
        sliced = [torch.stack([t, t], dim=-1)[..., 0] for t in (x, kernel)]
        for other in (strided, sliced):
            torch.testing.assert_close(self.conv(*other, **case.how), expected)

    def test_broadcast_inputs(self) -> None:
        x, kernel = self.noise(1, 1, 6).expand(3, 2, 6), self.noise(1, 1, 3).expand(2, 1, 3)
        expected = self.conv(x.contiguous(), kernel.contiguous(), groups=2)
        torch.testing.assert_close(self.conv(x, kernel, groups=2), expected)

    @pytest.mark.parametrize(("dim", "form"), [(2, torch.channels_last), (3, torch.channels_last_3d)])
    def test_channels_last(self, dim: int, form: torch.memory_format) -> None:
        x, kernel = self.noise(2, 4, *[3] * dim), self.noise(4, 1, *[3] * dim)
        expected = self.conv(x, kernel, groups=4)
        got = self.conv(x.to(memory_format=form), kernel.to(memory_format=form), groups=4)
        torch.testing.assert_close(got, expected)

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_every_size_is_one(self, dim: int) -> None:
        x, kernel = (t.detach() for t in self.tensors(Case((1, 1, *[3] * dim), (1, 1, *[1] * dim))))
        torch.testing.assert_close(self.conv(x, kernel), x * kernel)

    def test_empty_batch(self) -> None:
        x, kernel = (self.noise(*shape).requires_grad_() for shape in ((0, 2, 5), (2, 1, 4)))
        y = self.conv(x, kernel, groups=2)
        assert y.shape == (0, 2, 5)
        gradients = torch.autograd.grad(y.sum(), (x, kernel))
        assert gradients[0].shape == x.shape
        assert (gradients[1] == 0).all()

    def test_does_not_modify_its_arguments(self) -> None:
        x, kernel = self.tensors(KINDS["depthwise"])
        before = x.detach().clone(), kernel.detach().clone()
        self.conv(x, kernel, groups=3).square().sum().backward()
        assert x.equal(before[0])
        assert kernel.equal(before[1])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_half_precision_is_kept(self, case: Case, dtype: torch.dtype) -> None:
        tensors = self.tensors(case, dtype)
        got = self.conv(*tensors, **case.how)
        assert got.dtype == dtype
        expected, scale = exact(case, *tensors)
        assert (got.cpu() - expected).abs().max() < 4 * torch.finfo(dtype).eps * scale
        gradients = torch.autograd.grad(got.sum(), tensors)
        assert [g.dtype for g in gradients] == [dtype, dtype]
        assert all(g.isfinite().all() for g in gradients)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast_sets_the_output_dtype(self, dtype: torch.dtype) -> None:
        case = self.usual
        tensors = self.tensors(case, torch.float32)
        with torch.autocast(self.device, dtype=dtype):
            y = self.conv(*tensors, **case.how)
            mixed = self.conv(tensors[0], tensors[1].to(dtype), **case.how)
        assert y.dtype == mixed.dtype == dtype
        assert (y.float() - self.conv(*tensors, **case.how)).abs().max() < 0.1
        gradients = torch.autograd.grad(y.sum(), tensors)
        assert [g.dtype for g in gradients] == [torch.float32, torch.float32]

    def test_autocast_keeps_float64(self) -> None:
        if self.precise != torch.float64:
            pytest.skip("the method does not support float64")
        x, kernel = self.tensors(self.usual)
        expected = self.conv(x, kernel, **self.usual.how)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            got = self.conv(x, kernel, **self.usual.how)
        assert got.dtype == torch.float64
        assert got.equal(expected)

    @pytest.mark.parametrize(
        "case",
        [pytest.param(c, marks=() if n in COMPILED else pytest.mark.slow) for n, c in KINDS.items()],
        ids=KINDS,
    )
    def test_compiles(self, case: Case) -> None:
        tensors = self.tensors(case, torch.float32)
        assert_compiles(lambda x, k: self.conv(x, k, **case.how), *tensors, atol=1e-5)

    @pytest.mark.parametrize("boundary", ["zero", "valid"])
    def test_exports_with_any_length_and_batch(self, boundary: str) -> None:
        case = replace(self.usual, boundary=boundary)
        self.assert_exports(case)

    def assert_exports(self, case: Case) -> None:
        """Export with a dynamic batch and length, and compare."""
        kernel = case.tensors(torch.float32)[1].to(self.device)
        # With "valid" there are no outputs below the kernel's length, and one output makes another graph than several.
        least = case.kernel[-1] + 1 if case.boundary == "valid" else 0
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=least)
        signals = [(self.noise(n, *case.x[1:-1], m),) for n, m in ((3, 16), (2, 16), (5, 23), (4, 40))]
        dynamic = ({0: batch, len(case.x) - 1: length},)
        assert_exports(lambda x: self.conv(x, kernel, **case.how), signals[0], dynamic, signals[1:], atol=1e-5)

    def test_exports_with_a_kernel_as_long_as_the_input(self) -> None:
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length")

        def signals(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
            return self.noise(batch, 2, length), self.noise(2, 1, length)

        assert_exports(
            lambda x, k: self.conv(x, k, groups=2, causal=True),
            signals(3, 16),
            ({0: batch, 2: length}, {2: length}),
            [signals(2, 9), signals(5, 40)],
            atol=1e-5,
        )

    def test_is_causal(self) -> None:
        kernel = self.noise(2, 1, 9)
        assert_causal(lambda x: self.conv(x, kernel, groups=2, causal=True), self.noise(2, 2, 9))
        with pytest.raises(AssertionError, match="the output at time 0 changes"):
            assert_causal(lambda x: self.conv(x, kernel, groups=2), self.noise(2, 2, 9))

    @pytest.mark.parametrize("boundary", ["zero", "periodic"])
    def test_commutes_with_shifts(self, boundary: str) -> None:
        kernel = self.noise(2, 1, 5, 4)

        def function(x: torch.Tensor) -> torch.Tensor:
            return self.conv(x, kernel, groups=2, boundary=boundary)

        periodic = boundary == "periodic"
        assert_translation_equivariant(function, self.noise(1, 2, 6, 5), (2, -3), periodic=periodic)

    @pytest.mark.parametrize(("x", "kernel", "how", "error", "name"), BAD_ARGUMENTS)
    def test_bad_arguments(self, x: Any, kernel: Any, how: dict[str, Any], error: type[Exception], name: str) -> None:
        x = torch.ones(1, 2, 8) if x is None else x
        kernel = torch.ones(2, 2, 3) if kernel is None else kernel
        x, kernel = (t.to(self.device) if isinstance(t, torch.Tensor) else t for t in (x, kernel))
        with pytest.raises(error, match=rf"^{name}\b"):
            self.conv(x, kernel, **how)

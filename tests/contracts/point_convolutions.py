"""The contract of a method of ``point_conv``. A new method names itself and inherits the tests."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelfield import CKConv
from kernelfield.fields import MAGNet
from kernelfield.ops import conv, limit_point_memory, point_conv

from .point_cases import KINDS, Case, Waves, cases, reference, relative

# Hypothesis warns of a test that several classes inherit; no examples are stored that they could mix up.
inherited = settings(max_examples=6, suppress_health_check=[HealthCheck.differing_executors])

#: changes of the arguments of a good call, the error's type and the argument that it names
BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": torch.ones(2, 3, 9).long()}, TypeError, "x"),
    ({"x": torch.ones(3, 9)}, ValueError, "x"),
    ({"x": torch.ones(2, 3, 8)}, ValueError, "coords"),
    ({"coords": torch.ones(2, 9)}, ValueError, "coords"),
    ({"coords": torch.ones(2, 9, 2)}, ValueError, "size"),
    ({"coords": torch.ones(3, 9, 1)}, ValueError, "coords"),
    ({"coords": torch.ones(2, 9, 1).long()}, TypeError, "coords"),
    ({"size": torch.ones(2)}, ValueError, "size"),
    ({"size": 4.0}, TypeError, "size"),
    ({"kernel": 3}, TypeError, "kernel"),
    ({"kernel": lambda offsets: offsets.expand(*offsets.shape[:-1], 5)}, ValueError, "kernel"),
    ({"groups": 2}, ValueError, "groups"),
    ({"out_channels": 4}, ValueError, "groups"),
    ({"causal": 1}, TypeError, "causal"),
    ({"mask": torch.ones(2, 9)}, TypeError, "mask"),
    ({"mask": torch.ones(2, 8) > 0}, ValueError, "mask"),
    ({"at": torch.ones(2, 4)}, ValueError, "at"),
    ({"at": torch.ones(2, 4, 2)}, ValueError, "at"),
    ({"at": torch.ones(3, 4, 1)}, ValueError, "at"),
    ({"at": torch.ones(2, 4, 1).long()}, TypeError, "at"),
]


class PointConvContract:
    """Tests that every method passes. A subclass names its method, and what it supports if that is not everything."""

    method: ClassVar[str]
    #: error of the outputs in float64, relative to outputs and inputs; that of the gradients, relative to them
    error: ClassVar[float] = 1e-10
    gradient_error: ClassVar[float] = 1e-10
    #: whether only smooth kernels are convolved, and others refused; a few training steps in space are too short
    smooth: ClassVar[bool] = False
    #: whether there may be no points, or no queries
    empty: ClassVar[bool] = True
    #: kinds that are not compared by default, since they take long
    slow: ClassVar[tuple[str, ...]] = ()
    #: further arguments of ``point_conv``, in all tests and in those of gradients
    options: ClassVar[dict[str, Any]] = {}
    gradient_options: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        """Run a test for every kind of convolution."""
        slow = metafunc.cls.slow
        if metafunc.function.__name__ == "test_gradients_are_those_of_the_reference":
            kinds = {n: c for n, c in KINDS.items() if not (metafunc.cls.smooth and n == "short in space")}
            marked = [pytest.param(c, marks=pytest.mark.slow if n in slow else (), id=n) for n, c in kinds.items()]
            metafunc.parametrize("case", marked)
        if metafunc.function.__name__ == "test_points_on_a_grid_give_the_convolution_on_the_grid":
            grids = {"line": (1, 1, False), "causal": (1, 2, True), "plane": (2, 2, False), "space": (3, 1, False)}
            marked = [pytest.param(*k, marks=pytest.mark.slow if n in slow else (), id=n) for n, k in grids.items()]
            metafunc.parametrize(("dim", "groups", "causal"), marked)

    def conv(self, x: Tensor, coords: Tensor, kernel: Any, size: Tensor, **how: Any) -> Tensor:
        return point_conv(x, coords, kernel, size, **{"method": self.method, **self.options, **how})

    def layer(self, x: Tensor, coords: Tensor, **options: Any) -> CKConv:
        """Return a layer that convolves points like these by the method; seeds make its weights."""
        torch.manual_seed(0)
        field = partial(MAGNet, hidden=8)
        return CKConv(3, 3, size=100, field=field, depthwise=True, point_method=self.method, **options)

    def assert_equal(self, case: Case) -> None:
        arguments, how = case.build()
        with torch.no_grad():
            found, wanted = self.conv(*arguments, **how), reference(*arguments, **how)
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        # A sum that cancels has a larger relative error than its terms: compare with the values too.
        scale = max(float(wanted.norm()), float(arguments[0].norm()))
        assert float((found - wanted).norm()) <= self.error * scale

    @inherited
    @given(data=st.data())
    def test_equals_the_reference(self, data: st.DataObject) -> None:
        self.assert_equal(data.draw(cases(short_in_space=not self.smooth)))

    def test_gradients_are_those_of_the_reference(self, case: Case) -> None:
        gradients = []
        for function in (reference, self.conv):
            (x, coords, kernel, size), how = case.build()
            inputs = [x, coords, *([how["at"]] if case.queries else []), *kernel.parameters()]
            for tensor in inputs:
                tensor.requires_grad_()
            options = self.gradient_options if function == self.conv else {}
            y = function(x, coords, kernel, size, **options, **how)
            found = list(torch.autograd.grad(y.square().sum(), inputs))
            if how["mask"] is not None:
                found[0] = found[0] * how["mask"].unsqueeze(1)  # the values of padding are zero and no parameters
            gradients.append(found)
        for wanted, found in zip(*gradients, strict=True):
            assert relative(found, wanted) < self.gradient_error

    def test_points_on_a_grid_give_the_convolution_on_the_grid(self, dim: int, groups: int, causal: bool) -> None:
        n = {1: 40, 2: 9, 3: 4}[dim]
        kernel, x = Waves(dim, 4 // groups, 50.0, 0.0), torch.randn(1, 2, *(n,) * dim, dtype=torch.float64)
        lags = torch.arange(0 if causal else 1 - n, n, dtype=torch.float64)
        sampled = kernel(torch.cartesian_prod(*[lags] * dim).view(-1, dim) / 50).mT
        wanted = conv(x, sampled.reshape(2, 2 // groups, *(len(lags),) * dim), groups=groups, causal=causal).flatten(2)
        places = torch.cartesian_prod(*[torch.arange(n, dtype=torch.float64)] * dim).view(1, -1, dim)
        size, how = torch.full((dim,), 50.0, dtype=torch.float64), {"groups": groups, "causal": causal}
        y = self.conv(x.flatten(2), places, kernel, size, out_channels=2, **how)
        assert relative(y, wanted) < self.error

    @pytest.mark.parametrize("causal", [False, True])
    def test_queries_at_the_points_change_nothing(self, causal: bool) -> None:
        arguments, how = Case(masked=True, causal=causal).build()
        wanted = self.conv(*arguments, **how)
        order = torch.randperm(40)
        found = self.conv(*arguments, **{**how, "at": arguments[1][:, order]})
        assert relative(found, wanted[..., order]) < self.error

    def test_queries_may_be_shared_by_all_samples(self) -> None:
        arguments, how = Case(queries=9).build()
        at = how.pop("at")[:1]
        assert relative(self.conv(*arguments, at=at, **how), reference(*arguments, at=at, **how)) < self.error

    def test_unequal_numbers_of_points(self) -> None:
        """Padding, at coordinates far away, changes nothing of its own sample and of no other."""
        (x, coords, kernel, size), how = Case(queries=12, batch=3).build()
        counts = torch.tensor([[40], [17], [1]])
        mask = torch.arange(40) < counts
        far = torch.where(mask.unsqueeze(-1), coords, 1e3)
        together = self.conv(x * mask.unsqueeze(1), far, kernel, size, **{**how, "mask": mask})
        for i, n in enumerate(counts.flatten().tolist()):
            one = {**how, "at": how["at"][i : i + 1]}
            alone = reference(x[i : i + 1, :, :n], coords[i : i + 1, :n], kernel, size, **one)
            assert relative(together[i : i + 1], alone) < 3 * self.error

    def test_a_mask_may_hide_everything(self) -> None:
        (x, coords, kernel, size), how = Case(queries=12, causal=True).build()
        mask = torch.tensor([[True], [False]]).expand(2, 40)
        y = self.conv(x * mask.unsqueeze(1), coords, kernel, size, **{**how, "mask": mask})
        assert (y[1] == 0).all()
        assert (y[0] != 0).all()

    @pytest.mark.parametrize("causal", [False, True])
    def test_points_may_have_equal_coordinates(self, causal: bool) -> None:
        (x, coords, kernel, size), how = Case(causal=causal).build()
        coords[:, 10:20] = coords[:, :1]
        wanted = reference(x, coords, kernel, size, **how)
        assert relative(self.conv(x, coords, kernel, size, **how), wanted) < 3 * self.error

    def test_later_points_have_no_effect_on_causal_outputs(self) -> None:
        (x, coords, kernel, size), how = Case(points=60, causal=True).build()
        times = coords.sort(dim=1).values
        first = (torch.arange(60) < 30).double()
        y, early = (self.conv(x * weight, times, kernel, size, **how) for weight in (1.0, first))
        assert torch.allclose(y[..., :30], early[..., :30], atol=1e-11, rtol=0)
        assert not torch.allclose(y[..., 30:], early[..., 30:])

    def test_outputs_before_the_first_point_of_a_causal_convolution_are_zero(self) -> None:
        (x, coords, kernel, size), how = Case(shared=True, causal=True, seed=1).build()
        how["at"] = coords.min() - torch.tensor([[[5.0], [0.5]]], dtype=torch.float64)
        assert self.conv(x, coords, kernel, size, **how).abs().max() < 1e-12

    def test_single_precision(self) -> None:
        case = Case(points=200, shared=True, causal=True, seed=2)
        (x, coords, kernel, size), how = case.build(torch.float32)
        y = self.conv(x, coords, kernel, size, **how)
        assert y.dtype == torch.float32
        assert relative(y, reference(x.double(), coords.double(), kernel, size.double(), **how)) < 1e-3

    def test_half_precision(self) -> None:
        x, coords = torch.randn(1, 3, 80), 80 * torch.rand(1, 80, 1)
        layer = self.layer(x, coords, causal=False)
        wanted = layer(x, coords=coords)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(x, coords=coords)
        found.sum().backward()
        assert relative(found.float(), wanted) < 1e-2
        # Times that are equal in half precision still differ.
        layer, x, coords = layer.bfloat16(), x.bfloat16(), coords.round() + 0.25
        late = layer(x, coords=coords + 4096)
        assert late.dtype == torch.bfloat16
        assert relative(late.float(), layer(x, coords=coords).float()) < 2e-2

    @pytest.mark.parametrize("density", ["estimate", "given"])
    def test_density(self, density: str) -> None:
        """A sample of density ρ counts 1/ρ times."""
        x, coords = torch.randn(2, 3, 50, dtype=torch.float64), 90 * torch.rand(2, 50, 1, dtype=torch.float64)
        given = 0.5 + torch.rand(2, 50, dtype=torch.float64)
        layer = self.layer(x, coords, causal=False, bias=False).double()
        weight = 1 / given
        if density == "estimate":
            ordered, order = coords[..., 0].sort(dim=1)
            gap = torch.cat(
                [ordered[:, 1:2] - ordered[:, :1], ordered.diff(dim=1), ordered[:, -1:] - ordered[:, -2:-1]], 1
            )
            weight = torch.zeros_like(ordered).scatter(1, order, (gap[:, 1:] + gap[:, :-1]) / 2)
        wanted = layer(x * weight.unsqueeze(1), coords=coords)
        found = layer(x, coords=coords, density=given if density == "given" else "estimate")
        assert relative(found, wanted) < 1e-10

    def test_chunks_change_nothing(self) -> None:
        for case in (KINDS["causal"], replace(KINDS["plane"], long=False)):
            arguments, how = case.build()
            wanted = self.conv(*arguments, **how)
            with limit_point_memory(1 << 16):
                assert relative(self.conv(*arguments, **how), wanted) < 1e-10

    def test_does_not_modify_its_arguments(self) -> None:
        (x, coords, kernel, size), how = Case(queries=7, masked=True).build()
        tensors = [x, coords, size, how["mask"], how["at"]]
        before = [t.clone() for t in tensors]
        self.conv(x, coords, kernel, size, **how)
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))

    def test_kernels_that_jump(self) -> None:
        (x, coords, _, size), how = Case(points=50, queries=20).build()

        def jump(offsets: Tensor) -> Tensor:
            return torch.sign(offsets - 0.1).expand(*offsets.shape[:-1], 3)

        if self.smooth:
            with pytest.raises(ValueError, match=rf"\bmethod .*{self.method}"):
                self.conv(x, coords, jump, size, **how)
        else:
            assert relative(self.conv(x, coords, jump, size, **how), reference(x, coords, jump, size, **how)) < 1e-10

    def test_no_points_and_no_queries(self) -> None:
        (x, coords, kernel, size), how = Case(queries=5).build()
        calls = [((x[..., :0], coords[:, :0]), how["at"], 5), ((x, coords), how["at"][:, :0], 0)]
        for (values, places), at, count in calls:
            if not self.empty:
                with pytest.raises(ValueError, match=r"\bcoords must"):
                    self.conv(values, places, kernel, size, **{**how, "at": at})
            else:
                y = self.conv(values, places, kernel, size, **{**how, "at": at})
                assert torch.equal(y, y.new_zeros(2, 3, count))

    def test_no_samples(self) -> None:
        if not self.empty:
            pytest.skip("the method needs at least one sample")
        (x, coords, kernel, size), how = Case(queries=5).build()
        assert self.conv(x[:0], coords[:0], kernel, size, **{**how, "at": how["at"][:0]}).shape == (0, 3, 5)

    @pytest.mark.parametrize("name", ["coords", "at"])
    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_coordinates_must_be_finite(self, name: str, value: float) -> None:
        (x, coords, kernel, size), how = Case(queries=5).build()
        (coords if name == "coords" else how["at"])[1, 3] = value
        with pytest.raises(ValueError, match=rf"\b{name}\b.* must be finite"):
            self.conv(x, coords, kernel, size, **how)

    def test_coordinates_of_padding_may_be_anything(self) -> None:
        (x, coords, kernel, size), how = Case(queries=5).build()
        mask = torch.arange(40).expand(2, -1) < 30
        wanted = self.conv(x * mask.unsqueeze(1), coords, kernel, size, **{**how, "mask": mask})
        coords = coords.masked_fill(~mask.unsqueeze(-1), torch.nan)
        found = self.conv(x * mask.unsqueeze(1), coords, kernel, size, **{**how, "mask": mask})
        assert torch.equal(found, wanted)

    @pytest.mark.parametrize(("change", "error", "name"), BAD_ARGUMENTS)
    def test_bad_arguments(self, change: dict[str, Any], error: type[Exception], name: str) -> None:
        def kernel(offsets: Tensor) -> Tensor:
            return torch.cos(offsets[..., :1]).expand(*offsets.shape[:-1], 3)

        good = {"x": torch.ones(2, 3, 9), "coords": torch.rand(2, 9, 1), "kernel": kernel, "size": torch.ones(1) * 3}
        with pytest.raises(error, match=rf"^{name}\b"):
            self.conv(**{**good, "out_channels": 3, "groups": 3, **change})

    def test_only_a_line_has_a_past(self) -> None:
        arguments, how = Case(dim=2).build()
        with pytest.raises(ValueError, match=r"^causal must"):
            self.conv(*arguments, **{**how, "causal": True})

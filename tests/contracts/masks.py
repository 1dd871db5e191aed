"""What every mask promises. A new mask names its class and inherits the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from kernelfield.testing import assert_compiles, assert_exports, assert_state_dict_round_trip

if TYPE_CHECKING:
    from kernelfield.masks import Mask


class MaskContract:
    """Tests of one mask; a subclass sets the attributes below."""

    #: the class
    mask: ClassVar[type[Mask]]
    #: keyword arguments it is built with, none of which depends on the number of axes
    arguments: ClassVar[dict[str, Any]] = {}
    #: name of the argument, and of the parameter, that sets the window's size
    extent: ClassVar[str]
    #: values of it from almost closed to just inside the domain, with the arguments above
    inside: ClassVar[tuple[float, ...]]
    #: a value of it with which the window is wider than the domain
    beyond: ClassVar[float]
    #: bad keyword arguments: name, value, and the error's type and what it says
    bad_arguments: ClassVar[list[tuple[str, Any, type[Exception], str]]]

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if "bad_argument" in metafunc.fixturenames:
            cases = metafunc.cls.bad_arguments
            metafunc.parametrize("bad_argument", cases, ids=[f"{name}={value!r}" for name, value, *_ in cases])
        if "inside_value" in metafunc.fixturenames:
            metafunc.parametrize("inside_value", metafunc.cls.inside)

    def build(self, dim: int = 2, **changes: Any) -> Mask:
        return self.mask(dim, **{**self.arguments, self.extent: self.inside[-1], **changes})

    def size_parameter(self, mask: Mask) -> torch.nn.Parameter:
        return getattr(mask, self.extent)

    @staticmethod
    def points(mask: Mask, count: int = 2000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return points of a region half again as wide as the domain."""
        low, high = mask.domain
        middle, width = (low + high) / 2, high - low
        return middle + 1.5 * width * (torch.rand(count, mask.dim, dtype=dtype) - 0.5)

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_shape_and_range(self, dim: int, dtype: torch.dtype) -> None:
        mask = self.build(dim).to(dtype)
        values = mask(self.points(mask, 30, dtype).reshape(5, 1, 6, dim))
        assert values.shape == (5, 1, 6)
        assert values.dtype == dtype
        assert ((values >= 0) & (values <= 1)).all()
        assert (values > 0).any()

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_is_zero_exactly_outside_its_support(self, dim: int, dtype: torch.dtype, inside_value: float) -> None:
        mask = self.build(dim, **{self.extent: inside_value}).to(dtype)
        begin, end = mask.domain
        low, high = mask.support()
        assert low.shape == high.shape == (dim,)
        assert (begin <= low).all()
        assert (high <= end).all()
        # Points on both sides of each edge, in and about the support: few would fall there by chance.
        coords = low + (torch.rand(2000, dim, dtype=dtype) * 1.5 - 0.25) * (high - low)
        coords = coords[((coords >= begin) & (coords <= end)).all(dim=-1)]
        slack = 1e-5 * (high - low)  # the root is rounded
        within = ((coords > low + slack) & (coords < high - slack)).all(dim=-1)
        without = ((coords < low - slack) | (coords > high + slack)).any(dim=-1)
        assert within.any()
        assert without.any()
        values = mask(coords)
        assert (values[without] == 0).all()
        assert (values[within] >= mask.threshold**dim * (1 - 1e-5)).all()

    def test_the_value_at_the_edge_is_the_threshold(self) -> None:
        mask = self.build(1).double()
        _, high = mask.support()
        assert mask.profile(high[None]).item() == pytest.approx(mask.threshold, rel=1e-6)

    def test_cropping_to_the_support_loses_nothing(self, dtype: torch.dtype) -> None:
        mask = self.build(2).to(dtype)
        begin, end = mask.domain
        axis = begin + (torch.arange(40, dtype=dtype) + 0.5) / 40 * (end - begin)
        coords = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
        low, high = mask.support()
        rows, columns = (((axis >= low[d]) & (axis <= high[d])).nonzero()[:, 0] for d in range(2))
        part = mask(coords[rows][:, columns])
        assert part.numel() < coords[..., 0].numel()
        padded = torch.zeros(40, 40, dtype=dtype)
        padded[rows[:, None], columns] = part
        torch.testing.assert_close(padded, mask(coords))
        assert ((padded == 0) == (mask(coords) == 0)).all()

    @pytest.mark.parametrize("n", [1, 33, 1000])
    def test_size_counts_the_points_it_keeps(self, n: int, inside_value: float) -> None:
        mask = self.build(1, **{self.extent: inside_value}).double()
        begin, end = mask.domain
        coords = begin + (torch.arange(n, dtype=torch.float64) + 0.5) / n * (end - begin)
        kept = (mask(coords[:, None]) > 0).sum()
        assert mask.size(n).shape == (1,)
        # An interval holds its length in points, give or take one at its ends.
        assert (mask.size(n) - kept).abs() <= 1

    def test_size_has_the_gradient_of_finite_differences(self, inside_value: float) -> None:
        mask = self.build(2, **{self.extent: inside_value}).double()
        names, parameters = zip(*mask.named_parameters(), strict=True)

        def size(*parameters: torch.Tensor) -> torch.Tensor:
            state = dict(zip(names, parameters, strict=True))
            return torch.func.functional_call(_Size(mask), {f"mask.{k}": v for k, v in state.items()}, (33,))

        assert torch.autograd.gradcheck(size, parameters)

    def test_at_its_limit_it_can_still_shrink(self) -> None:
        mask = self.build(2, **{self.extent: self.beyond})
        size = mask.size(33)
        assert size.equal(torch.full((2,), 33.0))
        size.sum().backward()
        assert (self.size_parameter(mask).grad > 0).all()

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_gradients_reach_every_parameter(self, dim: int, dtype: torch.dtype) -> None:
        mask = self.build(dim).to(dtype)
        mask(self.points(mask, dtype=dtype)).square().sum().backward()
        for name, parameter in mask.named_parameters():
            assert parameter.grad.isfinite().all(), name
            assert (parameter.grad != 0).all(), name

    def test_gradcheck(self) -> None:
        mask = self.build(2).double()
        names, parameters = zip(*mask.named_parameters(), strict=True)
        coords = self.points(mask, 20, torch.float64).requires_grad_()

        def values(coords: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(mask, dict(zip(names, parameters, strict=True)), (coords,))

        assert torch.autograd.gradcheck(values, (coords, *parameters))

    @pytest.mark.parametrize("dim", [2, 3])
    def test_is_the_product_over_its_axes(self, dim: int) -> None:
        extents = [self.inside[d % len(self.inside)] for d in range(dim)]
        mask = self.build(dim, **{self.extent: extents})
        coords = self.points(mask)
        expected = torch.stack([self.build(1, **{self.extent: v})(coords[:, d : d + 1]) for d, v in enumerate(extents)])
        torch.testing.assert_close(mask(coords), expected.prod(dim=0))
        sizes = [self.build(1, **{self.extent: v}).size(33).item() for v in extents]
        assert mask.size(33).tolist() == pytest.approx(sizes)

    def test_state_dict_round_trip(self) -> None:
        assert_state_dict_round_trip(self.build, self.points(self.build(), 50))

    def test_compiles(self) -> None:
        mask = self.build()
        assert_compiles(mask, self.points(mask, 50).requires_grad_())
        assert_compiles(_Size(mask), 33)

    def test_exports_with_any_number_of_points(self) -> None:
        mask = self.build()
        points = torch.export.Dim("points")
        others = [(self.points(mask, n),) for n in (5, 31)]
        assert_exports(mask, (self.points(mask, 9),), ({0: points},), others)

    @pytest.mark.parametrize(
        ("coords", "error", "says"),
        [
            (torch.rand(5, 3), ValueError, r"coords .*got \(5, 3\)"),
            (torch.rand(()), ValueError, r"coords .*got \(\)"),
            (
                torch.ones(5, 2, dtype=torch.int64),
                TypeError,
                "coords .*got .*int64",
            ),
        ],
        ids=["last axis", "rank", "dtype"],
    )
    def test_bad_coords(self, coords: Any, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=rf"\b{says}"):
            self.build(dim=2)(coords)

    @pytest.mark.parametrize(
        ("arguments", "error", "says"),
        [
            ({"dim": 0}, ValueError, "dim .*got 0"),
            ({"threshold": 0}, ValueError, "threshold must"),
            ({"threshold": 1.0}, ValueError, r"threshold .*got 1\.0"),
            ({"threshold": float("nan")}, ValueError, "threshold .*got nan"),
            (
                {"domain": (1, -1)},
                ValueError,
                r"domain .*got \(1, -1\)",
            ),
        ],
        ids=str,
    )
    def test_bad_common_arguments(self, arguments: dict[str, Any], error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=rf"\b{says}"):
            self.build(**arguments)

    def test_bad_arguments(self, bad_argument: tuple[str, Any, type[Exception], str]) -> None:
        name, value, error, says = bad_argument
        with pytest.raises(error, match=rf"\b{says}"):
            self.build(dim=2, **{name: value})

    @pytest.mark.parametrize("n", [0, -3])
    def test_bad_number_of_points(self, n: int) -> None:
        with pytest.raises(ValueError, match=f"n must be an int of at least 1, got {n}"):
            self.build().size(n)

    def test_repr_names_its_arguments(self) -> None:
        assert repr(self.build(dim=2)).startswith(f"{self.mask.__name__}(dim=2, threshold=")


class _Size(torch.nn.Module):
    """A mask's size as a module's output."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, n: int) -> torch.Tensor:
        return self.mask.size(n)

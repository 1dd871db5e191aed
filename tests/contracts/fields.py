"""What every field promises. A new field names its class and inherits the tests."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelfield.testing import (
    assert_compiles,
    assert_exports,
    assert_state_dict_round_trip,
    count_parameters,
)
from tests.largest import Largest

if TYPE_CHECKING:
    from kernelfield.fields import Field


class ContractedSizes(TorchDispatchMode):
    """Collects the number of terms of each entry of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv"):
            left = args[1] if name in ("addmm", "baddbmm", "addmv") else args[0]
            self.sizes.append(left.shape[-1])
        return function(*args, **(kwargs or {}))


class FieldContract:
    """Tests of one field; a subclass sets :attr:`field`, and what else it needs."""

    #: the class
    field: ClassVar[type[Field]]
    #: keyword arguments it is built with
    arguments: ClassVar[dict[str, Any]] = {}
    #: bad keyword arguments: name, value, and the error's type and what it says
    bad_arguments: ClassVar[list[tuple[str, Any, type[Exception], str]]]
    #: number of parameters for (dim, channels)
    counts: ClassVar[dict[tuple[int, int], int]]

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if "bad_argument" in metafunc.fixturenames:
            cases = metafunc.cls.bad_arguments
            metafunc.parametrize("bad_argument", cases, ids=[f"{name}={value!r}" for name, value, *_ in cases])
        if "count" in metafunc.fixturenames:
            metafunc.parametrize("count", metafunc.cls.counts.items(), ids=str)

    def build(self, dim: int = 2, channels: int = 3, **changes: Any) -> Field:
        return self.field(dim, channels, **{**self.arguments, **changes})

    @staticmethod
    def coords(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return points of the domain, off the lattice on which piecewise fields have their kinks."""
        return torch.rand(*shape, dtype=dtype) * 1.9 - 0.95

    @pytest.mark.parametrize("dim", [1, 2, 3])
    @pytest.mark.parametrize("leading", [(), (5,), (2, 3), (2, 1, 3), (0,)], ids=str)
    def test_values_have_the_leading_axes_of_the_coordinates(self, dim: int, leading: tuple[int, ...]) -> None:
        values = self.build(dim, 4)(self.coords(*leading, dim))
        assert values.shape == (*leading, 4)
        assert values.isfinite().all()

    def test_coordinates_are_in_full_precision(self) -> None:
        """Matrix products may be in tf32, which rounds a phase of a thousand radians by half a radian."""
        field, coords = self.build(3, 4), self.coords(6, 3)
        with ContractedSizes() as products:
            field(coords)
            if field.alike() is not None:
                type(field).together([field, field], coords)
        assert 3 not in products.sizes

    def test_points_are_independent(self) -> None:
        field, coords = self.build(), self.coords(4, 5, 2)
        torch.testing.assert_close(field(coords)[1, 2], field(coords[1, 2]))

    def test_dtype_is_that_of_the_coords(self, dtype: torch.dtype) -> None:
        assert self.build().to(dtype)(self.coords(7, 2, dtype=dtype)).dtype == dtype

    def test_float32_is_close_to_float64(self) -> None:
        field, coords = self.build(), self.coords(50, 2)
        single = field(coords)
        double = field.double()(coords.double())
        assert (single - double).abs().max() < 1e-4 * double.abs().max()

    def test_follows_the_default_dtype(self) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            state = self.build().state_dict()
        finally:
            torch.set_default_dtype(torch.float32)
        assert {name for name, value in state.items() if value.dtype != torch.float64} == set()

    def test_gradients_reach_every_parameter_and_the_coords(self, dtype: torch.dtype) -> None:
        field = self.build().to(dtype)
        coords = self.coords(200, 2, dtype=dtype).requires_grad_()
        values = field(coords)
        (values * torch.randn_like(values)).sum().backward()
        for name, parameter in field.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert (parameter.grad != 0).any(), name
        assert (coords.grad != 0).all(dim=-1).float().mean() > 0.9

    @pytest.mark.parametrize("dim", [1, 2])
    def test_gradcheck(self, dim: int) -> None:
        field = self.build(dim, 2).double()
        names, parameters = zip(*field.named_parameters(), strict=True)

        def values(coords: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
            state = dict(zip(names, parameters, strict=True))
            return torch.func.functional_call(field, state, (coords,))

        coords = self.coords(5, dim, dtype=torch.float64).requires_grad_()
        # One random projection of the Jacobian: all parameters are in it, at the price of two calls each.
        assert torch.autograd.gradcheck(values, (coords, *parameters), fast_mode=True)

    def test_scale_multiplies_the_values(self) -> None:
        field, coords = self.build(), self.coords(9, 2)
        before = field(coords)
        assert field.scale_(0.25) is field
        torch.testing.assert_close(field(coords), 0.25 * before)
        field.scale_(torch.tensor(4.0))
        torch.testing.assert_close(field(coords), before)

    @pytest.mark.parametrize("channels", [3, 32])
    def test_scale_per_channel(self, channels: int) -> None:
        # 32 is also the hidden width, with which a factor per channel could be taken for one per hidden unit.
        field, coords = self.build(2, channels), self.coords(9, 2)
        before, factor = field(coords), torch.arange(1.0, channels + 1)
        field.scale_(factor)
        torch.testing.assert_close(field(coords), factor * before)

    def test_scaled_parameters_still_learn(self) -> None:
        field = self.build().scale_(2.0)
        assert all(p.requires_grad and p.is_leaf for p in field.parameters())

    def test_same_seed_same_field(self) -> None:
        coords = self.coords(9, 2)
        torch.manual_seed(1)
        first = self.build()(coords)
        torch.manual_seed(1)
        assert self.build()(coords).equal(first)
        torch.manual_seed(2)
        assert not self.build()(coords).equal(first)

    def test_state_dict_round_trip(self) -> None:
        assert_state_dict_round_trip(self.build, self.coords(9, 2))

    def test_copy_is_independent(self) -> None:
        field, coords = self.build(), self.coords(9, 2)
        before = field(coords)
        copy.deepcopy(field).scale_(2.0)
        assert field(coords).equal(before)

    def test_does_not_modify_the_coords(self) -> None:
        coords = self.coords(9, 2)
        before = coords.clone()
        self.build()(coords)
        assert coords.equal(before)

    def test_compiles(self) -> None:
        assert_compiles(self.build(), self.coords(9, 2).requires_grad_())

    def test_exports_with_any_number_of_points(self) -> None:
        points = torch.export.Dim("points")
        others = [(self.coords(n, 2),) for n in (5, 31)]
        assert_exports(self.build(), (self.coords(9, 2),), ({0: points},), others)

    def test_autocast_changes_nothing(self) -> None:
        field, coords = self.build(), self.coords(9, 2)
        expected = field(coords)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = field(coords)
        assert values.dtype == torch.float32
        assert values.equal(expected)

    def test_max_frequency_is_a_positive_scalar_or_unknown(self) -> None:
        field = self.build()
        frequency = field.max_frequency()
        assert frequency is None or (frequency.shape == () and frequency > 0)
        wider = field.max_frequency(cut=3.0)
        assert (wider is None) == (frequency is None)
        assert wider is None or wider >= frequency

    @pytest.mark.parametrize(
        ("coords", "error", "says"),
        [
            (torch.rand(5, 3), ValueError, r"coords .*got \(5, 3\)"),
            (torch.rand(()), ValueError, r"coords .*got .*\(\)"),
            (
                torch.ones(5, 2, dtype=torch.int64),
                TypeError,
                "coords .*got .*int64",
            ),
            ([[0.0, 0.0]], TypeError, "coords .*got .*list"),
        ],
        ids=["last axis", "rank", "dtype", "list"],
    )
    def test_bad_coords(self, coords: Any, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=rf"\b{says}"):
            self.build(dim=2)(coords)

    @pytest.mark.parametrize(
        ("dim", "channels", "error", "says"),
        [
            (0, 3, ValueError, "dim .*got 0"),
            (-1, 3, ValueError, "dim .*got -1"),
            (1.5, 3, TypeError, r"dim .*got 1\.5"),
            (2, 0, ValueError, "channels .*got 0"),
            (2, "3", TypeError, "channels .*got '3'"),
        ],
    )
    def test_bad_sizes(self, dim: Any, channels: Any, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=rf"\b{says}"):
            self.build(dim, channels)

    def test_bad_arguments(self, bad_argument: tuple[str, Any, type[Exception], str]) -> None:
        name, value, error, says = bad_argument
        with pytest.raises(error, match=rf"\b{says}"):
            self.build(**{name: value})

    def test_number_of_parameters(self, count: tuple[tuple[int, int], int]) -> None:
        (dim, channels), expected = count
        assert count_parameters(self.build(dim, channels)) == expected

    def test_repr_names_its_arguments(self) -> None:
        text = repr(self.build(dim=2, channels=3))
        assert text.startswith(f"{self.field.__name__}(")
        assert "dim=2, channels=3" in text

    @pytest.mark.parametrize(("dim", "channels"), [(1, 1), (2, 3), (3, 200)])
    def test_hidden_values_bounds_the_memory(self, dim: int, channels: int) -> None:
        field, count = self.build(dim, channels), 50
        coords = self.coords(count, dim).requires_grad_()
        parameters = max(p.numel() for p in field.parameters())
        with Largest() as largest:
            field(coords).sum().backward()
        held = max(field.hidden_values(), channels, dim)
        assert held * count <= largest.elements <= max(held * count, parameters)

    def test_readout_of_the_features_gives_the_values(self) -> None:
        field, coords = self.build().double(), self.coords(4, 5, 2, dtype=torch.float64)
        features = field.features(coords)
        if features is None:
            pytest.skip("a field without a last linear map")
        weight, bias = field.readout()
        torch.testing.assert_close(features @ weight.mT + bias, field(coords))

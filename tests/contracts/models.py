"""What every continuous network promises. A new network names its constructor and inherits the tests."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from kernelfield import grids
from kernelfield.testing import assert_compiles, assert_exports, assert_state_dict_round_trip


class ModelContract:
    """Tests of one network; a subclass sets :attr:`model`, and what else it needs."""

    #: the class
    model: ClassVar[type[nn.Module]]
    #: keyword arguments that make it small
    arguments: ClassVar[dict[str, Any]] = {}
    #: the dimensions it is tested in
    dims: ClassVar[tuple[int, ...]] = (1, 2)
    #: whether it is compiled and exported by default, or only one of the two: "compiles" or "exports"
    traced: ClassVar[bool | str] = True
    #: arguments that make it shallow, for tests that trace every layer
    shallow: ClassVar[dict[str, Any]] = {"blocks": 1}

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        """Run a test in every dimension; by default it is compiled in 1D and exported in 2D, if it has both."""
        if "dim" in metafunc.fixturenames:
            dims = metafunc.cls.dims
            fast = {"test_compiles": dims[:1], "test_exports_with_dynamic_batch_and_length": dims[:2][-1:]}
            fast_dims = fast.get(metafunc.function.__name__, dims)
            marks = [() if dim in fast_dims else pytest.mark.slow for dim in dims]
            cases = [pytest.param(dim, marks=mark) for dim, mark in zip(dims, marks, strict=True)]
            metafunc.parametrize("dim", cases)

    def length(self, dim: int) -> int:
        return {1: 32, 2: 8, 3: 5}[dim]

    def build(self, dim: int, **changes: Any) -> nn.Module:
        torch.manual_seed(1)
        arguments = {"in_channels": 2, "out_channels": 3, "dim": dim, "size": self.length(dim)}
        return self.model(**{**arguments, **self.arguments, **changes})

    def signal(self, dim: int, batch: int = 2) -> torch.Tensor:
        return torch.randn(batch, 2, *(self.length(dim),) * dim)

    def test_predicts_for_the_whole_input(self, dim: int) -> None:
        assert self.build(dim)(self.signal(dim)).shape == (2, 3)

    def test_predicts_at_every_position(self, dim: int) -> None:
        x = self.signal(dim)
        assert self.build(dim, readout="dense")(x).shape == (2, 3, *x.shape[2:])

    def test_takes_other_resolutions_and_sizes(self, dim: int) -> None:
        net = self.build(dim).eval()
        n = self.length(dim)
        assert net(torch.randn(2, 2, *(2 * n,) * dim), step=0.5).shape == (2, 3)
        assert net(torch.randn(1, 2, *(n + 3,) * dim)).shape == (1, 3)

    def test_points_on_a_grid_equal_the_grid(self, dim: int) -> None:
        net, x = self.build(dim).double().eval(), self.signal(dim).double()
        coords = grids.positions(x.shape[2:], dtype=torch.float64).flatten(0, -2)
        torch.testing.assert_close(net(x.flatten(2), coords=coords), net(x), rtol=0, atol=1e-9)

    def test_padding_is_ignored(self, dim: int) -> None:
        net = self.build(dim, norm="none") if "norm" in self.arguments or self.takes_norm else self.build(dim).eval()
        coords = self.length(dim) * torch.rand(1, 12, dim)
        x = torch.randn(1, 2, 12)
        padded = torch.cat([x, 100 * torch.ones(1, 2, 5)], dim=2)
        places = torch.cat([coords, torch.zeros(1, 5, dim)], dim=1)
        seen = torch.arange(17).unsqueeze(0) < 12
        torch.testing.assert_close(net(padded, coords=places, mask=seen), net(x, coords=coords), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("readout", ["mean", "last", "dense"])
    @pytest.mark.parametrize("masked", [False, True])
    def test_samples_may_come_in_any_order(self, dim: int, readout: str, masked: bool) -> None:
        """A causal layer compares times, and the last sample is the one with the latest time."""
        if dim > 1 and readout == "last":
            pytest.skip("only a line has a last position")
        net = self.build(dim, readout=readout).double().eval()
        x, coords = torch.randn(2, 2, 12, dtype=torch.float64), torch.rand(2, 12, dim, dtype=torch.float64)
        mask, order = torch.rand(2, 12) < 0.7, torch.randperm(12)
        y, moved = (
            net(x[..., i], coords=self.length(dim) * coords[:, i], mask=mask[:, i] if masked else None)
            for i in (torch.arange(12), order)
        )
        if readout == "dense":  # outputs at unseen samples of a cumulative norm depend on all samples
            seen = mask.unsqueeze(1) if masked else torch.ones(2, 1, 12)
            y, moved = (y * seen)[..., order], moved * seen[..., order]
        torch.testing.assert_close(moved, y, rtol=0, atol=1e-9)

    def test_few_samples(self, dim: int) -> None:
        """One sample, many at one place, none that was seen: predictions are finite."""
        net, x = self.build(dim).eval(), torch.randn(2, 2, 6)
        coords = self.length(dim) * torch.rand(2, 1, dim)
        assert net(x[..., :1], coords=coords).isfinite().all()
        for density in (None, "estimate"):
            assert net(x, coords=coords.expand(-1, 6, -1), density=density).isfinite().all()
            hidden = torch.tensor([[True], [False]]).expand(2, 6)
            assert net(x, coords=coords.expand(-1, 6, -1), mask=hidden, density=density).isfinite().all()

    @pytest.mark.parametrize(
        ("shape", "value", "message"),
        [
            ((2, 6, 0), torch.nan, "coords must be finite"),
            ((2, 6, 0), torch.inf, "coords must be finite"),
            ((2, 6, 1), 0.0, "coords must have shape"),
            ((2, 5, 0), 0.0, "coords must have shape"),
            ((3, 6, 0), 0.0, "coords must have shape"),
        ],
    )
    def test_bad_coordinates(self, dim: int, shape: tuple[int, int, int], value: float, message: str) -> None:
        coords = torch.full((*shape[:2], dim + shape[2]), value)
        with pytest.raises(ValueError, match=rf"\b{message}"):
            self.build(dim)(torch.randn(2, 2, 6), coords=coords)

    def test_empty_clouds_are_refused(self, dim: int) -> None:
        with pytest.raises(ValueError, match=r"\bx must"):
            self.build(dim)(torch.randn(2, 2, 0), coords=torch.rand(2, 0, dim))

    #: whether the network has a ``norm`` argument
    takes_norm: ClassVar[bool] = True

    def test_gradients_reach_every_parameter(self, dim: int) -> None:
        net = self.build(dim)
        net(self.signal(dim)).square().sum().backward()
        assert [name for name, p in net.named_parameters() if p.grad is None] == []

    def test_bf16_autocast(self, dim: int) -> None:
        net, x = self.build(dim).eval(), self.signal(dim)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(x)
        wanted = net(x)
        assert (y - wanted).norm() < 0.05 * wanted.norm()

    def test_compiles(self, dim: int) -> None:
        assert_compiles(self.build(dim, **self.shallow), self.signal(dim), rtol=1e-3, atol=1e-4)

    def test_exports_with_dynamic_batch_and_length(self, dim: int) -> None:
        net, x = self.build(dim, **self.shallow).eval(), self.signal(dim)
        axes = {2 + d: torch.export.Dim(f"n{d}", min=2) for d in range(dim)}
        shapes = {"x": {0: torch.export.Dim("batch"), **axes}}
        others = [(torch.randn(b, 2, *(self.length(dim) + more,) * dim),) for b, more in ((1, 0), (3, 5), (2, -2))]
        assert_exports(net, (x,), shapes, others, rtol=1e-4, atol=1e-5)

    def test_state_dict_round_trip(self, dim: int) -> None:
        assert_state_dict_round_trip(lambda: self.build(dim), self.signal(dim))

    def test_freezing_every_layer_changes_no_prediction(self, dim: int) -> None:
        net, x = self.build(dim).eval(), self.signal(dim)
        wanted = net(x)
        for module in net.modules():
            if hasattr(module, "freeze"):
                module.freeze()
        torch.testing.assert_close(net(x), wanted)

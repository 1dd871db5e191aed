"""What every layer and network on point clouds promises. A new one names its constructor and inherits the tests."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from kernelfield.testing import assert_compiles, assert_exports, assert_state_dict_round_trip


class CloudContract:
    """Tests of one layer or network; a subclass gives :meth:`make`, and what else it needs."""

    #: the dimensions it is tested in
    dims: ClassVar[tuple[int, ...]] = (2, 3)
    #: whether it answers at every point, or for the cloud as a whole (perhaps on a grid)
    at_points: ClassVar[bool] = False
    #: whether it is compiled and exported by default, or only one of the two: "compiles" or "exports"
    traced: ClassVar[bool | str] = True
    channels: ClassVar[int] = 2
    points: ClassVar[int] = 40

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if "dim" in metafunc.fixturenames:
            metafunc.parametrize("dim", metafunc.cls.dims)

    def make(self, dim: int, low: float = -1.0) -> nn.Module:
        """Return the module for clouds in [low, low + 2]^dim."""
        raise NotImplementedError

    def build(self, dim: int, dtype: torch.dtype = torch.float64, low: float = -1.0) -> nn.Module:
        torch.manual_seed(1)
        module = self.make(dim, low)
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.1)  # zero at first, when a forgotten bias would not show
        return module.to(dtype)

    def call(self, module: nn.Module, x: torch.Tensor, coords: torch.Tensor, **more: Any) -> torch.Tensor:
        return module(x, coords=coords, **more)

    def cloud(
        self, dim: int, dtype: torch.dtype = torch.float64, n: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        n = self.points if n is None else n
        return torch.randn(2, self.channels, n, dtype=dtype), 2 * torch.rand(2, n, dim, dtype=dtype) - 1

    def test_keeps_the_dtype(self, dim: int, dtype: torch.dtype) -> None:
        y = self.call(self.build(dim, dtype), *self.cloud(dim, dtype))
        assert y.dtype == dtype
        if self.at_points:
            assert y.shape[-1] == self.points

    def test_order_of_points_does_not_matter(self, dim: int) -> None:
        module, (x, coords) = self.build(dim).eval(), self.cloud(dim)
        order = torch.randperm(self.points)
        y = self.call(module, x, coords)
        wanted = y[..., order] if self.at_points else y
        torch.testing.assert_close(self.call(module, x[..., order], coords[:, order]), wanted)

    def test_padding_changes_nothing(self, dim: int) -> None:
        module, (x, coords) = self.build(dim).eval(), self.cloud(dim)
        padded = torch.cat([x, 100 * torch.randn(2, self.channels, 7, dtype=x.dtype)], dim=2)
        places = torch.cat([coords, torch.zeros(2, 7, dim, dtype=x.dtype)], dim=1)
        order = torch.randperm(self.points + 7)
        mask = (torch.arange(self.points + 7) < self.points)[order].expand(2, -1)
        y = self.call(module, padded[..., order], places[:, order], mask=mask)
        if self.at_points:
            y = y[..., order.argsort()][..., : self.points]
        torch.testing.assert_close(y, self.call(module, x, coords))

    def test_clouds_of_different_sizes_in_one_batch(self, dim: int) -> None:
        module, (x, coords) = self.build(dim).eval(), self.cloud(dim)
        mask = torch.arange(self.points) < torch.tensor([[self.points], [self.points // 2]])
        together = self.call(module, x, coords, mask=mask)
        few = self.points // 2
        alone = self.call(module, x[1:, :, :few], coords[1:, :few])
        got = together[1:, ..., :few] if self.at_points else together[1:]
        torch.testing.assert_close(got, alone)

    def test_moving_everything_changes_nothing(self, dim: int) -> None:
        x, coords = self.cloud(dim)
        here, there = self.build(dim).eval(), self.build(dim, low=3.5).eval()
        torch.testing.assert_close(self.call(there, x, coords + 4.5), self.call(here, x, coords), rtol=0, atol=1e-9)

    def test_gradients_reach_everything(self, dim: int) -> None:
        module, (x, coords) = self.build(dim), self.cloud(dim)
        self.call(module, x.requires_grad_(), coords.requires_grad_()).square().sum().backward()
        for name, parameter in [*module.named_parameters(), ("x", x), ("coords", coords)]:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name

    def test_bf16_autocast(self, dim: int) -> None:
        module, (x, coords) = self.build(dim, torch.float32).eval(), self.cloud(dim, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.call(module, x, coords)
        wanted = self.call(module, x, coords)
        assert (y - wanted).norm() < 0.05 * wanted.norm()

    def test_compiles(self, dim: int) -> None:
        module, (x, coords) = self.build(dim, torch.float32), self.cloud(dim, torch.float32)
        assert_compiles(module, x, coords=coords, rtol=1e-3, atol=1e-4)

    def test_exports_with_dynamic_batch_and_points(self, dim: int) -> None:
        module = self.build(dim, torch.float32).eval()
        x, coords = self.cloud(dim, torch.float32)
        batch, n = torch.export.Dim("batch"), torch.export.Dim("n", min=12)
        others = [self.cloud(dim, torch.float32, n=n) for n in (40, 33, 61)]
        assert_exports(
            lambda x, coords: self.call(module, x, coords),
            (x, coords),
            ({0: batch, 2: n}, {0: batch, 1: n}),
            [(x[:1], coords[:1]), *others],
            rtol=1e-4,
            atol=1e-5,
        )

    def test_few_points(self, dim: int) -> None:
        """One point, many at one place, none that was seen: outputs are finite."""
        module, (x, coords) = self.build(dim).eval(), self.cloud(dim)
        assert self.call(module, x[..., :1], coords[:, :1]).isfinite().all()
        same = coords[:, :1].expand_as(coords)
        assert self.call(module, x, same).isfinite().all()
        hidden = torch.tensor([[True], [False]]).expand(2, self.points)
        assert self.call(module, x, coords, mask=hidden).isfinite().all()

    def test_padding_may_be_nan_in_training(self, dim: int) -> None:
        module, (x, coords) = self.build(dim), self.cloud(dim)
        mask = torch.arange(self.points) < torch.tensor([[self.points], [self.points // 2]])
        x, coords = x.masked_fill(~mask.unsqueeze(1), torch.nan), coords.masked_fill(~mask.unsqueeze(-1), torch.nan)
        self.call(module, x, coords.requires_grad_(), mask=mask).square().sum().backward()
        for name, parameter in [*module.named_parameters(), ("coords", coords)]:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name

    def test_bad_coordinates(self, dim: int) -> None:
        module, (x, coords) = self.build(dim), self.cloud(dim)
        for value in (torch.nan, torch.inf):
            wrong = coords.clone()
            wrong[1, 3] = value
            with pytest.raises(ValueError, match=r"\bcoords must be finite"):
                self.call(module, x, wrong)
            mask = torch.arange(self.points).expand(2, -1) != 3  # of padding they may be anything
            assert self.call(module, x, wrong, mask=mask).isfinite().all()
        for shape in ((2, self.points, dim + 1), (2, self.points - 1, dim), (3, self.points, dim)):
            with pytest.raises(ValueError, match=r"\bcoords must"):
                self.call(module, x, torch.rand(shape, dtype=x.dtype))
        with pytest.raises(ValueError, match=r"\b(coords|x) must"):
            self.call(module, x[..., :0], coords[:, :0])

    def test_state_dict_round_trip(self, dim: int) -> None:
        x, coords = self.cloud(dim, torch.float32)
        assert_state_dict_round_trip(lambda: self.build(dim, torch.float32), x, coords=coords)

"""Every way to convolve between points keeps the contract, and "auto" chooses between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import Tensor

from kernelfield.layers import use_point_plans
from kernelfield.ops import plan_points, point_conv
from kernelfield.ops.points import within
from kernelfield.ops.points.choose import choose_method
from kernelfield.ops.points.reach import find_candidates
from kernelfield.ops.points.shape import PointConv
from tests.contracts.point_cases import Waves
from tests.contracts.point_convolutions import PointConvContract

if TYPE_CHECKING:
    from kernelfield import CKConv


class TestPairs(PointConvContract):
    method = "pairs"


class TestNeighbors(PointConvContract):
    """As many neighbours as there are points."""

    method = "pairs"

    def conv(self, x: Tensor, coords: Tensor, kernel: Any, size: Tensor, **how: Any) -> Tensor:
        return super().conv(x, coords, kernel, size, neighbors=max(1, x.shape[-1]), **how)

    def layer(self, x: Tensor, coords: Tensor, **options: Any) -> CKConv:
        return super().layer(x, coords, neighbors=x.shape[-1], gain=1.0, **options)


class TestCells(PointConvContract):
    method = "cells"


class TestGrid(PointConvContract):
    method = "grid"
    error, gradient_error = 3e-4, 2e-4
    gradient_options: ClassVar[dict[str, Any]] = {"tolerance": 1e-6}
    smooth = True
    slow = ("space",)


class TestAuto(PointConvContract):
    method = "auto"
    error = 3e-4


class _Planned(PointConvContract):
    empty = False

    def conv(self, x: Tensor, coords: Tensor, kernel: Any, size: Tensor, **how: Any) -> Tensor:
        channels = 3 if x.dim() < 3 else x.shape[1]
        plan = plan_points(coords, kernel, size, in_channels=channels, method=self.method, **how)
        assert plan.method == self.method
        how.pop("tolerance", None)
        return point_conv(x, coords, kernel, size, plan=plan, **how)

    def layer(self, x: Tensor, coords: Tensor, **options: Any) -> CKConv:
        layer = super().layer(x, coords, **options)
        use_point_plans(layer, x.to(layer.reach.dtype), coords=coords.to(layer.reach.dtype))
        return layer


class TestPlannedCells(_Planned):
    method = "cells"


class TestPlannedGrid(_Planned):
    method = "grid"
    error, gradient_error = 3e-4, 2e-4
    gradient_options: ClassVar[dict[str, Any]] = {"tolerance": 1e-6}
    smooth = True
    slow = ("space",)


def test_auto_takes_cells_for_short_kernels_and_the_grid_for_long_smooth_ones() -> None:
    torch.manual_seed(0)
    coords, x = torch.rand(1, 4000, 1) * 4000, torch.randn(1, 4, 4000)
    long = Waves(1, 4, 6000.0, 0.0).float()

    def chosen(kernel: Any, size: float, points: int = 4000) -> str:
        at = coords[:, :points]
        given = PointConv(x[..., :points], at, at, kernel, torch.tensor([size]), 4, 4, False, None, 0)
        return choose_method(given, 1e-4)[0]

    def jumping(offsets: Tensor) -> Tensor:
        return torch.sign(offsets).expand(*offsets.shape[:-1], 4)

    assert chosen(long, 6000.0) == "grid"
    assert chosen(long, 10.0) == "cells"
    assert chosen(long, 6000.0, points=100) == "pairs"
    assert chosen(jumping, 6000.0) == "pairs"


def test_neighbours_are_counted_pair_by_pair() -> None:
    x, coords, size = torch.randn(1, 1, 50), torch.rand(1, 50, 1) * 60, torch.tensor([100.0])
    with pytest.raises(ValueError, match=r"method .*neighbors=3"):
        point_conv(x, coords, torch.ones_like, size, out_channels=1, method="cells", neighbors=3)
    with pytest.raises(ValueError, match=r"\bmethod must"):
        point_conv(x, coords, torch.ones_like, size, out_channels=1, method="fft")
    with pytest.raises(ValueError, match=r"\btolerance must"):
        point_conv(x, coords, torch.ones_like, size, out_channels=1, tolerance=0.0)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("size", [0.2, 0.6, 3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_neighbours_found_by_cells_are_those_of_all_distances(
    dim: int, size: float, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 300, dtype=torch.float64)
    coords, at = torch.rand(3, 300, dim, dtype=torch.float64), torch.rand(3, 77, dim, dtype=torch.float64)
    mask = None
    if masked:
        mask = torch.rand(3, 300) < 0.6
        mask[0] = torch.arange(300) < 5  # fewer points than neighbours
        x = x * mask.unsqueeze(1)
    kernel, reach = Waves(dim, 4, 20.0, 1.0), torch.full((dim,), size, dtype=torch.float64)
    found = []
    for fewest in (1 << 40, 1):
        monkeypatch.setattr(within, "FEWEST_FOR_CELLS", {"cpu": fewest})
        found.append(point_conv(x, coords, kernel, reach, out_channels=4, groups=4, neighbors=12, mask=mask, at=at))
    assert torch.allclose(*found, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_times_far_from_zero_have_no_more_candidates(causal: bool) -> None:
    times = torch.arange(500, dtype=torch.float64).view(1, -1, 1) / 4
    reach = torch.tensor([3.0], dtype=torch.float64)
    near, far = (find_candidates(t, t, None, reach, causal=causal).length for t in (times, times + 1.7e9))
    assert torch.equal(near, far)
    kernel = Waves(1, 2, size=3.0, decay=1.0)
    x = torch.randn(1, 2, 500, dtype=torch.float64)
    options: dict[str, Any] = {"out_channels": 2, "groups": 2, "causal": causal}
    found = point_conv(x, times + 1.7e9, kernel, reach, method="cells", **options)
    torch.testing.assert_close(found, point_conv(x, times, kernel, reach, method="pairs", **options))


def test_neighbours_of_points_in_half_precision() -> None:
    """The squares of distances above 256 are infinite in float16."""
    torch.manual_seed(0)
    x, coords, reach = torch.randn(1, 1, 20), (1000 * torch.rand(1, 20, 2)).half(), torch.tensor([1000.0, 1000.0])
    found = point_conv(x.half(), coords, _ones, reach.half(), out_channels=1, neighbors=6)
    exact = point_conv(x, coords.float(), _ones, reach, out_channels=1, neighbors=6)
    torch.testing.assert_close(found.float(), exact, rtol=0.02, atol=0.01)


def _ones(offsets: Tensor) -> Tensor:
    return torch.ones_like(offsets[..., :1])

"""The continuous layers keep the contract."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch

from kernelfield import CKConv, FlexConv, SeparableConv
from kernelfield.fields import MAGNet
from kernelfield.layers.continuous import point_path
from kernelfield.ops.points import chunks
from tests.contracts.layers import ContinuousLayerContract


class TestCKConv(ContinuousLayerContract):
    traced = False
    layer = CKConv


class TestFlexConv(ContinuousLayerContract):
    traced = "compiles"
    layer = FlexConv
    arguments: ClassVar[dict[str, Any]] = {"sigma": 0.2}


class TestSeparableConv(ContinuousLayerContract):
    layer = SeparableConv
    arguments: ClassVar[dict[str, Any]] = {"sigma": 0.2}


class TestSeparableConvWithoutMask(ContinuousLayerContract):
    traced = False
    layer = SeparableConv
    arguments: ClassVar[dict[str, Any]] = {"sigma": None}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_points_by_features_are_points_by_values(causal: bool, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FlexConv(6, 8, size=16, sigma=0.3, causal=causal, field=partial(MAGNet, hidden=5)).double()
    x = torch.randn(3, 6, 40, dtype=torch.float64, requires_grad=True)
    coords = (torch.rand(1 if shared else 3, 40, 1, dtype=torch.float64) * 20).sort(dim=1).values
    coords = coords[0] if shared else coords
    assert point_path.uses_features(layer)
    parameters = [x, *(p for p in layer.parameters())]
    fast = layer(x, coords=coords)
    gradients = torch.autograd.grad(fast.square().sum(), parameters)
    monkeypatch.setitem(chunks.CHUNK_VALUES, "cpu", 1000)  # in pieces
    torch.testing.assert_close(layer(x, coords=coords), fast)
    monkeypatch.setattr(point_path, "uses_features", lambda _: False)
    slow = layer(x, coords=coords)
    torch.testing.assert_close(fast, slow)
    for a, b in zip(gradients, torch.autograd.grad(slow.square().sum(), parameters), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("dim", "size"), [(1, 10), (2, 6), (3, 4)])
def test_a_kernel_of_one_point_does_not_start_at_zero(dim: int, size: int) -> None:
    layer = SeparableConv(3, 3, dim=dim, size=size, sigma=0.0375, learn_sigma=False)
    assert layer.kernel().shape[2:].numel() == 1
    y = layer(torch.randn(4, 3, *(size,) * dim))
    assert y.std() > 0.1


def test_a_compiled_periodic_layer_takes_signals_shorter_than_half_its_kernel() -> None:
    layer = CKConv(2, 2, size=16, causal=False, boundary="periodic").double()
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="eager")
    for length in (40, 5, 1):
        x = torch.randn(2, 2, length, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=1e-9)

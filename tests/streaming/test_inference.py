"""Pointwise layers of a stream give what the layers of the network give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelfield.layers import BatchNorm, Pointwise
from kernelfield.streaming.inference import FixedNorm, FixedPointwise, with_fixed_layers


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_map_of_the_channels(n: int, activation: str | None, bias: bool, dtype: torch.dtype) -> None:
    layer = Pointwise(3, 4, bias=bias).to(dtype)
    x, residual = torch.randn(2, 3, n, dtype=dtype), torch.randn(2, 4, n, dtype=dtype)
    kept = residual.clone()
    for options in ({}, {"residual": residual}):
        wanted = layer(x, activation=activation, **options)
        torch.testing.assert_close(FixedPointwise(layer)(x, activation=activation, **options), wanted)
    assert torch.equal(residual, kept)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_norm(activation: str | None, dtype: torch.dtype) -> None:
    norm = BatchNorm(3).to(dtype)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    norm.eval()
    x = torch.randn(2, 3, 5, dtype=dtype)
    fixed = FixedNorm(norm)
    torch.testing.assert_close(fixed(x, activation=activation), norm(x, activation=activation))
    y, same = fixed(x, with_identity=True)
    torch.testing.assert_close(y, norm(x))
    assert same is x


def test_layers_of_a_network_are_replaced() -> None:
    net = nn.Sequential(Pointwise(2, 3), BatchNorm(3), nn.GELU()).eval()
    x = torch.randn(1, 2, 1)
    wanted = net(x)
    fixed = with_fixed_layers(net)
    assert [type(layer) for layer in fixed] == [FixedPointwise, FixedNorm, nn.GELU]
    torch.testing.assert_close(fixed(x), wanted)
    assert "FixedNorm(3)" in repr(fixed)

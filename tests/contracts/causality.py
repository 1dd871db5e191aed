"""What every causal network promises: no output or feature depends on later samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kernelfield.layers import ContinuousConv
from kernelfield.testing import assert_causal

__all__ = ["assert_looks_back_only", "features_of", "is_causal"]


def is_causal(network: nn.Module) -> bool:
    """Return whether a network claims to be causal: it has continuous convolutions, and all of them are causal."""
    layers = [module for module in network.modules() if isinstance(module, ContinuousConv)]
    return bool(layers) and all(layer.causal for layer in layers)


def features_of(network: nn.Module, x: Tensor, **sampling: Any) -> Tensor:
    """Return the features of every position that the network's readout reads, (batch, channels, time)."""
    found: list[Tensor] = []
    hook = network.readout.register_forward_hook(lambda _module, inputs, _output: found.append(inputs[0]))
    try:
        network(x, **sampling)
    finally:
        hook.remove()
    return found[0]


def assert_looks_back_only(network: nn.Module, x: Tensor, **sampling: Any) -> None:
    """Assert that the features of a network, and its outputs if they are dense, depend on the past alone."""
    # Rounding grows from layer to layer; a dependence on later samples is of order one.
    how: dict[str, Any] = {"times": range(0, x.shape[-1] - 1, 3), "atol": 1e-9}
    network = network.double()
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        assert_causal(lambda signal: features_of(network, signal, **sampling), x, **how)
        if network.readout.kind == "dense":
            assert_causal(lambda signal: network(signal, **sampling), x, **how)

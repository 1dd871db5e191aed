"""Every registered causal network that can stream, narrow and in evaluation mode, and inputs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kernelfield import CCNN, CKCNN, create_model
from kernelfield.layers import ContinuousConv
from kernelfield.models.registry import configuration
from kernelfield.streaming.stream import signal_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["assert_equal_outputs", "forward_after", "samples", "settled", "streamable"]


def streamable(name: str, **changes: Any) -> nn.Module:
    """Return a registered network as :func:`tests.models.registered.example` builds it."""
    torch.manual_seed(1)
    narrow: dict[str, Any] = {"in_channels": 2, "out_channels": 3, "size": 20, "channels": 4, "hidden": 4}
    if configuration(name).arguments.get("vocabulary"):
        narrow = {"in_channels": 4, "size": 12, "channels": (6, 4), "hidden": 4}
    return settled(create_model(name, **narrow, **changes))


@torch.no_grad()
def settled(network: nn.Module) -> nn.Module:
    """Return a network in evaluation mode, with biases, and with statistics of one batch."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for module in network.modules():
        if isinstance(module, ContinuousConv) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1)
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        network.train()(samples(network, 4, 30))
    return network.eval()


def samples(network: nn.Module, batch: int, length: int) -> Tensor:
    """Return an input for a network: signals in its dtype, or token ids."""
    if getattr(network, "embedding", None) is not None:
        return torch.randint(0, network.embedding.num_embeddings, (batch, length))
    assert isinstance(network, (CCNN, CKCNN))
    return torch.randn(batch, 2, length, dtype=signal_dtype(network))


@torch.no_grad()
def forward_after(network: nn.Module, x: Tensor, times: Sequence[int] | None = None, **sampling: Any) -> Tensor:
    """Return (batch, out, times): what one forward pass over all input up to each time says; all times if not given."""
    wanted = range(x.shape[-1]) if times is None else times
    if network.readout.kind == "dense":
        return network(x, **sampling)[..., list(wanted)]
    return torch.stack([network(x[..., : t + 1], **sampling) for t in wanted], dim=-1)


def assert_equal_outputs(actual: Tensor, wanted: Tensor) -> None:
    """Check that outputs agree, relative to the largest: to 1e-10 in double and 1e-5 in single precision."""
    tolerance = 1e-10 if wanted.dtype == torch.float64 else 1e-5
    assert actual.shape == wanted.shape
    assert actual.dtype == wanted.dtype
    error = float((actual - wanted).abs().max())
    assert error <= tolerance * max(1.0, float(wanted.abs().max())), error

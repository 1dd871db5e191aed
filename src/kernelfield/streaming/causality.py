"""Which networks can stream, and why others cannot."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import nn

from ..layers import CCNNBlock, ChannelNorm, ContinuousConv, Dropout, Pointwise, SeparableConv, TwoConvBlock
from ..models import CCNN, CKCNN
from ..models.readout import Embedding, Readout
from .recurrent_conv import RecurrentConv

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_causal", "convolutions", "separate"]

#: modules that only call others
_CONTAINERS = (CKCNN, CCNN, TwoConvBlock, CCNNBlock, SeparableConv, nn.ModuleList, nn.Sequential)
#: modules whose output at one time depends on their input at that time alone
_POINTWISE = (
    Pointwise,
    ChannelNorm,  # and its cumulative form, which a stream replaces by RunningNorm
    Embedding,
    Dropout,
    nn.Dropout,
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
)


def convolutions(network: nn.Module) -> dict[str, ContinuousConv | RecurrentConv]:
    """Return the long convolutions of a network by name, in order."""
    return {name: m for name, m in network.named_modules() if isinstance(m, (ContinuousConv, RecurrentConv))}


def separate(network: nn.Module) -> nn.Module:
    """Copy layers that are used more than once, so that each use has its own; return the network, changed in place.

    A layer with a state needs one state for each use.
    """
    _separate(network, {id(network)})
    return network


def _separate(parent: nn.Module, seen: set[int]) -> None:
    for key, child in list(parent._modules.items()):  # noqa: SLF001 (named_children skips repeated modules)
        if child is None:
            continue
        own = copy.deepcopy(child) if id(child) in seen else child
        if own is not child:
            parent._modules[key] = own  # noqa: SLF001
        seen.add(id(own))
        if isinstance(own, _CONTAINERS):
            _separate(own, seen)


def check_causal(network: nn.Module) -> None:
    """Raise a ValueError that names the first layer that cannot stream, and says why.

    >>> check_causal(CCNN(1, 10, size=32, channels=4, blocks=1, norm="layer"))
    Traceback (most recent call last):
    ValueError: net must be causal to stream, but its layer norm is a norm over time, ...
    """
    for name, module in _walk(network, ""):
        reason = _obstacle(module)
        if reason is not None:
            layer = f"its layer {name}" if name else type(network).__name__
            raise ValueError(f"net must be causal to stream, but {layer} {reason}")


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules by name, except fields of convolutions and what they share, which never see the signal."""
    yield name, module
    if isinstance(module, _CONTAINERS):
        for key, child in module.named_children():
            if isinstance(module, CCNN) and child is module.kernel_network:
                continue
            yield from _walk(child, f"{name}.{key}" if name else key)


def _obstacle(module: nn.Module) -> str | None:  # noqa: PLR0911
    """Return why a module cannot stream, or None."""
    if isinstance(module, ContinuousConv):
        if not module.causal:
            return "has a centred kernel, which reads later samples: build it with causal=True"
        return "is periodic, so each output depends on later samples" if module.boundary == "periodic" else None
    if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
        if module.running_mean is None:
            return "normalises by the statistics of the batch, over all times: build the network with norm='batch'"
        return None
    if isinstance(module, nn.GroupNorm):
        return "is a norm over time, which needs later samples: build the network with norm='channel' or 'batch'"
    if isinstance(module, CCNNBlock) and module.active is not None and module.active.band_limit is not None:
        return "has a learned resolution: resampling reads later samples"
    if isinstance(module, (*_CONTAINERS, *_POINTWISE, Readout, RecurrentConv)):
        return None
    kind = type(module).__name__
    if kind == "DNArch":
        return "is a DNArch, whose architecture is still learned: stream its materialize()"
    return f"is a {kind}, which may read later samples"

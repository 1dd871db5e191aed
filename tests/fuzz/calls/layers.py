"""Layers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernelfield import fields, groups, layers, masks, ops

from .call import Call, backward, forward_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HIDDEN = partial(fields.SIREN, hidden=4)


def _pair(
    name: str,
    arguments: Callable[[], dict[str, Any]],
    inputs: Callable[[], dict[str, Any]],
    label: str = "",
    *,
    fuzz_forward: bool = True,
) -> list[Call]:
    """Return the calls of a layer's constructor and of its ``forward``."""
    build = getattr(layers, name)
    title = f"layers.{name}{label}"
    calls = [Call(title, build, arguments, lambda layer: backward(layer, **inputs()))]
    return [*calls, forward_of(title, lambda: build(**arguments()), inputs)] if fuzz_forward else calls


def _x(*shape: int, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.randn(2, *shape), **options}


def _line(**options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"in_channels": 3, "out_channels": 3, "size": 8, **options}


def _on(group: groups.Group, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"in_channels": 3, "out_channels": 4, "group": group, **options}


def _points() -> dict[str, Any]:
    torch.manual_seed(0)
    coords = 2 * torch.rand(2, 7, 2) - 1
    return {"x": torch.randn(2, 3, 7), "coords": coords, "mask": torch.ones(2, 7, dtype=torch.bool)}


def _masked() -> dict[str, Any]:
    x = torch.randn(2, 3, 8)
    return {
        "x": x,
        "step": 0.5,
        "coords": None,
        "mask": torch.ones(2, 8, dtype=torch.bool),
        "density": torch.ones(2, 8),
    }


def _timed() -> dict[str, Any]:
    return {"x": torch.randn(2, 3, 8), "coords": torch.arange(8.0).view(8, 1), "density": "estimate"}


def _signal(channels: int = 3, size: int = 4) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.randn(2, channels, size, 6, 6)}


def _so2_signal() -> dict[str, Any]:
    values = torch.randn(2, 3, 4, 6, 6)
    return {"x": layers.GroupSignal(values, groups.SO2().sample(4, stratified=True), group=groups.SO2())}


def _message() -> dict[str, Any]:
    cloud = 2 * torch.rand(2, 7, 2) - 1
    return {
        "x": torch.randn(2, 3, 7),
        "sources": cloud,
        "targets": torch.rand(1, 9, 2),
        "edges": ops.bilateral_edges(cloud, (3, 3), 2),
    }


def _partial_block() -> dict[str, Any]:
    conv = partial(layers.GroupConv, 3, 3, group=groups.Cyclic(4))
    return {"conv1": conv(), "conv2": conv(), "shortcut": None, "channels": 3}


def _lift() -> layers.LiftingConv:
    return layers.LiftingConv(1, 4, group=groups.Scale(3), field=fields.BSpline, kernel_size=5)


def _model() -> nn.Module:
    return nn.Sequential(layers.FlexConv(2, 2, size=8), nn.ReLU(), layers.FlexConv(2, 2, size=8))


_separable = partial(layers.SeparableConv, size=8)

CALLS = [
    *_pair("CKConv", _line(field=_HIDDEN, neighbors=3, gain=1.0), _masked),
    *_pair("CKConv", _line(field=_HIDDEN, causal=True), _timed, " (points)"),
    *_pair("CKConv", _line(field=_HIDDEN, dim=2), _points, " (2D points)"),
    *_pair("FlexConv", _line(), _masked),
    *_pair("FlexConv", _line(mask=masks.GaussianMask(1, 0.3)), _x(3, 8), " (mask)", fuzz_forward=False),
    *_pair("SeparableConv", _line(), _x(3, 8)),
    *_pair("CCNNBlock", lambda: {"make_conv": _separable, "in_channels": 3, "out_channels": 4}, _x(3, 8)),
    *_pair(
        "TwoConvBlock",
        lambda: {"make_conv": partial(layers.CKConv, size=8), "in_channels": 3, "out_channels": 4, "norm": "batch"},
        _x(3, 8),
    ),
    *_pair("Dropout", lambda: {"p": 0.5}, _x(3, 8)),
    *_pair("ChannelNorm", lambda: {"channels": 3}, _x(3, 8)),
    *_pair("CumulativeNorm", lambda: {"channels": 3}, _x(3, 8)),
    *_pair("Pointwise", lambda: {"in_channels": 3, "out_channels": 4}, _x(3, 8)),
    Call(
        "layers.ContinuousConv",
        layers.ContinuousConv,
        lambda: {"in_channels": 3, "out_channels": 3, "size": 8, "dim": 1, "field": _HIDDEN},
        lambda layer: backward(layer, torch.randn(2, 3, 8)),
    ),
    Call("layers.make_norm", layers.make_norm, lambda: {"name": "batch", "channels": 3}),
    Call(
        "layers.normalise", layers.normalise, lambda: {"norm": layers.make_norm("batch", 3), "x": torch.randn(2, 3, 8)}
    ),
    Call("layers.seen_only", layers.seen_only, lambda: {"x": torch.ones(2, 3, 8), "mask": torch.ones(2, 8) > 0}),
    *(
        Call(f"layers.{f.__name__}", f, lambda: {"model": _model()})
        for f in (layers.aliasing_loss, layers.kernel_l2, layers.kernel_norm)
    ),
    Call("layers.wavelet_loss", layers.wavelet_loss, lambda: {"model": _lift()}),
    *(
        Call(f"layers.{f.__name__}", f, lambda: {"layer": layers.FlexConv(2, 2, size=8)})
        for f in (layers.kernel_frequency, layers.nyquist)
    ),
    Call(
        "layers.sample_kernels",
        layers.sample_kernels,
        lambda: {"layers": [layers.CKConv(2, 2, size=8)], "x": torch.randn(1, 2, 8)},
    ),
    Call(
        "layers.use_point_plans",
        layers.use_point_plans,
        lambda: {
            "network": layers.CKConv(2, 2, size=8),
            "x": torch.randn(1, 2, 6),
            "slack": 1.5,
            "coords": torch.rand(1, 6, 1),
        },
    ),
    Call(
        "layers.run_blocks",
        layers.run_blocks,
        lambda: {"blocks": [layers.CCNNBlock(_separable, 3, 3)], "x": torch.randn(2, 3, 8)},
    ),
    # On groups.
    Call(
        "layers.GroupSignal",
        layers.GroupSignal,
        lambda: {"values": torch.randn(2, 3, 4, 6, 6), "group": groups.Cyclic(4)},
        layers.GroupConv(3, 2, group=groups.Cyclic(4)),
    ),
    *_pair("LiftingConv", _on(groups.Cyclic(4)), _x(3, 6, 6)),
    *_pair("LiftingConv", _on(groups.SO2(), samples=4, field=_HIDDEN), _x(3, 6, 6), " (SO2)"),
    *_pair("GroupConv", _on(groups.Cyclic(4)), _signal()),
    *_pair("GroupConv", _on(groups.Scale(3), interactions=2), lambda: {"x": torch.randn(2, 3, 3, 9)}, " (scale)"),
    *_pair("PartialGroupConv", _on(groups.SO2(), samples=4, field=_HIDDEN), _so2_signal),
    *_pair("SeparableGroupConv", _on(groups.Cyclic(4)), _signal()),
    *_pair("AttentiveLiftingConv", _on(groups.Cyclic(4), attention_size=3), _x(3, 6, 6)),
    *_pair("AttentiveGroupConv", _on(groups.Cyclic(4), attention_size=3), _signal()),
    *_pair("LiftingSelfAttention", _on(groups.Cyclic(4), heads=2, neighborhood=3), _x(3, 6, 6)),
    *_pair("GroupSelfAttention", _on(groups.Cyclic(4), heads=2, neighborhood=3), _signal()),
    *_pair("SelfAttentionBlock", _on(groups.Cyclic(4), crop=1, heads=2, neighborhood=3), _signal()),
    *_pair("GroupResidualBlock", _on(groups.Cyclic(4)), _signal()),
    *_pair("PartialResidualBlock", _partial_block, _signal()),
    *_pair("CoAttentive", lambda: {"conv": layers.LiftingConv(3, 4, group=groups.Cyclic(4))}, _x(3, 6, 6)),
    *_pair("ProjectionConv", _on(groups.Cyclic(4)), _signal()),
    *_pair(
        "CoAttentive",
        lambda: {"conv": layers.GroupConv(3, 4, group=groups.Cyclic(4)), "per": "filter"},
        _signal(),
        " (filter)",
    ),
    *_pair("CyclicSelfAttention", lambda: {"channels": 3, "group": groups.Cyclic(4)}, _signal()),
    *_pair("GateAttention", lambda: {"channels": 3, "group": groups.Cyclic(4)}, _signal()),
    *_pair("InputAttention", lambda: {"channels": 3, "group": groups.Cyclic(4), "kernel_size": 3}, _signal()),
    *_pair("GroupBatchNorm", lambda: {"channels": 3}, _signal()),
    *_pair("GroupLayerNorm", dict, _signal()),
    *_pair("GroupDropout", dict, _signal()),
    *_pair("GroupPool", dict, _signal()),
    *_pair("SpatialPool", dict, _signal()),
    *_pair("SpatialUpsample", dict, _signal()),
    Call(
        "layers.GroupKernel",
        layers.GroupKernel,
        lambda: {
            "group": groups.Cyclic(4),
            "field": fields.Table,
            "out_channels": 3,
            "in_channels": 2,
            "kernel_size": 3,
        },
        backward,
    ),
    Call("layers.RelativeEncoding", layers.RelativeEncoding, lambda: {"group": groups.Cyclic(4), "channels": 3}),
    *_pair("WaveletTransform", lambda: {"lift": _lift()}, _x(1, 20)),
    # Points and grids.
    *_pair("MessageLayer", lambda: {"in_channels": 3, "out_channels": 4, "dim": 2}, _message),
    *_pair("Gridify", lambda: {"in_channels": 3, "out_channels": 4, "dim": 2, "grid": 3, "neighbors": 2}, _points),
    *_pair(
        "Degridify",
        lambda: {"in_channels": 3, "out_channels": 4, "dim": 2, "grid": 3, "neighbors": 2},
        lambda: {**_points(), "x": torch.randn(2, 3, 3, 3)},
    ),
]

#: what networks make by themselves
INTERNAL = {"ActiveSlice", "cutoff", "BandLimit", "FixedShapeBandLimit", "LearnedSize", "BatchNorm"}

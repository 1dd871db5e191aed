"""Operators."""

from __future__ import annotations

from typing import Any

import torch

from kernelfield import ops

from .call import Call


def _kernel(offsets: Any) -> Any:
    return torch.ones(*offsets.shape[:-1], 6)


def _attention() -> dict[str, Any]:
    q, k, v = torch.randn(3, 2, 4, 6, 6, 5)
    return {
        "q": q,
        "k": k,
        "v": v,
        "positions": torch.randn(7, 3, 3, 3),
        "elements": torch.randn(7, 4, 2),
        "neighborhood": (3, 3),
    }


def _edges() -> ops.Edges:
    return ops.bilateral_edges(_points(), (3, 3), 2)


def _points() -> torch.Tensor:
    return torch.rand(1, 6, 2)


CALLS = [
    *(
        Call(f"ops.{f.__name__}", f, lambda: {"x": torch.randn(2, 4, 8), "kernel": torch.randn(4, 2, 3), "groups": 2})
        for f in (ops.conv, ops.conv_reference)
    ),
    Call("ops.conv (2D)", ops.conv, lambda: {"x": torch.randn(2, 2, 5, 5), "kernel": torch.randn(4, 2, 3, 3)}),
    Call(
        "ops.conv_bank",
        ops.conv_bank,
        lambda: {
            "x": torch.randn(2, 3, 20),
            "kernels": [torch.randn(4, 3, 5), ops.Dilated(torch.randn(4, 3, 5), dilation=2)],
        },
    ),
    Call("ops.resample", ops.resample, lambda: {"x": torch.randn(2, 3, 8), "size": 12}),
    Call("ops.resample (2D)", ops.resample, lambda: {"x": torch.randn(2, 8, 8), "size": (4, 12)}),
    Call("ops.resample_reference", ops.resample_reference, lambda: {"x": torch.randn(2, 3, 8), "size": 12}),
    Call("ops.group_attention", ops.group_attention, _attention),
    Call("ops.group_attention_reference", ops.group_attention_reference, _attention),
    Call("ops.nearest", ops.nearest, lambda: {"queries": _points(), "points": _points(), "count": 2}),
    Call("ops.nearest_nodes", ops.nearest_nodes, lambda: {"points": _points(), "shape": (3, 3), "count": 2}),
    Call("ops.bilateral_edges", ops.bilateral_edges, lambda: {"points": _points(), "shape": (3, 3), "neighbors": 2}),
    Call(
        "ops.query_edges",
        ops.query_edges,
        lambda: {"queries": torch.rand(1, 4, 2), "points": _points(), "shape": (3, 3), "neighbors": 2},
    ),
    Call(
        "ops.aggregate",
        ops.aggregate,
        lambda: {"messages": torch.rand(*_edges().source.shape, 2), "edges": _edges(), "size": 9},
    ),
    Call(
        "ops.pass_messages",
        ops.pass_messages,
        lambda: {
            "values": torch.rand(1, 6, 2),
            "sources": _points(),
            "targets": torch.rand(1, 9, 2),
            "edges": _edges(),
            "message": lambda values, offsets: offsets if values is None else values[..., :2] + offsets,
            "channels": 2,
        },
    ),
    Call(
        "ops.point_conv",
        ops.point_conv,
        lambda: {
            "x": torch.rand(1, 2, 6),
            "coords": _points(),
            "kernel": _kernel,
            "size": torch.ones(2),
            "out_channels": 3,
            "neighbors": 4,
            "mask": torch.ones(1, 6, dtype=torch.bool),
        },
    ),
    Call(
        "ops.plan_points",
        ops.plan_points,
        lambda: {
            "coords": _points(),
            "kernel": _kernel,
            "size": torch.ones(2),
            "in_channels": 2,
            "out_channels": 3,
            "method": "cells",
        },
    ),
    Call(
        "ops.point_sums",
        ops.point_sums,
        lambda: {"x": torch.rand(1, 2, 6), "coords": _points(), "kernel": _kernel, "size": torch.ones(2)},
    ),
    Call(
        "ops.sample_density",
        ops.sample_density,
        lambda: {"coords": _points(), "mask": torch.ones(1, 6, dtype=torch.bool), "neighbors": 3},
    ),
    Call(
        "ops.limit_point_memory",
        ops.limit_point_memory,
        lambda: {"limit": 1 << 24},
        lambda switch: switch.__exit__(None, None, None),
    ),
    Call(
        "ops.use_fast_paths",
        ops.use_fast_paths,
        lambda: {"enabled": True},
        lambda switch: switch.__exit__(None, None, None),
    ),
]

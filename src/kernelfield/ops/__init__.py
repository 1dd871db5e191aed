"""Operators: pure functions of tensors, without parameters; each fast path beside a readable reference."""

from .attention import group_attention, group_attention_reference
from .backend import use_fast_paths
from .conv import conv
from .conv.reference import conv_reference
from .filter_bank import Dilated, conv_bank
from .points import (
    Edges,
    PointPlan,
    aggregate,
    bilateral_edges,
    limit_point_memory,
    nearest,
    nearest_nodes,
    pass_messages,
    plan_points,
    point_conv,
    point_sums,
    query_edges,
    sample_density,
)
from .resample import resample, resample_reference

__all__ = [
    "Dilated",
    "Edges",
    "PointPlan",
    "aggregate",
    "bilateral_edges",
    "conv",
    "conv_bank",
    "conv_reference",
    "group_attention",
    "group_attention_reference",
    "limit_point_memory",
    "nearest",
    "nearest_nodes",
    "pass_messages",
    "plan_points",
    "point_conv",
    "point_sums",
    "query_edges",
    "resample",
    "resample_reference",
    "sample_density",
    "use_fast_paths",
]

"""Operators: pure functions of tensors, no parameters. Each fast path stands beside a readable reference."""

from .attention import group_attention, group_attention_reference
from .backend import use_fast_paths
from .conv import conv
from .conv.reference import conv_reference, resample_reference
from .filter_bank import Dilated, conv_bank
from .points import point_conv, point_sums, sample_density
from .points.messages import aggregate, pass_messages
from .points.neighbors import Edges, bilateral_edges, nearest, nearest_nodes
from .resample import resample

__all__ = [
    "Dilated",
    "Edges",
    "aggregate",
    "bilateral_edges",
    "conv",
    "conv_bank",
    "conv_reference",
    "group_attention",
    "group_attention_reference",
    "nearest",
    "nearest_nodes",
    "pass_messages",
    "point_conv",
    "point_sums",
    "resample",
    "resample_reference",
    "sample_density",
    "use_fast_paths",
]

"""Operators: pure functions of tensors, no parameters. Each fast path stands beside a readable reference."""

from .attention import group_attention, group_attention_reference
from .bank import Dilated, conv_bank
from .conv import conv
from .messages import aggregate, pass_messages
from .neighbors import Edges, bilateral_edges, nearest, nearest_nodes
from .points import point_conv, point_sums, sample_density
from .reference import conv_reference, resample_reference
from .spectral import resample

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
]

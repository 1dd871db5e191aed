"""Operators on points at any coordinates: convolution, density, neighbours and messages."""

from .density import sample_density
from .messages import aggregate, pass_messages
from .neighbors import Edges, bilateral_edges, nearest, nearest_nodes
from .point_conv import METHODS, point_conv, point_sums

__all__ = [
    "METHODS",
    "Edges",
    "aggregate",
    "bilateral_edges",
    "nearest",
    "nearest_nodes",
    "pass_messages",
    "point_conv",
    "point_sums",
    "sample_density",
]

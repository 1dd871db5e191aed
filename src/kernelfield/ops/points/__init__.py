"""Operators on points at any coordinates: convolution, density, neighbours and messages."""

from .chunks import limit_point_memory
from .density import sample_density
from .messages import aggregate, pass_messages
from .neighbors import Edges, bilateral_edges, nearest, nearest_nodes
from .plan import PointPlan
from .point_conv import plan_points, point_conv, point_sums
from .queries import query_edges

__all__ = [
    "Edges",
    "PointPlan",
    "aggregate",
    "bilateral_edges",
    "limit_point_memory",
    "nearest",
    "nearest_nodes",
    "pass_messages",
    "plan_points",
    "point_conv",
    "point_sums",
    "query_edges",
    "sample_density",
]

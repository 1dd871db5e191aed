"""Context parallelism: long sequences, images and volumes split over processes, with exact results."""

from .collectives import count_bytes
from .scatter import gather, scatter
from .shard import shard
from .slabs import make_mesh
from .volume import ConvPlan, plan_conv

__all__ = ["ConvPlan", "count_bytes", "gather", "make_mesh", "plan_conv", "scatter", "shard"]

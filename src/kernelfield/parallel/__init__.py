"""Context parallelism: long sequences, images and volumes split over processes, with exact results.

The files:

- entry points: ``slabs`` (the mesh), ``shard`` (networks; begin here), ``scatter`` (signals);
- layers of a sharded network: ``conv``, ``layers`` (norms, dropout, readouts), ``band_limit``, ``dropout``;
- between processes: ``collectives`` (exchanges), ``volume`` (their number of bytes), ``agree`` (common errors).
"""

from .collectives import count_bytes
from .scatter import gather, scatter
from .shard import shard
from .slabs import make_mesh
from .volume import ConvPlan, plan_conv

__all__ = ["ConvPlan", "count_bytes", "gather", "make_mesh", "plan_conv", "scatter", "shard"]

"""Layers, each made of a field, perhaps a mask or a group, and an operator.

- ``continuous/``: convolutions whose kernel is sampled from a field;
- ``group/``: layers on groups;
- ``points/``: layers between point clouds and grids;
- ``pointwise``: linear maps, norms and dropout of channels, used by all of them;
- ``penalties`` on the kernels of a network.
"""

from . import continuous, group, points
from .continuous import *
from .group import *
from .penalties import aliasing_loss, kernel_frequency, kernel_l2, kernel_norm, nyquist
from .points import *
from .pointwise import BatchNorm, ChannelNorm, CumulativeNorm, Dropout, Pointwise, make_norm, normalise

__all__ = [
    "BatchNorm",
    "ChannelNorm",
    "CumulativeNorm",
    "Dropout",
    "Pointwise",
    "aliasing_loss",
    "kernel_frequency",
    "kernel_l2",
    "kernel_norm",
    "make_norm",
    "normalise",
    "nyquist",
]
__all__ += continuous.__all__
__all__ += group.__all__
__all__ += points.__all__

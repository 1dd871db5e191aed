"""Groups that act on space, and distributions over them. One contract: :class:`Group`.

The files: ``base`` (the contract; begin here), one per group, ``semidirect`` and ``rotation`` (shared by groups of the
plane), ``affine`` (translations added), ``grid`` (transformed signals), ``distributions/`` (chapter 11).
"""

from .affine import E2, SE2, Affine, scale_translation
from .base import Group
from .cyclic import Cyclic
from .dihedral import Dihedral
from .distributions.base import Distribution, Interval, Uniform
from .distributions.bernoulli import Bernoulli
from .distributions.independent import Independent, learned, monotonicity, parameter_groups
from .grid import transform, warp
from .mirror import Mirror
from .o2 import O2
from .product import Product
from .scale import Scale
from .so2 import SO2
from .trivial import Trivial

__all__ = [
    "E2",
    "O2",
    "SE2",
    "SO2",
    "Affine",
    "Bernoulli",
    "Cyclic",
    "Dihedral",
    "Distribution",
    "Group",
    "Independent",
    "Interval",
    "Mirror",
    "Product",
    "Scale",
    "Trivial",
    "Uniform",
    "learned",
    "monotonicity",
    "parameter_groups",
    "scale_translation",
    "transform",
    "warp",
]

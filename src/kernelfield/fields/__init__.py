"""Fields: continuous functions of coordinates, from which kernels are sampled. One contract: :class:`Field`."""

from .base import Field
from .filters import FilterNetwork, FourierFilter, GaborFilter, MAGNet
from .mlp import MLP, SIREN
from .random_fourier import RandomFourier
from .splines import BSpline, Table, cardinal_bspline

__all__ = [
    "MLP",
    "SIREN",
    "BSpline",
    "Field",
    "FilterNetwork",
    "FourierFilter",
    "GaborFilter",
    "MAGNet",
    "RandomFourier",
    "Table",
    "cardinal_bspline",
]

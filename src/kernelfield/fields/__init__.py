"""Fields: continuous functions of coordinates, from which kernels are sampled. One contract: :class:`Field`.

The files: ``base`` (the contract; begin here), one per family of fields, ``start`` (published initialisations), ``fit``
(a field fitted to values).
"""

from .base import Field, bind_field, bind_start, build_field
from .filters import FilterNetwork, FourierFilter, GaborFilter, MAGNet
from .fit import fit_field
from .mlp import MLP, SIREN
from .morlet import Morlet
from .njet import NJet
from .random_fourier import RandomFourier
from .shared import SharedField
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
    "Morlet",
    "NJet",
    "RandomFourier",
    "SharedField",
    "Table",
    "bind_field",
    "bind_start",
    "build_field",
    "cardinal_bspline",
    "fit_field",
]

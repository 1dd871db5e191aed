"""A working call of every public constructor and function, by room."""

from __future__ import annotations

from . import data, experiments, fields, grids, groups, layers, models, ops, parallel, streaming
from .call import Call

__all__ = ["INTERNAL", "PACKAGES", "ROOMS", "Call"]

_MODULES = (fields, grids, groups, layers, models, ops, data, streaming, parallel, experiments)
#: room: its calls
ROOMS: dict[str, list[Call]] = {module.__name__.rpartition(".")[2]: module.CALLS for module in _MODULES}
#: packages whose public names must all be called
PACKAGES = ("fields", "masks", "grids", "groups", "layers", "models", "ops", "parallel")
#: public names that are not for users to call: networks make them, they are plain tuples, or they take no arguments
INTERNAL = {
    "grids.KernelGrid",
    "groups.E2",
    "groups.Group",
    "groups.Product",
    "groups.SE2",
    "models.Classifier",
    "models.import_network",
    "models.RandomKernelNet",
    "models.RandomKernels",
    "ops.Dilated",
    "ops.Edges",
    "ops.PointPlan",
    "parallel.ConvPlan",
    "parallel.count_bytes",
    *(f"layers.{name}" for name in layers.INTERNAL),
}

"""A working call of every public constructor and function, by room."""

from __future__ import annotations

from . import fields, grids, groups
from .call import Call

__all__ = ["INTERNAL", "PACKAGES", "ROOMS", "Call"]

_MODULES = (fields, grids, groups)
#: room: its calls
ROOMS: dict[str, list[Call]] = {module.__name__.rpartition(".")[2]: module.CALLS for module in _MODULES}
#: packages whose public names must all be called
PACKAGES = ("fields", "masks", "grids", "groups")
#: public names that are not for users to call: networks make them
INTERNAL = {"grids.KernelGrid", "groups.Group", "groups.Product", "groups.E2", "groups.SE2"}

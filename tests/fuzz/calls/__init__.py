"""A working call of every public constructor and function, by room."""

from __future__ import annotations

from . import fields, grids
from .call import Call

__all__ = ["INTERNAL", "PACKAGES", "ROOMS", "Call"]

_MODULES = (fields, grids)
#: room: its calls
ROOMS: dict[str, list[Call]] = {module.__name__.rpartition(".")[2]: module.CALLS for module in _MODULES}
#: packages whose public names must all be called
PACKAGES = ("fields", "masks", "grids")
#: public names that are not for users to call: networks make them
INTERNAL = {"grids.KernelGrid"}

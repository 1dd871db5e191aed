"""Layers between point clouds and regular grids (chapter 4)."""

from .gridify import Degridify, Gridify
from .message import MessageLayer

__all__ = ["Degridify", "Gridify", "MessageLayer"]

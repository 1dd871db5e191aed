"""Layers: a field, perhaps a mask, perhaps a group, and an operator."""

from .continuous import CKConv, ContinuousConv, FlexConv, SeparableConv
from .pointwise import BatchNorm, Pointwise

__all__ = ["BatchNorm", "CKConv", "ContinuousConv", "FlexConv", "Pointwise", "SeparableConv"]

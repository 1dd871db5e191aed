"""Layers whose kernel is sampled from a field (chapters 2, 3 and 5)."""

from .conv import CKConv, ContinuousConv, FlexConv
from .separable import SeparableConv

__all__ = ["CKConv", "ContinuousConv", "FlexConv", "SeparableConv"]

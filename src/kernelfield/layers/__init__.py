"""Layers: a field, perhaps a mask, perhaps a group, and an operator."""

from .continuous import (
    CCNNBlock,
    CKConv,
    ContinuousConv,
    FlexConv,
    SeparableConv,
    TwoConvBlock,
    aliasing_loss,
    kernel_frequency,
    kernel_l2,
    nyquist,
)
from .pointwise import BatchNorm, Pointwise

__all__ = [
    "BatchNorm",
    "CCNNBlock",
    "CKConv",
    "ContinuousConv",
    "FlexConv",
    "Pointwise",
    "SeparableConv",
    "TwoConvBlock",
    "aliasing_loss",
    "kernel_frequency",
    "kernel_l2",
    "nyquist",
]

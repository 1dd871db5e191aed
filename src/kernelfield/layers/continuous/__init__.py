"""Layers whose kernel is sampled from a field (chapters 2, 3 and 5)."""

from .base import ContinuousConv
from .blocks import CCNNBlock, TwoConvBlock
from .conv import CKConv, FlexConv
from .regularizers import aliasing_loss, kernel_frequency, kernel_l2, nyquist
from .separable import SeparableConv
from .together import sample_kernels

__all__ = [
    "CCNNBlock",
    "CKConv",
    "ContinuousConv",
    "FlexConv",
    "SeparableConv",
    "TwoConvBlock",
    "aliasing_loss",
    "kernel_frequency",
    "kernel_l2",
    "nyquist",
    "sample_kernels",
]

"""Layers whose kernel is sampled from a field (chapters 2, 3 and 5)."""

from .blocks import CCNNBlock, TwoConvBlock
from .ckconv import CKConv, FlexConv
from .continuous_conv import ContinuousConv
from .kernel_sampler import sample_kernels
from .penalties import aliasing_loss, kernel_frequency, kernel_l2, kernel_norm, nyquist
from .separable import SeparableConv

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
    "kernel_norm",
    "nyquist",
    "sample_kernels",
]

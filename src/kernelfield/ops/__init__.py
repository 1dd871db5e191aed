"""Operators: pure functions of tensors, no parameters. Each fast path stands beside a readable reference."""

from .conv import conv
from .reference import conv_reference, resample_reference
from .spectral import resample

__all__ = ["conv", "conv_reference", "resample", "resample_reference"]

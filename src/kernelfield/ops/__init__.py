"""Operators: pure functions of tensors, no parameters. Each fast path stands beside a readable reference."""

from .conv import conv
from .points import point_conv, point_sums, sample_density
from .reference import conv_reference, resample_reference
from .spectral import resample

__all__ = ["conv", "conv_reference", "point_conv", "point_sums", "resample", "resample_reference", "sample_density"]

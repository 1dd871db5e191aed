"""Layers whose kernel is sampled from a field (chapters 2, 3 and 5).

Files in reading order:

- the layers: ``ckconv``, ``flexconv`` (with a mask), ``separable``; ``blocks`` makes residual blocks of them;
- their base classes: ``continuous_conv`` convolves, ``sampled_kernel`` samples the kernel on a grid;
- parts of a forward pass: ``kernel_sampler`` samples the kernels of many layers at once, ``sampling`` weights
  samples, ``smoothing`` blurs kernels on fine grids, ``point_path`` convolves at points, ``frozen`` keeps kernels for
  predictions;
- learned sizes: ``kernel_support`` crops a kernel to its mask, ``learned_size`` reads masks, ``active_slice``
  and ``band_limit`` serve learned architectures.
"""

from .active_slice import ActiveSlice
from .band_limit import BandLimit, FixedShapeBandLimit, cutoff
from .blocks import CCNNBlock, TwoConvBlock, run_blocks
from .ckconv import CKConv
from .continuous_conv import ContinuousConv
from .flexconv import FlexConv
from .kernel_sampler import sample_kernels
from .learned_size import LearnedSize
from .point_path import use_point_plans
from .sampling import seen_only
from .separable import SeparableConv

__all__ = [
    "ActiveSlice",
    "BandLimit",
    "CCNNBlock",
    "CKConv",
    "ContinuousConv",
    "FixedShapeBandLimit",
    "FlexConv",
    "LearnedSize",
    "SeparableConv",
    "TwoConvBlock",
    "cutoff",
    "run_blocks",
    "sample_kernels",
    "seen_only",
    "use_point_plans",
]

"""Operators: pure functions of tensors, without parameters, each with a readable reference beside its fast paths.

Each operator is a folder. Its ``__init__`` has the function and chooses a path, ``reference`` is the readable formula,
and ``triton/`` has the GPU kernels. Read ``conv/`` first; the others are ``resample/``, ``points/``, ``fused/``,
``fieldnet/``, ``attention/``, ``attentive/``, and the files ``filter_bank`` and ``sum_of_norms``. Shared parts:

- ``backend`` decides whether Triton kernels run and can turn them off; ``triton_probe`` runs one as a test;
- ``autograd`` has gradients of every order, ``kernel_operator`` has operators for compilers, ``graph_cache`` has tables
  that CUDA graphs may read;
- ``calibration/`` measures the costs by which ``conv/cost`` chooses a method;
- ``architectures``, ``launch_sizes``, ``precompile``: limits of GPUs, launch grids, kernels compiled ahead of time.
"""

from . import points
from .attention import group_attention, group_attention_reference
from .backend import use_fast_paths
from .conv import conv
from .conv.reference import conv_reference
from .filter_bank import Dilated, conv_bank
from .points import *
from .resample import resample, resample_reference

__all__ = [
    "Dilated",
    "conv",
    "conv_bank",
    "conv_reference",
    "group_attention",
    "group_attention_reference",
    "resample",
    "resample_reference",
    "use_fast_paths",
]
__all__ += points.__all__

"""Layers on groups. They take and return a :class:`GroupSignal`, values (batch, channels, group, *space).

The files:

- signals: ``signal`` (begin here), ``torch_functions`` (functions of torch that accept them), ``checks``;
- convolutions: ``gconv``, ``separable``, ``partial`` (chapter 11), ``projection`` (back to space), ``scale`` (kernels
  of several sizes), ``wavelets``; their parts ``kernel`` (sampled at pairs of elements), ``table_lookup`` (permuted
  tables) and ``correlate``;
- attention: ``coattention`` (chapter 7), ``attentive`` and ``input_attention`` (chapter 8), ``self_attention`` with
  ``relative_encoding`` (chapter 9), ``neighborhood``;
- others: ``norm``, ``dropout``, ``pool``, ``upsample``, ``residual``; ``factory`` builds convolutions by the name of
  their attention.
"""

from .attentive import AttentiveGroupConv, AttentiveLiftingConv
from .coattention import CoAttentive, CyclicSelfAttention
from .dropout import GroupDropout
from .gconv import GroupConv, LiftingConv
from .input_attention import GateAttention, InputAttention
from .kernel import GroupKernel
from .norm import GroupBatchNorm, GroupLayerNorm
from .partial import PartialGroupConv
from .pool import GroupPool, SpatialPool
from .projection import ProjectionConv
from .relative_encoding import RelativeEncoding
from .residual import GroupResidualBlock, PartialResidualBlock, SelfAttentionBlock
from .self_attention import GroupSelfAttention, LiftingSelfAttention
from .separable import SeparableGroupConv
from .signal import GroupSignal
from .upsample import SpatialUpsample
from .wavelets import WaveletTransform, wavelet_loss

__all__ = [
    "AttentiveGroupConv",
    "AttentiveLiftingConv",
    "CoAttentive",
    "CyclicSelfAttention",
    "GateAttention",
    "GroupBatchNorm",
    "GroupConv",
    "GroupDropout",
    "GroupKernel",
    "GroupLayerNorm",
    "GroupPool",
    "GroupResidualBlock",
    "GroupSelfAttention",
    "GroupSignal",
    "InputAttention",
    "LiftingConv",
    "LiftingSelfAttention",
    "PartialGroupConv",
    "PartialResidualBlock",
    "ProjectionConv",
    "RelativeEncoding",
    "SelfAttentionBlock",
    "SeparableGroupConv",
    "SpatialPool",
    "SpatialUpsample",
    "WaveletTransform",
    "wavelet_loss",
]

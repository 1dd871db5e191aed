"""Layers on groups. Signals are (batch, channels, group, *space) and travel with the elements they are sampled at."""

from .attention_block import SelfAttentionBlock
from .attentive import AttentiveGroupConv, AttentiveLiftingConv
from .coattention import CyclicSelfAttention
from .factory import CoAttentive, make_group_conv, make_lifting_conv
from .gconv import GroupConv, LiftingConv
from .input_attention import InputAttention
from .kernel import GroupKernel
from .partial import PartialGroupConv
from .pointwise import GroupBatchNorm, GroupDropout, GroupLayerNorm, GroupPool, SpatialPool
from .relative_encoding import RelativeEncoding
from .residual import GroupResidualBlock, PartialResidualBlock
from .self_attention import GroupSelfAttention, LiftingSelfAttention
from .separable import SeparableGroupConv
from .signal import GroupSignal
from .wavelets import WaveletTransform, wavelet_loss

__all__ = [
    "AttentiveGroupConv",
    "AttentiveLiftingConv",
    "CoAttentive",
    "CyclicSelfAttention",
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
    "RelativeEncoding",
    "SelfAttentionBlock",
    "SeparableGroupConv",
    "SpatialPool",
    "WaveletTransform",
    "make_group_conv",
    "make_lifting_conv",
    "wavelet_loss",
]

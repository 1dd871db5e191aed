"""Causal networks that read their input as it arrives."""

from .distil import Distilled, LayerReport, distil
from .generate import generate
from .online_conv import OnlineConv
from .recurrent_conv import RecurrentConv
from .stream import Stream, stream

__all__ = ["Distilled", "LayerReport", "OnlineConv", "RecurrentConv", "Stream", "distil", "generate", "stream"]

"""Causal networks that read their input as it arrives."""

from .online_conv import OnlineConv
from .stream import Stream, stream

__all__ = ["OnlineConv", "Stream", "stream"]

"""Causal networks that read their input as it arrives."""

from .distil import Distilled, LayerReport, distil
from .export import ExportedStream, StreamStep, export_stream
from .generate import generate
from .online_conv import OnlineConv
from .recurrent_conv import RecurrentConv
from .stream import Stream, stream

__all__ = [
    "Distilled",
    "ExportedStream",
    "LayerReport",
    "OnlineConv",
    "RecurrentConv",
    "Stream",
    "StreamStep",
    "distil",
    "export_stream",
    "generate",
    "stream",
]

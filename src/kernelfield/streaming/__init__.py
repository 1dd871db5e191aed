"""Causal networks that read their input as it arrives.

:func:`stream` makes a stream of a network, :func:`distil` replaces its long kernels by recurrences. The files:

- streams: ``stream`` (begin here), ``causality`` (which networks can stream), ``layers`` (layers with a state),
  ``online_conv`` (exact long convolutions), ``inference`` (faster pointwise layers);
- CUDA graphs of single samples: ``static_step``, ``clock``;
- distillation: ``distil``, ``exponentials`` (the fit), ``recurrent_conv`` (the layer);
- uses: ``generate`` (text), ``export`` (streams as files).
"""

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

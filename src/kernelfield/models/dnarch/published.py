"""Networks of chapter 6: the CCNNs that DNArch starts from, and DNArch of a new CCNN."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from ..._arguments import with_arguments_of
from ...fields import RandomFourier
from ..ccnn import CCNN
from ..registry import register
from .network import DNArch

__all__ = ["learned_ccnn"]


@with_arguments_of(CCNN, DNArch, without=("network",))
def learned_ccnn(in_channels: int, out_channels: int, **options: Any) -> DNArch:
    """Return a :class:`DNArch` of a new CCNN.

    Args:
        in_channels: channels of the input.
        out_channels: number of predictions.
        options: arguments of :class:`DNArch`, except ``network`` and ``sigma``; all others are the CCNN's.
    """
    names = inspect.signature(DNArch).parameters.keys() - {"sigma"}
    learned = {name: options.pop(name) for name in names & options.keys()}
    return DNArch(CCNN(in_channels, out_channels, **options), **learned)


#: options of chapter 6's CCNN: global kernels that are not causal, a linear stem, and norms with batch statistics
_CHAPTER_6: dict[str, Any] = {"sigma": None, "stem": "linear", "norm": "batch-statistics", "causal": False}
_LARGE: dict[str, Any] = {"blocks": 6, "channels": 380, "hidden": 64}
register("ccnn_4_140_global", CCNN, "CCNN_4,140 with global kernels (chapter 6's base)", **_CHAPTER_6)
register("ccnn_6_380_global", CCNN, "CCNN_6,380 with global kernels (chapter 6's base)", **_CHAPTER_6, **_LARGE)
register("dnarch_4_140", learned_ccnn, "CCNN_4,140 whose architecture is learned (chapter 6)", **_CHAPTER_6)
register("dnarch_6_380", learned_ccnn, "CCNN_6,380 whose architecture is learned (chapter 6)", **_CHAPTER_6, **_LARGE)
# Chapter 6's own kernels: one network for all layers, random Fourier features and four linear maps of 128 units.
_SHARED: dict[str, Any] = {
    "field": partial(RandomFourier, layers=4, features=128, learn_frequencies=False),
    "shared_field": True,
    "hidden": 128,
    "omega_0": 16.0,  # keeps kernels smooth enough for other resolutions; published values are thousands, one per task
}
for _size, _large in (("4_140", {}), ("6_380", _LARGE)):
    _options = {**_CHAPTER_6, **_large, **_SHARED}
    _title = f"CCNN_{_size.replace('_', ',')} with one kernel network for all layers"
    register(f"ccnn_{_size}_shared", CCNN, f"{_title} (chapter 6)", **_options)
    register(f"dnarch_{_size}_shared", learned_ccnn, f"{_title}, its architecture learned (chapter 6)", **_options)

"""Capture work on a GPU as a CUDA graph, for training steps and for streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["capture", "capture_stream"]


def capture_stream() -> torch.cuda.Stream:
    """Return the stream to capture on: the current one, or a new one if that is the device's default.

    Libraries have a workspace for each stream, and a graph contains the address of the workspace. Two owners of graphs
    must therefore not share a capture stream, and work must run eagerly on this stream before it is captured.
    """
    current = torch.cuda.current_stream()
    return torch.cuda.Stream() if current == torch.cuda.default_stream() else current


def capture(work: Callable[[], Any], *, pool: Any, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a CUDA graph of ``work()``, and its result. Capturing runs nothing on the device.

    Args:
        work: a function that never waits for the device and whose tensors keep their addresses and shapes.
        pool: memory that graphs share, from :func:`torch.cuda.graph_pool_handle`.
        stream: the stream of :func:`capture_stream`.

    Raises:
        Exception: an error of ``work``, or a RuntimeError if it cannot be captured. The device is left unchanged.
    """
    torch.cuda.synchronize()
    numbers = torch.cuda.default_generators[torch.cuda.current_device()]
    before = numbers.clone_state()
    graph = torch.cuda.CUDAGraph()
    try:
        # thread_local lets other threads use the device meanwhile, such as one that pins the memory of batches.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            found = work()
    except Exception:
        torch.cuda.synchronize()
        # A failed capture leaves the random state in capturing mode, in which eager code cannot draw numbers.
        numbers.graphsafe_set_state(before)
        raise
    return graph, found

"""Capture work on a GPU as a CUDA graph, for training steps and for streams."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["capture", "capture_stream", "cause", "reason_of", "without_autocast_cache"]


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
    except BaseException:
        torch.cuda.synchronize()
        # A failed capture leaves the random state in capturing mode, in which eager code cannot draw numbers.
        numbers.graphsafe_set_state(before)
        raise
    return graph, found


@contextlib.contextmanager
def without_autocast_cache(device: str) -> Iterator[None]:
    """Turn off autocast's cache, so that the graph casts every weight itself and reuses no cast of earlier calls."""
    if not torch.is_autocast_enabled(device):
        yield
        return
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def cause(error: BaseException) -> BaseException:
    """Return the first error of a chain; a failed recording raises a second error when it ends."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def reason_of(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the first cause of an error as one line, with the line of the function that raised it."""
    error = cause(error)
    text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else text

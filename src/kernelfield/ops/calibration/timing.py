"""Shortest times of calls, and of their replays as CUDA graphs, for measurements of a few milliseconds."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["least_seconds"]

#: seconds of one sample; shorter calls are repeated to fill it
SAMPLE = 1e-3
#: largest number of calls in a CUDA graph; for one short call, the launch of the graph would count
GRAPHED = 16


def least_seconds(
    calls: Mapping[str, Callable[[], object]], device: torch.device, budget: float = 0.03, *, graphs: bool = False
) -> dict[str, float]:
    """Return the shortest time of each call. Calls alternate, so that changes of the machine affect all of them.

    With one CPU thread the times are CPU times, which other processes disturb less.

    Args:
        calls: functions to time, by name.
        device: device on which they run.
        budget: seconds for each function. A slower function is measured once, after a first call.
        graphs: whether to record each call as a CUDA graph and to time its replays.
    """
    if graphs:
        recorded = {name: _recorded(call, device) for name, call in calls.items()}
        least = least_seconds({name: replay for name, (replay, _) in recorded.items()}, device, budget)
        return {name: least[name] / count for name, (_, count) in recorded.items()}
    repeats, least = {}, {}
    for name, call in calls.items():
        _sample(call, 1, device)  # in the first call, libraries choose their algorithms
        least[name] = _sample(call, 1, device)
        repeats[name] = max(1, math.ceil(SAMPLE / max(least[name], 1e-6)))
    slowest = max(least[name] * repeats[name] for name in calls)
    for _ in range(max(0, min(20, int(budget / slowest)))):
        for name, call in calls.items():
            least[name] = min(least[name], _sample(call, repeats[name], device))
    return least


def _sample(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(stop)) / 1e3 / repeats
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def _recorded(call: Callable[[], object], device: torch.device) -> tuple[Callable[[], object], int]:
    """Return the replay of a CUDA graph of some calls, and their number."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        _sample(call, 1, device)  # libraries allocate and choose their algorithms
        count = max(1, min(GRAPHED, math.ceil(SAMPLE / max(_sample(call, 1, device), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            call()
    return graph.replay, count

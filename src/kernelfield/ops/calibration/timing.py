"""Shortest times of calls, for measurements of a few milliseconds."""

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


def least_seconds(
    calls: Mapping[str, Callable[[], object]], device: torch.device, budget: float = 0.03
) -> dict[str, float]:
    """Return the shortest time of each call. Calls alternate, so that changes of the machine affect all of them.

    With one CPU thread the times are CPU times, which other processes disturb less.

    Args:
        calls: functions to time, by name.
        device: device on which they run.
        budget: seconds for each function. A slower function is measured once, after a first call.
    """
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

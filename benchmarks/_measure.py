"""Timing, memory and a description of the machine, shared by all benchmarks."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import math
import os
import platform
import resource
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "Budget",
    "OutOfTimeError",
    "check_peak_bytes",
    "copy_bandwidth",
    "exponent",
    "graphed",
    "least_seconds",
    "machine",
    "median_ratios",
    "median_seconds",
    "peak_bytes",
    "sample_seconds",
    "settle_allocator",
    "time_limit",
]

# Shorter calls are repeated to fill this time; otherwise the clock and the launch would dominate.
_SAMPLE_SECONDS = 2e-3


class Budget:
    """Seconds that a benchmark may take, counted from the start of its process.

    Imports and the compilation of kernels count too: on a machine without Triton's cache they take longer than the
    measurements. A measurement that has begun is finished, so a run ends a little after its budget.

    >>> Budget(0.0).spent, Budget(1e6).spent
    (True, False)
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self._started = time.perf_counter() - _process_age()

    @property
    def elapsed(self) -> float:
        """Seconds since the process started."""
        return time.perf_counter() - self._started

    @property
    def spent(self) -> bool:
        """Whether no new measurement should start."""
        return self.elapsed > self.seconds

    def log(self, text: str) -> None:
        """Print the time and ``text`` to the error stream; standard output holds only the table."""
        print(f"[{self.elapsed:6.1f} s] {text}", file=sys.stderr, flush=True)


class OutOfTimeError(BaseException):
    """The time of a row is over. Not an Exception, since a compiler would wrap it in one of its own."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTimeError` inside the ``with`` block after ``seconds``; in the main thread only.

    A kernel that is being compiled or launched is finished first.

    >>> with contextlib.suppress(OutOfTimeError), time_limit(0.01):
    ...     time.sleep(60)
    """

    def stop(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0 if math.isinf(seconds) else max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _process_age() -> float:
    """Return for how many seconds this process has run; 0 where the system does not tell."""
    try:
        # The fields after the name, which is in parentheses and may hold spaces; the start is the 22nd of all.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


def settle_allocator() -> None:
    """Bring glibc's allocator to the state of a long-running process.

    glibc returns freed memory to the kernel, and the next call pays page faults for it. Once a large block was freed,
    glibc keeps up to 64 MiB. Without this function a call of 1 ms takes 1 or 3 ms, depending on what ran before it.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)


def median_seconds(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, budget: float = 1.0
) -> dict[str, float]:
    """Return the median time of each call, in turns (ABC ABC …), so that drift of the machine affects all alike.

    On a CPU with one thread (``OMP_NUM_THREADS=1``) it is CPU time, otherwise wall-clock time.

    Args:
        calls: functions to time, by name.
        device: where they run.
        budget: seconds to spend on each of them; a longer call is measured once.
    """
    return {name: statistics.median(times) for name, times in _samples(calls, device, budget).items()}


def median_ratios(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, budget: float = 1.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median time of each call, and the median over all turns of its time relative to the first call's.

    Two calls of one turn meet the same load of the machine, so the ratio is steadier than that of two medians.
    """
    samples = _samples(calls, device, budget)
    first = samples[next(iter(calls))]
    ratios = {
        name: statistics.median(b / a for a, b in zip(first, times, strict=False)) for name, times in samples.items()
    }
    return {name: statistics.median(times) for name, times in samples.items()}, ratios


def least_seconds(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, budget: float = 1.0
) -> dict[str, float]:
    """Return the shortest time of each call, as in :func:`median_seconds`; a busy machine disturbs it less."""
    return {name: min(times) for name, times in _samples(calls, device, budget).items()}


def _samples(calls: Mapping[str, Callable[[], object]], device: torch.device, budget: float) -> dict[str, list[float]]:
    turns, repeats, samples = {}, {}, {}
    for name, call in calls.items():
        turns[name] = 0
        warm = sample_seconds(call, 1, device)
        # For a long call the first time suffices; on a GPU it may include the loading of libraries.
        if warm < 10 * budget or device.type == "cuda":
            warm = min(sample_seconds(call, 1, device) for _ in range(2))
        samples[name] = [warm]
        if warm < budget:
            repeats[name] = math.ceil(_SAMPLE_SECONDS / warm)
            turns[name] = max(5, min(50, int(budget / (warm * (repeats[name] + 1)))))
            samples[name].clear()
    # On a busy machine samples are repeated, and turns take longer than they were planned to.
    deadline = time.perf_counter() + 2 * budget * len(calls)
    for turn in range(max(turns.values())):
        if turn >= 5 and time.perf_counter() > deadline:
            break
        for name, call in calls.items():
            if turn < turns[name]:
                call()  # untimed: the previous call left other caches and free memory
                samples[name].append(sample_seconds(call, repeats[name], device))
    return samples


def sample_seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the seconds one call takes on average over ``repeats`` in a row."""
    return (_sample_cuda if device.type == "cuda" else _sample_cpu)(call, repeats) / repeats


def _sample_cuda(call: Callable[[], object], repeats: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def _sample_cpu(call: Callable[[], object], repeats: int) -> float:
    # The CPU time of one thread is known. On a shared machine it is the time that the thread would take alone.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    least, deadline = math.inf, time.perf_counter() + 0.1
    while True:
        switches = _involuntary_switches()
        begin = clock()
        for _ in range(repeats):
            call()
        least = min(least, clock() - begin)
        end = time.perf_counter()
        # A thread that loses its core to another process keeps all others waiting for long. Such a sample is
        # repeated after a pause, which makes this process the next to run.
        if _involuntary_switches() == switches or end > deadline:
            return least
        time.sleep(0.01)


def _involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """Capture ``call`` as a CUDA graph, as training does, and return its replay."""
    from kernelfield._hooks import pause_step_hooks  # noqa: PLC0415

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), pause_step_hooks():
        for _ in range(3):  # plans and workspaces are created before the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with pause_step_hooks(), torch.cuda.graph(graph):
        call()
    return graph.replay


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log value over log size, by least squares.

    >>> round(exponent([1, 10, 100], [3, 300, 30_000]), 3)
    2.0
    """
    x, y = [math.log(n) for n in sizes], [math.log(v) for v in values]
    mx, my = statistics.mean(x), statistics.mean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes a second, read and written together, at which a large tensor is copied."""
    source = torch.ones((1 << 30 if device.type == "cuda" else 1 << 28) // 4, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds({"copy": lambda: target.copy_(source)}, device)["copy"]
    return 2 * source.nbytes / seconds


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Return how far the memory of tensors rises during the call above its level before.

    Memory that a library takes without torch's allocator is not counted: that of oneDNN and MKL on a CPU.
    """
    gc.collect()
    if device.type != "cuda":
        return _peak_bytes_cpu(call)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_bytes_cpu(call: Callable[[], object]) -> int:
    """Add up the allocations and frees of CPU tensors that the profiler reports, in order of time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise it prints every start and stop
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        call()
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def check_peak_bytes(device: torch.device) -> None:
    """Raise if :func:`peak_bytes` miscounts a call whose peak is known."""
    unit = 1 << 20

    def call() -> None:
        first = torch.empty(3 * unit, dtype=torch.uint8, device=device)
        second = torch.empty(2 * unit, dtype=torch.uint8, device=device)
        del first
        third = torch.empty(unit, dtype=torch.uint8, device=device)
        del second, third

    if (peak := peak_bytes(call, device)) != 5 * unit:
        raise RuntimeError(f"the peak of a call that holds 3 + 2, then 2 + 1 MiB was measured as {peak / unit} MiB")


def machine(device: torch.device, seed: int) -> dict[str, Any]:
    """Return a description of the machine."""
    cpu = _cpu_name()
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "seed": seed,
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""Limits on memory and time of a block, and counts that a test module prints at its end."""

from __future__ import annotations

import contextlib
import re
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    import pytest

__all__ = ["MEMORY", "bounded", "print_counts"]

#: bytes that a reader may take beyond the limit for what a file unpacks to
MEMORY = 384 * 2**20


class HangError(BaseException):
    """A block took too long."""


@contextlib.contextmanager
def bounded(seconds: int = 20, memory: int | None = MEMORY) -> Iterator[None]:
    """Raise in a block that takes more seconds of the CPU, three minutes by the clock, or more bytes of memory."""

    def stop(*_: Any) -> None:
        raise HangError(f"took more than {seconds} s")

    before = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status")
    if memory is not None and status.exists():
        used = int(re.search(r"VmData:\s+(\d+)", status.read_text())[1]) * 1024  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory, before[1]))
    handlers = [(number, signal.signal(number, stop)) for number in (signal.SIGVTALRM, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 180)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def print_counts(request: pytest.FixtureRequest, title: str, counts: Counter[str]) -> None:
    """Print counts, although pytest captures what tests print."""
    if counts:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{title}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))  # noqa: T201

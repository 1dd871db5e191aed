"""Energy use, from the counters of the processor or the power that a GPU reports."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["EnergyMeter"]

_COUNTERS = Path("/sys/class/powercap")
#: seconds between two readings of a GPU's power
_PAUSE = 0.02


class EnergyMeter:
    """Measures the energy used inside a ``with`` block.

    On a GPU it integrates the power that the driver reports. On a CPU it reads the counters of the processor packages
    (Intel and AMD, Linux), which include other programs. If neither is available, :attr:`joules` is None.

    Args:
        device: device on which the work runs.
        counters: folder of the processor's counters.

    >>> with EnergyMeter(torch.device("cpu"), counters=Path("/none")) as meter:
    ...     pass
    >>> meter.joules is None
    True
    """

    def __init__(self, device: torch.device, counters: Path = _COUNTERS) -> None:
        self.device = device
        self.joules: float | None = None
        packages = sorted(counters.glob("*-rapl:?")) if device.type == "cpu" else []
        self._counters = [path for path in packages if _number(path / "energy_uj") is not None]
        self._before: list[int] = []
        self._watts: list[float] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._begun = 0.0

    def __enter__(self) -> EnergyMeter:
        self._begun = time.perf_counter()
        self._before = [_number(path / "energy_uj") or 0 for path in self._counters]
        if self.device.type == "cuda" and _watts(self.device) is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._begun
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            if self._watts:
                self.joules = seconds * sum(self._watts) / len(self._watts)
        elif self._counters:
            self.joules = 1e-6 * sum(
                _since(path, before) for path, before in zip(self._counters, self._before, strict=True)
            )

    def _watch(self) -> None:
        while not self._ended.is_set():
            watts = _watts(self.device)
            if watts is not None:
                self._watts.append(watts)
            self._ended.wait(_PAUSE)


def _since(path: Path, before: int) -> int:
    """Return the microjoules since an earlier reading; the counter wraps around at its largest value."""
    used = (_number(path / "energy_uj") or before) - before
    return used if used >= 0 else used + (_number(path / "max_energy_range_uj") or 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _watts(device: torch.device) -> float | None:
    """Return the power that the driver reports, or None if its Python library is not installed."""
    try:
        return torch.cuda.power_draw(device) / 1000
    except (RuntimeError, ModuleNotFoundError, AttributeError):
        return None

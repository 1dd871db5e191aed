"""Costs of convolutions by device, measured on this machine or shipped with the library.

``kernelfield calibrate`` measures a device and stores the costs in the user's cache folder, one file per device. A
process reads the file of a device once, when it first chooses a method there. It ignores a file that is damaged, or of
another device or version, with one warning.

Results of two methods differ by rounding. If two processes on one machine chose differently, a resumed training run
would end with different weights. Therefore nothing is measured unless the user asks for it, and a run stores the costs
that it began with in its folder (:func:`use_costs_of`).
"""

from __future__ import annotations

import json
import platform
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from ..._files import cache_folder, write_text
from ..._version import __version__

__all__ = [
    "FORMAT",
    "GRAPH",
    "MODES",
    "SHIPPED",
    "advice",
    "clear_record",
    "costs_of",
    "describe_device",
    "forget",
    "keep_costs_in",
    "merged",
    "on_change",
    "read_record",
    "record_path",
    "shipped_costs",
    "source_of",
    "use_costs_of",
    "write_record",
]

#: costs shipped with the library; written by ``benchmarks/conv.py --calibrate``
SHIPPED = Path(__file__).with_name("costs.json")
#: version of the cost model; records of another one are ignored
FORMAT = 2
MODES = ("forward", "training")
#: prefix of the modes in which calls are parts of CUDA graphs
GRAPH = "graph "
_ALL_MODES = (*MODES, *(GRAPH + mode for mode in MODES))
#: name of the file with the costs of a run
RUN_FILE = "costs.json"

_SHIPPED: dict[str, Any] = json.loads(SHIPPED.read_text())["devices"]
#: costs in use, by type and index of the device
_in_use: dict[tuple[str, int | None], dict[str, Any]] = {}
#: measured costs from the folder of a run, by type of device; empty outside of runs
_of_run: dict[str, dict[str, Any]] = {}
#: functions to call when costs change
_listeners: list[Any] = []


def describe_device(device: torch.device) -> dict[str, Any]:
    """Return the properties that measured costs depend on: device, number of CPU threads, and versions.

    >>> sorted(describe_device(torch.device("cpu")))
    ['device', 'format', 'kernelfield', 'threads', 'torch']
    """
    names = {"cuda": lambda: torch.cuda.get_device_name(device), "cpu": _cpu_name}
    return {
        "device": names.get(device.type, lambda: device.type)(),
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "torch": torch.__version__,
        "kernelfield": __version__,
        "format": FORMAT,
    }


def _cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def record_path(device: torch.device) -> Path | None:
    """Return the file with the measured costs of a device; None if the cache folder is turned off."""
    folder = cache_folder()
    if folder is None:
        return None
    known = describe_device(device)
    name = re.sub(r"[^a-z0-9]+", "-", known["device"].lower()).strip("-") or device.type
    return folder / "costs" / (f"{name}-{known['threads']}-threads.json" if known["threads"] else f"{name}.json")


def read_record(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the measured costs in a file; None if there is no file or, with a warning, if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        _ignore(path, f"cannot be read: {error}")
        return None
    try:
        record = json.loads(text)
        found, wanted = record["measured_on"], describe_device(device)
        other = [name for name, value in wanted.items() if found[name] != value]
        _check(record["costs"])
    except (ValueError, KeyError, TypeError, RecursionError):
        _ignore(path, "is damaged")
        return None
    if other:
        _ignore(path, f"is for {other[0]} {found[other[0]]}, not {wanted[other[0]]}")
        return None
    costs: dict[str, Any] = record["costs"]
    return costs


def _ignore(path: Path, why: str) -> None:
    text = f"measured costs in {path} are ignored: the file {why}; kernelfield calibrate measures again"
    warnings.warn(text, stacklevel=2)


def _check(costs: Any) -> None:
    """Raise a ValueError unless ``costs`` have the form of the shipped ones, with rates of at least zero."""
    for tables in (costs, costs.get("bfloat16", {})):
        for mode in _ALL_MODES:
            for method, kinds in tables.get(mode, {}).items():
                for entry in kinds.values():
                    rates, short = entry["rates"], entry.get("short", 0)
                    count = 3 if method == "fft" else 2 if method.startswith("triton") else 5
                    fine = all(isinstance(r, (int, float)) and 0 <= r < 1 for r in rates)
                    if len(rates) != count or not fine or type(short) is not int or not any(rates):
                        raise ValueError(f"costs must be rates of at least 0, got {entry}")
    points = costs.get("points", {})
    if not all(isinstance(value, float) and 0 < value < 1 for value in points.values()):
        raise ValueError(f"costs of points must be seconds, got {points}")


def write_record(device: torch.device, costs: dict[str, Any]) -> Path | None:
    """Write measured costs for later processes; return the file, or None if the cache folder is turned off."""
    path = record_path(device)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"measured_on": describe_device(device), "costs": costs}, indent=1) + "\n")
    return path


def clear_record(device: torch.device) -> Path | None:
    """Remove the file with the measured costs of a device; return it, or None if there was none."""
    path = record_path(device)
    if path is None or not path.exists():
        return None
    path.unlink()
    forget()
    return path


def forget() -> None:
    """Drop the costs in use, so that the next choice reads them again; for tests and for calibration."""
    _in_use.clear()
    for listener in _listeners:
        listener()


def on_change(listener: Any) -> None:
    """Call ``listener()`` whenever costs change, so that it can drop choices that depend on them."""
    _listeners.append(listener)


def costs_of(kind: str, index: int | None = None) -> dict[str, Any]:
    """Return the costs of a device by type and index: measured ones if there are any, and shipped ones for the rest.

    >>> sorted(costs_of("cpu")["forward"])[:2]
    ['direct', 'fft']
    """
    if torch.compiler.is_compiling() or (kind, index) not in _in_use:
        _load(kind, index)
    return _in_use[kind, index]


def _load(kind: str, index: int | None) -> None:
    if (kind, index) not in _in_use:
        _in_use[kind, index] = merged(shipped_costs(kind), _measured(kind, index))


# torch.compile cannot trace the reading of files. It calls this function while it traces, so a compiled program keeps
# the costs of that time.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001


def shipped_costs(kind: str) -> dict[str, Any]:
    """Return the shipped costs of a type of device; those of a CPU with one thread are separate."""
    if kind == "cpu" and torch.get_num_threads() == 1 and "cpu, 1 thread" in _SHIPPED:
        kind = "cpu, 1 thread"
    found: dict[str, Any] = _SHIPPED.get(kind, _SHIPPED["cuda"])
    return found


def source_of(kind: str) -> str:
    """Return the name of the device on which the shipped costs of a type of device were measured.

    >>> source_of("cuda")
    'NVIDIA H200'
    """
    return str(shipped_costs(kind)["machine"]["device_name"])


def advice(device: torch.device) -> list[str]:
    """Return a line that advises to calibrate a GPU without measured or shipped costs; an empty list for others."""
    if device.type != "cuda" or _measured(device.type, device.index):
        return []
    name, known = torch.cuda.get_device_name(device), source_of("cuda")
    if known in name:
        return []
    return [f"convolution methods are chosen by the costs of an {known}; kernelfield calibrate measures the {name}"]


def _measured(kind: str, index: int | None) -> dict[str, Any]:
    if kind in _of_run:
        return _of_run[kind]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        return {}
    device = torch.device(kind) if index is None else torch.device(kind, index)
    path = record_path(device)
    return (read_record(path, device) if path is not None else None) or {}


def merged(shipped: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Return the shipped costs, with measured ones in their place if there are any."""
    tables = ("bfloat16", *_ALL_MODES)
    costs = {name: value for name, value in (shipped | measured).items() if name not in tables}
    for mode in _ALL_MODES:
        old, new = shipped.get(mode, {}), measured.get(mode, {})
        if old or new:
            costs[mode] = {method: old.get(method, {}) | new.get(method, {}) for method in {**old, **new}}
    halves = [table["bfloat16"] for table in (shipped, measured) if "bfloat16" in table]
    if halves:
        costs["bfloat16"] = {mode: costs[mode] for mode in _ALL_MODES if mode in costs}
        for half in halves:
            costs["bfloat16"] = merged(costs["bfloat16"], half)
    return costs


def use_costs_of(folder: Path, device: torch.device) -> None:
    """Use the costs that a run began with, as written by :func:`keep_costs_in`; for a new run, those of the device.

    A resumed run then chooses the same methods, even if the device was measured in between.

    Args:
        folder: folder of the run.
        device: device of the training.
    """
    path = folder / RUN_FILE
    _of_run.clear()
    forget()
    begun = path.exists()
    _of_run[device.type] = (read_record(path, device) or {}) if begun else _measured(device.type, device.index)


def keep_costs_in(folder: Path, device: torch.device) -> None:
    """Write the measured costs in use to the folder of a run, unless it has a file of costs."""
    path = folder / RUN_FILE
    if not path.exists():
        record = {"measured_on": describe_device(device), "costs": _measured(device.type, device.index)}
        write_text(path, json.dumps(record, indent=1) + "\n")

"""Compile Triton kernels ahead of time and in parallel, from a record of an earlier run.

Triton compiles each kernel at its first launch, one after the other, and a network needs dozens. A record lists the
kernels that a training run has compiled. The next run of the same kind compiles them in a pool of threads while it
loads its data, even in another process or on a machine without Triton's cache.

A record is only a hint. Kernels that have changed since are compiled as usual when they are launched.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .._files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["KernelRecord", "Precompilation", "precompile"]

_PACKAGE = __name__.partition(".")[0]
#: all kernels of this package that the process has compiled, in order, as lines of JSON
_compiled: dict[str, None] = {}
#: lines of records that match no kernel of this version and GPU
_outdated: set[str] = set()
_lock = threading.Lock()


class KernelRecord:
    """A record of the kernels compiled after its creation.

    >>> record = KernelRecord()
    >>> record.lines()
    []
    """

    def __init__(self) -> None:
        _install_hook()
        self._start = len(_compiled)
        self._written: dict[Path, int] = {}

    def lines(self) -> list[str]:
        """Return one line of JSON per kernel."""
        with _lock:
            return list(_compiled)[self._start :]

    def write(self, path: Path) -> None:
        """Write the record if it has new kernels; add the kernels of an earlier record in the same file."""
        lines = self.lines()
        if not lines or self._written.get(path) == len(lines):
            return
        self._written[path] = len(lines)
        known = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in dict.fromkeys([*known, *lines]) if line not in _outdated]
        write_text(path, "".join(f"{line}\n" for line in kept), durable=False)


class Precompilation:
    """Kernels that are being compiled in threads.

    Args:
        lines: kernels, as :meth:`KernelRecord.lines` returns them.
        threads: number of kernels to compile at once.
    """

    def __init__(self, lines: Iterable[str], threads: int | None = None) -> None:
        self.count = 0
        self._mode: Any = None
        todo = [line for line in dict.fromkeys(lines) if line not in _compiled]
        if not todo:
            return
        try:
            from triton.runtime._async_compile import AsyncCompileMode, active_mode  # noqa: PLC0415
        except ImportError:  # an older Triton, or none
            return
        _install_hook()
        self._pool = ThreadPoolExecutor(threads or os.cpu_count())
        self._mode = AsyncCompileMode(self._pool, ignore_errors=True)
        token = active_mode.set(self._mode)
        try:
            fits = [_submit(line) for line in todo]
        finally:
            active_mode.reset(token)
        self.count = sum(fits)
        _outdated.update(line for line, fit in zip(todo, fits, strict=True) if not fit)

    def wait(self) -> int:
        """Wait until all kernels are compiled; return their number."""
        if self._mode is None:
            return 0
        done = [kernel.result(ignore_errors=True) for kernel in self._mode.future_kernels.values()]
        self._pool.shutdown()
        self._mode = None
        return sum(kernel is not None for kernel in done)


def precompile(paths: Iterable[Path], threads: int | None = None) -> Precompilation:
    """Begin to compile the kernels of all records that exist.

    Args:
        paths: files of :meth:`KernelRecord.write`; missing files are skipped.
        threads: number of kernels to compile at once; by default the number of cores.

    >>> precompile([]).wait()
    0
    """
    lines = [
        line
        for path in paths
        if path.exists()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    return Precompilation(lines, threads)


def _submit(line: str) -> bool:
    """Begin to compile a kernel; return whether it belongs to this version of the package and this GPU."""
    try:
        entry = json.loads(line)
        module, name = entry["module"], entry["name"]
        if module.partition(".")[0] != _PACKAGE:
            return False
        kernel = getattr(importlib.import_module(module), name)
        if kernel.cache_key != entry["source"]:
            return False
        kernel.preload(entry["specialization"])
    except Exception:  # an outdated record is not an error
        return False
    return True


def _install_hook() -> None:
    """Make Triton report every kernel that it compiles."""
    try:
        from triton import knobs  # noqa: PLC0415
    except ImportError:
        return
    if not hasattr(knobs.runtime, "jit_post_compile_hook"):
        return
    before = knobs.runtime.jit_post_compile_hook
    if getattr(before, "records_kernels", False):
        return

    def hook(*args: Any, **kwargs: Any) -> Any:
        function, compiled = kwargs.get("fn"), kwargs.get("compile", {})
        if function is not None and str(function.module).partition(".")[0] == _PACKAGE:
            entry = {"module": function.module, "name": function.name, "source": function.jit_function.cache_key}
            entry["specialization"] = compiled.get("specialization_data")
            with _lock:
                _compiled[json.dumps(entry)] = None
        return None if before is None else before(*args, **kwargs)

    hook.records_kernels = True  # type: ignore[attr-defined]
    knobs.runtime.jit_post_compile_hook = hook

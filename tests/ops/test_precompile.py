"""Kernels are recorded and compiled again from the record. They are compiled for an H200 here, and never launched."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield.ops.precompile import KernelRecord, Precompilation, precompile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

triton = pytest.importorskip("triton")


class Driver:
    """Stands in for a GPU: a compiler asks only which one it is."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget  # noqa: PLC0415

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Yield a kernel that is compiled for a GPU that is not there, with an empty cache."""
    from triton.runtime import driver  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    from kernelfield.ops.triton_probe import _add_one  # noqa: PLC0415

    if not isinstance(_add_one, JITFunction) or "tests.ops.interpreted" in sys.modules:
        pytest.skip("kernels are interpreted in this process; test_precompiles_in_a_separate_process runs these")
    if torch.cuda.is_available():
        pytest.skip("there is a real GPU")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    before = driver._active
    driver.set_active(Driver())
    yield _add_one
    _add_one.device_caches.clear()
    driver._active = before


def compile_kernel(kernel: Any, size: int) -> None:
    kernel.warmup(triton.MockTensor(torch.float32, [3]), 3, SIZE=size, grid=(1,))


def test_a_record_is_compiled_ahead(kernel: Any, tmp_path: Path) -> None:
    record = KernelRecord()
    compile_kernel(kernel, 32)
    compile_kernel(kernel, 64)
    assert [json.loads(line)["name"] for line in record.lines()] == ["_add_one"] * 2
    path = tmp_path / "kernels.jsonl"
    record.write(path)
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    record.write(path)
    assert path.read_text().splitlines() == lines
    assert precompile([path]).wait() == 0  # this process has them
    kernel.device_caches.clear()
    from kernelfield.ops import precompile as module  # noqa: PLC0415

    module._compiled.clear()
    ahead = precompile([path, tmp_path / "missing.jsonl"], threads=2)
    assert ahead.count == 2
    assert ahead.wait() == 2
    later = KernelRecord()
    compile_kernel(kernel, 32)
    assert later.lines() == []  # found, not compiled again


def test_records_that_do_not_fit_are_ignored() -> None:
    entry = {"module": "kernelfield.ops.triton_probe", "name": "_add_one", "source": "old", "specialization": "{}"}
    other = ({"name": "gone"}, {"module": "os"}, {})
    lines = ["no JSON", *(json.dumps({**entry, **change}) for change in other)]
    ahead = Precompilation(lines)
    assert ahead.count == 0
    assert ahead.wait() == 0


@pytest.mark.slow
def test_precompiles_in_a_separate_process() -> None:
    """The interpreter replaces functions of Triton for a whole process, in which nothing can be compiled then."""
    if "tests.ops.interpreted" not in sys.modules:
        pytest.skip("this process compiles")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout

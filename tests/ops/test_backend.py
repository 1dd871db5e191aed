"""One switch for all fast paths: by environment, by call, in a block; nested, and in threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch

from kernelfield.ops import backend, conv, use_fast_paths
from tests.ops.interpreted import DEVICE, interpreter
from tests.ops.operators import CHOSEN, OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["interpreter"]

on_cpu = pytest.mark.skipif(DEVICE == "cuda", reason="counts launches of the interpreter")


@contextlib.contextmanager
def counted_launches() -> Iterator[list[str]]:
    """Collect the names of the kernels that Triton's interpreter runs."""
    from triton.runtime.interpreter import GridExecutor  # noqa: PLC0415

    names: list[str] = []
    launch = GridExecutor.__call__

    def record(self: GridExecutor, *args: object, **kwargs: object) -> None:
        names.append(self.fn.__name__)
        launch(self, *args, **kwargs)

    with mock.patch.object(GridExecutor, "__call__", record):
        yield names


@on_cpu
@pytest.mark.parametrize("name", OPERATORS)
def test_the_switch_turns_kernels_off(name: str) -> None:
    for enabled in (True, False):
        with use_fast_paths(enabled), counted_launches() as launches:
            OPERATORS[name]().sum().backward()
        assert bool(launches) is enabled


@on_cpu
@pytest.mark.parametrize("name", CHOSEN)
def test_a_method_that_is_turned_off_cannot_be_chosen(name: str) -> None:
    with counted_launches() as launches:
        CHOSEN[name]()
    assert launches
    with use_fast_paths(False), pytest.raises(ValueError, match=r"method.*KERNELFIELD_FAST"):
        CHOSEN[name]()


@on_cpu
def test_the_environment_turns_kernels_off_and_imports_nothing_of_triton() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "KERNELFIELD_FAST": "0"}
    command = [sys.executable, "-m", "tests.ops.operators"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "[]"


def test_blocks_nest_and_plain_calls_persist() -> None:
    assert backend.fast_paths()
    with use_fast_paths(False):
        with use_fast_paths(True):
            assert backend.fast_paths()
            use_fast_paths(False)
            assert not backend.fast_paths()
        assert not backend.fast_paths()
    assert backend.fast_paths()


def test_blocks_restore_the_switch_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside"), use_fast_paths(False):
        raise RuntimeError("inside")
    assert backend.fast_paths()


def test_each_thread_has_its_own_switch() -> None:
    """Two threads set opposite values and look at them at the same moments."""
    meet = threading.Barrier(2)

    def work(enabled: bool) -> list[bool]:
        seen = []
        with use_fast_paths(enabled):
            for _ in range(20):
                meet.wait()
                seen.append(backend.fast_paths())
        return seen

    with ThreadPoolExecutor(2) as pool:
        off, on = pool.map(work, (False, True))
    assert not any(off)
    assert all(on)
    assert backend.fast_paths()


@on_cpu
def test_recomputation_takes_the_path_of_the_forward_pass() -> None:
    x = torch.randn(3, requires_grad=True)
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(backend.use_triton(x))
        return x.exp()

    for enabled in (True, False):
        with use_fast_paths(enabled):
            y = backend.recompute(function, x)
        with use_fast_paths(not enabled):
            y.sum().backward()
    assert seen == [True, True, False, False]


def test_recomputation_inside_transforms() -> None:
    """Gradients per sample, as torch.func computes them, equal autograd's."""
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    rows = torch.func.vmap(torch.func.grad(lambda row: backend.recompute(torch.sin, row).square().sum()))(x.detach())
    backend.recompute(torch.sin, x).square().sum().backward()
    torch.testing.assert_close(rows, x.grad)


def test_plans_of_convolutions_follow_the_switch() -> None:
    """A choice that was made for a shape holds only as long as the switch stays."""
    x, kernel = torch.randn(1, 2, 8, device=DEVICE), torch.randn(2, 1, 3, device=DEVICE)
    expected = conv(x, kernel, groups=2, method="triton")
    with use_fast_paths(False), pytest.raises(ValueError, match="method"):
        conv(x, kernel, groups=2, method="triton")
    assert conv(x, kernel, groups=2, method="triton").equal(expected)


@on_cpu
def test_compiled_convolutions_follow_the_switch_when_they_run() -> None:
    x, kernel = torch.randn(1, 2, 8), torch.randn(2, 1, 3)
    compiled = torch.compile(lambda x, k: conv(x, k, groups=2, method="triton"), backend="aot_eager", fullgraph=True)
    for enabled in (True, False, True):
        with use_fast_paths(enabled), counted_launches() as launches:
            compiled(x, kernel)
        assert bool(launches) is enabled


def test_kernels_need_a_gpu_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "got cpu" in str(backend.unavailable(torch.device("cpu")))
    assert not backend.use_triton(torch.ones(3))


def test_a_gpu_without_triton_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_HAS_TRITON", False)
    backend._warn_of_missing_triton.cache_clear()
    with pytest.warns(UserWarning, match="triton is not installed"):
        assert "needs Triton" in str(backend.unavailable(torch.device("cuda")))
    backend.unavailable(torch.device("cuda"))  # a second warning would be an error


def test_a_gpu_on_which_kernels_fail_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelfield.ops import triton_probe  # noqa: PLC0415

    monkeypatch.setattr(backend, "_running", {})
    monkeypatch.setattr(triton_probe, "probe", mock.Mock(side_effect=RuntimeError("no compiler")))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.warns(UserWarning, match="no compiler"):
        assert not backend._kernels_run(torch.device("cuda"))
    assert not backend._kernels_run(torch.device("cuda"))


def test_convolutions_do_not_choose_kernels_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backend, "_kernels_run", lambda _: False)
    assert "do not run on cuda:0" in str(backend.unavailable(torch.device("cuda:0")))


def test_another_device_than_the_current_one_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, whatever the device of its arguments."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(backend, "_kernels_run", lambda _: True)
    monkeypatch.setattr(backend, "_several_gpus", lambda: True)
    backend._warn_of_other_device.cache_clear()
    assert backend.unavailable(torch.device("cuda:0")) is None
    with pytest.warns(UserWarning, match=r"set_device\(1\)"):
        assert "got cuda:1" in str(backend.unavailable(torch.device("cuda:1")))
    assert "got cuda:1" in str(backend.unavailable(torch.device("cuda:1")))
    backend._warn_of_other_device.cache_clear()


def test_the_probe_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelfield.ops import triton_probe  # noqa: PLC0415

    if DEVICE == "cpu" and type(triton_probe._add_one).__name__ == "JITFunction":
        pytest.skip("the probe was imported to be compiled, and there is no GPU")
    triton_probe.probe(torch.device(DEVICE))
    monkeypatch.setattr(triton_probe, "_add_one", mock.MagicMock())
    with pytest.raises(RuntimeError, match="adds one"):
        triton_probe.probe(torch.device(DEVICE))


def test_dtypes_and_traced_code_take_torch_operations() -> None:
    x = torch.randn(2, 3, device=DEVICE)
    assert backend.use_triton(x)
    assert not backend.use_triton(x.double())
    assert not backend.use_triton(x.half(), (torch.float32,))
    assert not backend.use_triton(x[:0])
    assert not torch.func.vmap(lambda row: torch.tensor(backend.use_triton(row)))(x).any()

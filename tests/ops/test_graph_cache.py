"""Tables that are made once: the last few are remembered, and those that CUDA graphs point to for ever."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kernelfield import CCNN
from kernelfield.groups import Cyclic
from kernelfield.layers import LiftingSelfAttention
from kernelfield.ops import graph_cache as module
from kernelfield.ops.attention.windows import neighbor_tables
from kernelfield.ops.graph_cache import capturing, graph_cache
from kernelfield.ops.points.neighbors import _ranks, nearest_nodes
from kernelfield.ops.resample.matrix import _waves, resample_matrix

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a switch for what torch says about the stream, as in a process with a GPU."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)

    def switch(on: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: on)

    switch(False)
    return switch


def test_nothing_is_captured_before_cuda_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not capturing()


def test_tensors_of_a_transform_are_not_cached() -> None:
    @graph_cache(2)
    def table(n: int) -> torch.Tensor:
        return torch.arange(float(n))

    torch.testing.assert_close(torch.func.grad(lambda x: (x * table(3)).sum())(torch.ones(3)), torch.arange(3.0))
    assert not torch._C._functorch.is_functorch_wrapped_tensor(table(3))


def test_only_the_latest_entries_are_cached() -> None:
    made = []

    @graph_cache(2)
    def table(n: int) -> torch.Tensor:
        made.append(n)
        return torch.full((n,), 1.0)

    assert table(1) is table(1)
    table(2), table(1), table(3)  # which pushes 2 out, not 1
    assert made == [1, 2, 3]
    table(1), table(2)
    assert made == [1, 2, 3, 2]
    table.cache_clear()
    table(1)
    assert made == [1, 2, 3, 2, 1]


def test_tensors_of_a_graph_stay_alive(capture: Callable[[bool], None]) -> None:
    table = graph_cache(1)(torch.arange)
    forgotten = weakref.ref(table(2))
    used = weakref.ref(table(3))  # pushes the first out
    capture(True)
    table(3)
    capture(False)
    table(4)
    table.cache_clear()
    gc.collect()
    assert forgotten() is None
    assert used() is not None


def test_tensors_are_made_in_a_thread_of_their_own_and_once(capture: Callable[[bool], None]) -> None:
    """Compiled code with CUDA graphs refuses tensors of its own thread that stay alive."""
    threads = []

    def make(n: int) -> torch.Tensor:
        threads.append(threading.get_ident())
        if n < 0:
            raise ValueError("n must be at least 0")
        return torch.arange(n)

    table = graph_cache(2)(make)
    with torch.inference_mode():
        first = table(3)
    assert table(3) is first
    assert not first.is_inference()
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    with pytest.raises(ValueError, match="n must"):
        table(-1)
    capture(True)  # a recording contains the operations of its own thread
    table(4)
    assert threads[-1] == threading.get_ident()


def test_tensors_made_during_capture_are_not_cached(capture: Callable[[bool], None]) -> None:
    table = graph_cache(4)(torch.arange)
    capture(True)
    first = table(3)
    assert table(3) is not first
    assert not table.entries
    assert not table.pinned


def test_tensors_without_values_are_not_cached() -> None:
    table = graph_cache(4)(torch.arange)
    with FakeTensorMode():
        assert type(table(3)) is FakeTensor
    assert type(table(3)) is torch.Tensor
    with FakeTensorMode():
        assert type(table(3)) is FakeTensor


def test_a_network_is_the_same_after_a_forward_pass_without_values() -> None:
    net = CCNN(1, 2, size=19, channels=3, blocks=1).eval()
    x = torch.randn(2, 1, 19)
    with FakeTensorMode(allow_non_fake_inputs=True):
        net(x)
    assert type(net(x)) is torch.Tensor


@pytest.mark.parametrize("name", ["_ranks", "_waves", "make_call"])
def test_every_cached_table_stays_alive(name: str, capture: Callable[[bool], None]) -> None:
    if name == "make_call":
        pytest.importorskip("triton")
        from kernelfield.ops.conv.triton.launch import _call, make_call  # noqa: PLC0415

        tables = make_call

        def use() -> None:
            _call(torch.zeros(2, 3, 40), torch.zeros(3, 1, 40), True, [False])
    elif name == "_ranks":
        tables = _ranks

        def use() -> None:
            nearest_nodes(torch.zeros(1, 2, 2), (4, 4), 3)
    else:
        tables = _waves

        def use() -> None:
            resample_matrix(8, 6, 6, 8, like=torch.zeros(1))

    use()
    capture(True)
    use()
    capture(False)
    pinned = len(tables.pinned)
    assert pinned >= 1
    assert isinstance(tables, module.GraphCache)
    tables.cache_clear()
    assert len(tables.pinned) == pinned


def test_tables_of_attention_in_a_graph_stay_alive(capture: Callable[[bool], None]) -> None:
    def make(size: int) -> torch.Tensor:
        return neighbor_tables((size,), (3,), 1, 0, torch.device("cpu"))[0]

    make(5)
    capture(True)
    used = weakref.ref(make(5))
    capture(False)
    for size in range(6, 80):
        make(size)
    gc.collect()
    assert used() is not None


def test_offsets_of_attention_in_a_graph_stay_alive(capture: Callable[[bool], None]) -> None:
    layer = LiftingSelfAttention(2, 4, group=Cyclic(4), neighborhood=None, size=4).eval()
    with torch.no_grad():
        layer(torch.randn(1, 2, 3, 3))
        used = [weakref.ref(moved) for moved, _ in layer._offset_cache.values()]
        capture(True)
        layer(torch.randn(1, 2, 3, 3))
        capture(False)
        for size in range(4, 10):
            layer(torch.randn(1, 2, size, 2))
    gc.collect()
    assert [moved() is not None for moved in used] == [True]

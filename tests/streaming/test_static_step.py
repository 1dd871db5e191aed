"""Steps with the position in a tensor give what streams give; on a GPU they are replayed as CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kernelfield as kf
from kernelfield.cuda_graphs.backend import CudaBackend
from kernelfield.streaming import OnlineConv, Stream
from kernelfield.streaming.clock import Clock
from kernelfield.streaming.online_conv import BLOCK
from kernelfield.streaming.static_step import PATIENCE, ReplayedStep, StaticStep
from tests.cuda_graphs.recorded import RecordingBackend
from tests.streaming.networks import assert_equal_outputs, forward_after, samples, settled
from tests.streaming.test_distil import ckcnn

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
NETWORKS = ("depthwise", "dense", "mean", "norm", "tokens", "distilled", "cut")


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    if name in ("distilled", "cut"):
        net = ckcnn(readout="mean") if name == "distilled" else ckcnn(size=300, sigma=0.05)
        return kf.distil(net, order=3, refine=0).network.to(dtype)
    torch.manual_seed(1)
    options: dict[str, Any] = {"size": 300, "channels": 3, "blocks": 1, "hidden": 4}
    if name == "dense":
        return settled(kf.CKCNN(2, 3, norm="batch", readout="dense", **options)).to(dtype)
    if name == "tokens":
        return settled(kf.CKCNN(3, 7, norm="batch", readout="dense", vocabulary=7, **options)).to(dtype)
    options |= {"sigma": None, "readout": "mean" if name == "mean" else "dense"}
    return settled(kf.CCNN(2, 3, norm="cumulative" if name == "norm" else "batch", **options)).to(dtype)


def whole(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    times = None if net.readout.kind == "dense" else list(range(0, x.shape[-1], 37))
    return forward_after(net, x, times)


def at_times(net: nn.Module, y: torch.Tensor) -> torch.Tensor:
    return y if net.readout.kind == "dense" else y[..., ::37]


@pytest.mark.parametrize(
    "name", [n if n not in ("mean", "distilled") else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]
)
def test_static_steps_are_a_forward_pass(name: str) -> None:
    net = build(name)
    x = samples(net, 2, 700)
    online = kf.stream(net, 2)
    step = StaticStep(online.network, x.device)
    with torch.no_grad():
        y = torch.cat([step(sample) for sample in x.split(1, dim=-1)], dim=-1)
    assert_equal_outputs(at_times(net, y), whole(net, x))


@pytest.mark.parametrize("name", ["depthwise", "dense", "cut"])
def test_static_steps_in_half_precision_and_at_other_steps(name: str) -> None:
    net = build(name, torch.bfloat16)
    x = samples(net, 1, 200)
    static, eager = (kf.stream(net, step=0.5) for _ in range(2))
    step = StaticStep(static.network, x.device)
    with torch.no_grad():
        for sample in x.split(1, dim=-1):
            y = step(sample)
            assert y.dtype == torch.bfloat16
            torch.testing.assert_close(y, eager.push(sample), rtol=0.02, atol=0.02)


@settings(max_examples=6)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), start=st.integers(0, 200))
def test_static_steps_and_blocks_alternate(sizes: list[int], start: int) -> None:
    """Blocks of odd size are read as a whole, those of even size sample by sample."""
    net = build("depthwise")
    x = samples(net, 1, start + sum(sizes))
    online = kf.stream(net)
    step = StaticStep(online.network, x.device)
    first, *blocks = x.split([start, *sizes], dim=-1)
    with torch.no_grad():
        y = [online.push(first)]
        for block in blocks:
            y += [online.push(block)] if block.shape[-1] % 2 else [step(sample) for sample in block.split(1, dim=-1)]
    assert_equal_outputs(torch.cat(y, dim=-1), forward_after(net, x))


@pytest.mark.parametrize(
    ("points", "groups"),
    [
        *((1, 1), (BLOCK, 3), (2 * BLOCK + 1, 1), (9 * BLOCK, 3)),
        *(pytest.param(n, g, marks=pytest.mark.slow) for n, g in ((1, 3), (BLOCK, 1), (9 * BLOCK, 1))),
    ],
)
def test_the_state_is_that_of_single_samples(points: int, groups: int) -> None:
    kernel, x = torch.randn(3, 3 // groups, points).double(), torch.randn(2, 3, 700).double()
    eager, static = (OnlineConv(kernel, groups=groups, batch=2) for _ in range(2))
    clock = Clock(x.device)
    for time, sample in enumerate(x.split(1, dim=-1), start=1):
        clock.completed = 0 if time % BLOCK else min(time & -time, static.sizes[-1])
        torch.testing.assert_close(static.push_at(sample, clock), eager(sample), rtol=0, atol=1e-12)
        clock.advance()
        static.time += 1
    for name, tensor in eager.state().items():
        torch.testing.assert_close(static.state()[name], tensor, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_states_keep_their_addresses(name: str) -> None:
    net = build(name)
    x = samples(net, 2, 100)
    online = kf.stream(net, 2)

    def addresses() -> list[int]:
        return [buffer.data_ptr() for buffer in online.network.buffers()]

    before = addresses()
    for sample in x[..., :70].split(1, dim=-1):
        online.push(sample)
    state = online.state_dict()
    online.push(x[..., 70:])
    online.reset([0])
    online.reset()
    online.load_state_dict(state)
    assert addresses() == before


# By default the steps of every network are compared as they are, and a few of them recorded.
@pytest.mark.parametrize(
    "name", [n if n in ("dense", "tokens", "cut") else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]
)
def test_recorded_steps_are_a_forward_pass(name: str) -> None:
    """A recording holds no value of the host: neither the position nor a state that was replaced."""
    net = build(name)
    x = samples(net, 2, 700)
    online, wanted = kf.stream(net, 2), kf.stream(net, 2).push(x)
    step = ReplayedStep(online.network, RecordingBackend())
    with torch.no_grad():
        first = [step(sample) for sample in x[..., :300].split(1, dim=-1)]
        block = online.push(x[..., 300:450])
        y = torch.cat([*first, block, *(step(sample) for sample in x[..., 450:].split(1, dim=-1))], dim=-1)
    assert_equal_outputs(y, wanted)
    assert step.refusal == ""
    assert step.graphs == (1 if name in ("distilled", "cut") else 4)


def test_steps_that_cannot_be_recorded_run_eagerly() -> None:
    net = build("depthwise")
    x = samples(net, 1, 200)
    step = ReplayedStep(kf.stream(net).network, RecordingBackend(fail_after=20))
    with torch.no_grad():
        y = torch.cat([step(sample) for sample in x.split(1, dim=-1)], dim=-1)
    assert_equal_outputs(y, forward_after(net, x))
    assert step.refusal
    assert not step.graphs


def test_streams_made_without_gradients_go_on_in_any_mode() -> None:
    net = build("distilled")
    x = samples(net, 1, 4)
    with torch.inference_mode():
        online = kf.stream(net)
        first = online.push(x[..., :2])
    y = torch.cat([first, online.push(x[..., 2:])], dim=-1)
    assert_equal_outputs(y, forward_after(net, x))


# On a GPU


def replayed(net: nn.Module, batch: int = 2) -> Stream:
    return kf.stream(net.cuda(), batch)


def push_single(online: Stream, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([online.push(sample) for sample in x.split(1, dim=-1)], dim=-1)


@GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_replayed_steps_are_a_forward_pass(name: str, dtype: torch.dtype) -> None:
    net = build(name, dtype)
    x = samples(net, 2, 1300).cuda()
    online = replayed(net)
    y = push_single(online, x)
    assert online._replayed is not None
    assert online._replayed.refusal == ""
    # Samples that end no block, blocks of 64, and of 128 and 256 where kernels are that long.
    assert online._replayed.graphs == (1 if name in ("distilled", "cut") else 4)
    if dtype == torch.float64:
        assert_equal_outputs(at_times(net, y), whole(net, x))
    else:
        wanted = whole(net.double(), x.double() if x.is_floating_point() else x)
        torch.testing.assert_close(at_times(net, y).double(), wanted, rtol=1e-3, atol=1e-3)


@GPU
@pytest.mark.parametrize("name", ["depthwise", "cut"])
def test_replays_alternate_with_blocks_and_states(name: str) -> None:
    net = build(name)
    x = samples(net, 2, 2400).cuda()
    online, eager = replayed(net), kf.stream(net, 2)
    wanted = eager.push(x[..., :2000])
    got = [push_single(online, x[..., :300]), online.push(x[..., 300:777]), push_single(online, x[..., 777:1300])]
    state = online.state_dict()
    push_single(online, x[..., :200])
    online.load_state_dict(state)
    got += [push_single(online, x[..., 1300:1800]), online.push(x[..., 1800:1999]), online.push(x[..., 1999:2000])]
    assert_equal_outputs(torch.cat(got, dim=-1), wanted)
    online.reset([1])
    eager.reset([1])
    assert_equal_outputs(push_single(online, x[..., 2000:]), eager.push(x[..., 2000:]))


@GPU
@pytest.mark.parametrize("name", ["depthwise", "cut"])
def test_replays_in_half_precision_and_at_other_steps(name: str) -> None:
    net = build(name, torch.bfloat16).cuda()
    x = samples(net, 1, 300).cuda()
    y = push_single(kf.stream(net, step=0.5), x)
    assert y.dtype == torch.bfloat16
    wanted = kf.stream(net, step=0.5).push(x).float()
    assert (y.float() - wanted).norm() < 0.05 * wanted.norm()


@GPU
def test_outputs_of_replays_are_kept() -> None:
    net = build("depthwise")
    x = samples(net, 1, 2 * PATIENCE).cuda()
    online = replayed(net, 1)
    outputs = [online.push(sample) for sample in x.split(1, dim=-1)]
    assert len({y.data_ptr() for y in outputs}) == len(outputs)


@GPU
def test_a_copy_of_a_stream_goes_on_by_itself() -> None:
    net = build("depthwise")
    x = samples(net, 1, 400).cuda()
    online = replayed(net, 1)
    push_single(online, x[..., :200])
    other = copy.deepcopy(online)
    wanted = push_single(online, x[..., 200:])
    torch.testing.assert_close(push_single(other, x[..., 200:]), wanted, rtol=0, atol=1e-12)


@GPU
def test_a_moved_stream_captures_anew() -> None:
    net = build("depthwise")
    x = samples(net, 1, 400)
    online = replayed(net, 1)
    first = push_single(online, x[..., :200].cuda()).cpu()
    y = torch.cat(
        [first, online.to("cpu").push(x[..., 200:300]), push_single(online.to("cuda"), x[..., 300:].cuda()).cpu()], 2
    )
    assert_equal_outputs(y, forward_after(net.cpu(), x))


@GPU
def test_closed_streams_give_nan() -> None:
    net = build("depthwise")
    x = samples(net, 2, 300).cuda()
    online = replayed(net)
    first = push_single(online, x[..., :100])
    online.close([0])
    y = push_single(online, x[..., 100:])
    assert y[0].isnan().all()
    wanted = forward_after(net, x)
    assert_equal_outputs(y[1], wanted[1, :, 100:])
    assert_equal_outputs(first, wanted[..., :100])


@GPU
def test_steps_that_cannot_be_captured_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no capture")

    monkeypatch.setattr(CudaBackend, "record", refuse)
    net = build("depthwise")
    x = samples(net, 1, 400).cuda()
    online = replayed(net, 1)
    assert_equal_outputs(push_single(online, x), forward_after(net, x))
    assert online._replayed is not None
    assert online._replayed.refusal == "no capture"

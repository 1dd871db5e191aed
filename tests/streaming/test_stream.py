"""Every registered causal network gives, pushed in any blocks, what one forward pass over all input gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import kernelfield as kf
from kernelfield.layers import CumulativeNorm
from kernelfield.masks import SigmoidMask
from kernelfield.streaming import StreamStep
from tests.models.registered import CAUSAL, small_by_default
from tests.streaming.networks import assert_equal_outputs, forward_after, samples, settled, streamable
from tests.streaming.test_online_conv import partitions


def push_all(online: kf.streaming.Stream, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.cat([online.push(block) for block in x.split(sizes, dim=-1)], dim=-1)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=str)
@pytest.mark.parametrize("name", small_by_default(CAUSAL))
def test_every_causal_network_streams(name: str, dtype: torch.dtype) -> None:
    net = streamable(name).to(dtype)
    x = samples(net, 2, 45)
    y = push_all(kf.stream(net, 2), x, [1, 0, 13, 1, 30])
    times = [0, 1, 14, 15, 19, 20, 44]
    assert_equal_outputs(y[..., times], forward_after(net, x, times))


def ccnn(**changes: Any) -> nn.Module:
    torch.manual_seed(1)
    arguments: dict[str, Any] = {"size": 300, "channels": 3, "blocks": 1, "hidden": 4, "sigma": None}
    return settled(kf.CCNN(2, 3, **{**arguments, **changes})).double()


@settings(max_examples=15)
@given(data=st.data(), length=st.integers(1, 500))
def test_any_partition_gives_the_same(data: st.DataObject, length: int) -> None:
    net = ccnn(readout="dense")
    x = samples(net, 2, length)
    y = push_all(kf.stream(net, 2), x, data.draw(partitions(length)))
    assert_equal_outputs(y, forward_after(net, x))


def test_an_empty_block_gives_as_many_channels_as_any_other() -> None:
    net = nn.Sequential(kf.CKConv(2, 3, size=5, causal=True), nn.GELU())
    online = kf.stream(net)
    assert online.push(torch.zeros(1, 2, 0)).shape == (1, 3, 0)
    assert online.push(torch.zeros(1, 2, 2)).shape == (1, 3, 2)


@pytest.mark.parametrize("readout", ["mean", "last", "dense"])
@pytest.mark.parametrize("step", [0.5, 0.7, 2.0])
def test_streams_at_other_steps(readout: str, step: float) -> None:
    net = ccnn(readout=readout, size=20)
    x = samples(net, 1, 30)
    y = push_all(kf.stream(net, step=step), x, [7, 23])
    assert_equal_outputs(y, forward_after(net, x, step=step))


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": SigmoidMask(1, offset=-0.5, domain=(0.0, 1.0))},
        {"field": kf.fields.BSpline},
        {"smooth": True},
        {"block": "resnet"},
        {"prenorm": False, "norm": "none"},
        {"stem": "linear"},
        {"shared_field": True},
        {"vocabulary": 7},
    ],
    ids="-".join,
)
def test_streams_with_every_option(changes: dict[str, Any]) -> None:
    net = ccnn(size=20, **changes)
    x = samples(net, 1, 30)
    assert_equal_outputs(push_all(kf.stream(net), x, [9, 21]), forward_after(net, x))


def test_streams_a_sequence_of_layers() -> None:
    net = nn.Sequential(kf.CKConv(2, 3, size=20, causal=True), nn.GELU(), kf.CKConv(3, 4, size=20, causal=True))
    x = torch.randn(1, 2, 30)
    with torch.no_grad():
        assert_equal_outputs(push_all(kf.stream(net), x, [9, 21]), net(x))


def _share_a_bias(net: nn.Module) -> None:
    net.blocks[1].conv.pointwise.bias = net.blocks[0].conv.pointwise.bias


def _compute_a_bias(net: nn.Module) -> None:
    register_parametrization(net.blocks[0].conv.pointwise, "bias", nn.Softplus())


def _hook(part: str) -> Any:
    return lambda net: net.get_submodule(part).register_forward_hook(lambda *call: 2 * call[2])


@pytest.mark.parametrize(
    "change",
    [
        *(_share_a_bias, _compute_a_bias),
        *(_hook(part) for part in ("blocks.0.conv.depthwise", "blocks.0.conv.pointwise", "readout")),
    ],
)
def test_changed_layers_stream_as_they_run(change: Any) -> None:
    net = ccnn(blocks=2, size=20)
    change(net)
    x = samples(net, 1, 30)
    wanted = forward_after(net, x)
    for network in (net, kf.distil(net).network):
        assert_equal_outputs(push_all(kf.stream(network), x, [9, 1, 20]), wanted)
    one = StreamStep(net)
    states = list(one.states.values())
    for i, sample in enumerate(x.split(1, dim=-1)):
        y, *states = one(sample, *states)
        torch.testing.assert_close(y, wanted[..., i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("within", [False, True], ids=["a layer", "a block"])
def test_what_is_used_twice_has_two_states(within: bool) -> None:
    layer, norm = kf.CKConv(2, 2, size=20, causal=True), CumulativeNorm(2)
    block = nn.Sequential(layer, norm, nn.GELU())
    net = (nn.Sequential(block, block) if within else nn.Sequential(layer, norm, nn.GELU(), layer, norm)).eval()
    x = torch.randn(1, 2, 30)
    with torch.no_grad():
        wanted = net(x)
    assert_equal_outputs(push_all(kf.stream(net), x, [9, 21]), wanted)
    one = StreamStep(net)
    states = list(one.states.values())
    for i, sample in enumerate(x.split(1, dim=-1)):
        y, *states = one(sample, *states)
        torch.testing.assert_close(y, wanted[..., i], rtol=1e-4, atol=1e-5)


def test_streams_a_materialized_architecture() -> None:
    dnarch = kf.DNArch(kf.CCNN(2, 3, size=20, channels=4, blocks=2, hidden=4), learn=("kernel", "width"))
    net = dnarch.eval().materialize().eval()
    x = torch.randn(1, 2, 30)
    assert_equal_outputs(push_all(kf.stream(net), x, [9, 21]), forward_after(net, x))


def test_streams_in_half_precision() -> None:
    net = ccnn(readout="dense", size=40).bfloat16()
    x = samples(net, 1, 60)
    y = push_all(kf.stream(net), x, [20] * 3)
    assert y.dtype == torch.bfloat16
    wanted = forward_after(net.float(), x.float())
    assert (y.float() - wanted).norm() < 0.05 * wanted.norm()


def test_the_network_may_train_on() -> None:
    net = ccnn(readout="dense", size=20)
    x = samples(net, 1, 30)
    wanted = forward_after(net, x)
    online = kf.stream(net)
    for parameter in net.train().parameters():
        nn.init.ones_(parameter)
    assert_equal_outputs(online.push(x), wanted)


# Several streams


def test_streams_start_and_end_at_different_times() -> None:
    net = ccnn(size=90)
    x = samples(net, 3, 200)
    online = kf.stream(net, 3)
    online.push(x[..., :50])
    online.close([0]).reset([2])
    y = online.push(x[..., 50:120])
    assert y[0].isnan().all()
    assert_equal_outputs(y[1], forward_after(net, x[1:2, :, :120])[0, :, 50:])
    assert_equal_outputs(y[2], forward_after(net, x[2:, :, 50:120])[0])
    online.reset([0])
    y = online.push(x[..., 120:])
    assert_equal_outputs(y[0], forward_after(net, x[:1, :, 120:])[0])
    assert online.samples == (80, 200, 150)


def test_values_of_a_closed_stream_are_not_read() -> None:
    net = ccnn(size=20)
    x = samples(net, 2, 30)
    online = kf.stream(net, 2).close([0])
    y = online.push(torch.where(torch.tensor([True, False]).view(2, 1, 1), float("nan"), x))
    assert_equal_outputs(y[1:], forward_after(net, x[1:]))
    assert online.samples == (0, 30)
    assert not online.reset([0]).push(x)[0].isnan().any()


# State


@pytest.mark.parametrize("cut", [1, 64, 129])
def test_a_saved_state_continues(cut: int, tmp_path: Any) -> None:
    net = ccnn(size=90)
    x = samples(net, 2, 200)
    online = kf.stream(net, 2)
    online.push(x[..., :cut])
    torch.save(online.state_dict(), tmp_path / "state.pt")
    wanted = online.push(x[..., cut:])
    other = kf.stream(copy.deepcopy(net), 2)
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    torch.testing.assert_close(other.push(x[..., cut:]), wanted, rtol=0, atol=0)
    assert other.samples == online.samples == (200, 200)


def test_reset_forgets_everything() -> None:
    net = ccnn(size=90)
    x = samples(net, 1, 150)
    online = kf.stream(net)
    wanted = online.push(x)
    torch.testing.assert_close(online.reset().push(x), wanted, rtol=1e-12, atol=1e-12)


def test_memory_is_bounded_by_the_support() -> None:
    masked, full = (kf.stream(ccnn(size=4096, sigma=sigma)).memory for sigma in (0.01, None))
    assert 10 * masked < full


def test_memory_does_not_grow() -> None:
    online = kf.stream(ccnn(size=90))
    before = online.memory
    online.push(samples(ccnn(), 1, 500))
    assert online.memory == before


def test_moves_to_a_device() -> None:
    net = ccnn(size=90)
    x = samples(net, 1, 100)
    online = kf.stream(net)
    wanted = online.push(x)
    torch.testing.assert_close(online.reset().to("cpu").push(x), wanted)


# Bad input


def assert_unchanged(online: kf.streaming.Stream, x: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(online.push(x), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("block", "error"),
    [
        (torch.randn(1, 3, 4, dtype=torch.float64), ValueError),
        (torch.randn(2, 2, 4, dtype=torch.float64), ValueError),
        (torch.randn(1, 2, dtype=torch.float64), ValueError),
        (torch.randn(1, 2, 4), TypeError),
        (torch.zeros(1, 2, 4, dtype=torch.int64), TypeError),
        ([[1.0], [2.0]], TypeError),
    ],
    ids=["channels", "batch", "axes", "dtype", "integers", "list"],
)
def test_bad_blocks_leave_the_stream_as_it_was(block: Any, error: type[Exception]) -> None:
    net = ccnn(size=20)
    x = samples(net, 1, 30)
    online, other = kf.stream(net), kf.stream(net)
    online.push(x)
    other.push(x)
    with pytest.raises(error, match=r"^block "):
        online.push(block)
    assert_unchanged(online, x, other.push(x))


@pytest.mark.parametrize("block", [torch.tensor([[7]]), torch.tensor([[-1]]), torch.tensor([[1.0]]), torch.tensor([1])])
def test_bad_tokens_leave_the_stream_as_it_was(block: torch.Tensor) -> None:
    net = ccnn(size=20, vocabulary=7)
    online, other = kf.stream(net), kf.stream(net)
    with pytest.raises((TypeError, ValueError), match=r"^block "):
        online.push(block)
    x = samples(net, 1, 9)
    assert_unchanged(online, x, other.push(x))


def test_nothing_is_pushed_after_close() -> None:
    net = ccnn(size=20)
    online = kf.stream(net).close()
    with pytest.raises(RuntimeError, match=r"^block "):
        online.push(samples(net, 1, 5))
    assert online.reset().push(samples(net, 1, 5)).shape == (1, 3, 5)


def test_a_state_of_another_network_is_refused() -> None:
    net, other = ccnn(size=20), ccnn(size=20)
    nn.init.normal_(other.readout.linear.weight)
    online = kf.stream(net)
    for state in (kf.stream(other).state_dict(), kf.stream(net, step=2.0).state_dict(), {"layers": {}}):
        with pytest.raises(ValueError, match=r"^state "):
            online.load_state_dict(state)
    with pytest.raises(ValueError, match=r"^state "):
        kf.stream(net, 2).load_state_dict(online.state_dict())


@pytest.mark.filterwarnings("ignore:weights of size")
@pytest.mark.parametrize(
    "changes", [{"readout": "last"}, {"block": "resnet"}, {"prenorm": False}, {"size": 21}], ids="-".join
)
def test_a_state_of_other_settings_with_the_same_weights_is_refused(changes: dict[str, Any]) -> None:
    net, other = ccnn(size=20), ccnn(**{"size": 20, **changes})
    other.load_state_dict(net.state_dict(), strict=False)
    with pytest.raises(ValueError, match=r"^state "):
        kf.stream(net).load_state_dict(kf.stream(other).state_dict())


def test_a_state_fits_after_other_calls_of_the_network() -> None:
    net = ccnn(size=90, sigma=0.1)
    x = samples(net, 1, 100)
    state = kf.stream(net).state_dict()
    with torch.no_grad():
        net(x, step=0.5)
    kf.stream(net.train()).load_state_dict(state)


def test_an_incomplete_state_leaves_the_stream_as_it_was() -> None:
    net = ccnn(size=90)
    x = samples(net, 1, 100)
    online, other = kf.stream(net), kf.stream(net)
    online.push(x)
    for damage in ("missing", "shape", "dtype"):
        state = kf.stream(net).state_dict()
        last = list(state["layers"])[-1]
        if damage == "missing":
            del state["layers"][last]
        else:
            total = state["layers"][last]["total"]
            state["layers"][last]["total"] = total[:, 1:] if damage == "shape" else total.float()
        with pytest.raises(ValueError, match=r"^state .*total"):
            online.load_state_dict(state)
    assert_unchanged(online, x, torch.cat([other.push(x), other.push(x)], dim=2)[..., 100:])


@pytest.mark.parametrize("streams", [[2], [-1], ["a"]])
def test_streams_out_of_the_batch_are_refused(streams: Any) -> None:
    online = kf.stream(ccnn(size=20), 2)
    for action in (online.reset, online.close):
        with pytest.raises((TypeError, ValueError), match=r"^streams "):
            action(streams)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: kf.CCNN(1, 2, size=8, channels=4, norm="layer"), "norm is a norm over time"),
        (lambda: kf.CKCNN(1, 2, size=8, channels=4, norm="layer"), "blocks.0.norm1 is a norm over time"),
        (lambda: kf.CCNN(1, 2, size=8, channels=4, norm="batch-statistics"), "norm normalises by .* the batch"),
        (lambda: kf.CCNN(1, 2, size=8, channels=4, causal=False), "stem.depthwise has a centred kernel"),
        (lambda: kf.CCNN(1, 2, size=8, dim=2, channels=4), "stem.depthwise has a centred kernel"),
        (lambda: kf.DNArch(kf.CCNN(1, 2, size=8, channels=4)), "DNArch"),
        (lambda: nn.Sequential(kf.CKConv(1, 1, size=8, causal=True), nn.Conv1d(1, 1, 3)), "1 is a Conv1d"),
        (lambda: kf.GCNN(1, 10, group=kf.groups.Cyclic(4)), "GCNN"),
    ],
)
def test_unsupported_layers_are_refused_by_name(build: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^net .*{reason}"):
        kf.stream(build())


def test_a_learned_resolution_is_refused() -> None:
    net = kf.DNArch(kf.CCNN(1, 2, size=16, channels=4, blocks=1), learn=("resolution",)).eval().materialize()
    with pytest.raises(ValueError, match=r"^net .*blocks\.0 has a learned resolution"):
        kf.stream(net)


@pytest.mark.parametrize(("argument", "value"), [("batch", 0), ("batch", 1.5), ("step", 0.0), ("net", 3)])
def test_bad_arguments(argument: str, value: Any) -> None:
    arguments = {"net": ccnn(size=8), argument: value}
    with pytest.raises((TypeError, ValueError), match=f"^{argument} "):
        kf.stream(**arguments)

"""Distilled networks: parallel and recurrent form, training, saving."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kernelfield as kf
from kernelfield.streaming import Distilled, RecurrentConv
from tests.streaming.networks import assert_equal_outputs, forward_after, samples, settled
from tests.streaming.test_online_conv import partitions
from tests.streaming.test_stream import push_all


def conv(reach: float | None = None, **changes: Any) -> RecurrentConv:
    torch.manual_seed(1)
    arguments: dict[str, Any] = {"in_channels": 2, "out_channels": 2, "order": 3, "reach": reach}
    layer = RecurrentConv(**{**arguments, **changes}).double()
    nn.init.normal_(layer.bias)
    return layer


# The layer


@settings(max_examples=15)
@given(
    data=st.data(),
    length=st.integers(1, 300),
    reach=st.sampled_from([None, 1.0, 7.0, 64.0, 100.0, 500.0]),
    depthwise=st.booleans(),
    step=st.sampled_from([1.0, 0.5, 1.7]),
)
def test_recurrent_form_equals_parallel_form(
    data: st.DataObject, length: int, reach: float | None, depthwise: bool, step: float
) -> None:
    layer = conv(reach, depthwise=depthwise)
    x = torch.randn(2, 2, length, dtype=torch.float64)
    y = push_all(kf.stream(layer, 2, step=step), x, data.draw(partitions(length)))
    assert_equal_outputs(y, layer(x, step=step).detach())


@pytest.mark.parametrize("reach", [None, 20.0])
def test_single_precision_keeps_up_over_many_samples(reach: float | None) -> None:
    layer = conv(reach).float()
    with torch.no_grad():
        layer.log_damping.fill_(-12)
    x = torch.randn(1, 2, 4000)
    assert_equal_outputs(push_all(kf.stream(layer), x, [1] * 50 + [3950]), layer(x).detach())


def test_kernel_is_the_sum_of_its_oscillations() -> None:
    layer = conv(out_channels=3)
    t = torch.arange(50, dtype=torch.float64)
    a, b, w, d = (p.unsqueeze(-1) for p in (layer.cosine, layer.sine, layer.frequency, layer.log_damping.exp()))
    wanted = (torch.exp(-d * t) * (a * torch.cos(w * t) + b * torch.sin(w * t))).sum(dim=1)
    torch.testing.assert_close(layer.kernel(50).flatten(0, 1), wanted)


def test_finer_steps_give_the_same_output() -> None:
    layer = conv(depthwise=True)
    with torch.no_grad():  # slow enough for the coarse grid
        layer.log_damping.fill_(-3)
        layer.frequency.mul_(0.1)
    t = torch.arange(400, dtype=torch.float64)
    x = torch.stack([torch.sin(t / 40), torch.sin(t / 60)]).unsqueeze(0)
    fine = layer(x, step=0.25)[..., ::4]
    torch.testing.assert_close(layer(x[..., ::4]), fine, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("reach", [None, 5.0])
def test_gradients_of_the_layer(reach: float | None) -> None:
    layer = conv(reach)
    names = ["log_damping", "frequency", "cosine", "sine", "bias"]

    def outputs(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(1, 2, 9, dtype=torch.float64, requires_grad=True)
    parameters = [getattr(layer, name).detach().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(outputs, (x, *parameters))


def test_coordinates_are_refused() -> None:
    x = torch.randn(1, 2, 9, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^coords "):
        conv()(x, coords=torch.rand(9, 1))


# Networks


def ckcnn(**changes: Any) -> nn.Module:
    torch.manual_seed(1)
    arguments: dict[str, Any] = {"size": 200, "channels": 2, "blocks": 1, "hidden": 8, "norm": "batch"}
    return settled(kf.CKCNN(2, 3, **{**arguments, **changes}))


@pytest.fixture(scope="module")
def distilled() -> tuple[nn.Module, Distilled]:
    net = ckcnn()
    return net, kf.distil(net, tolerance=1e-3)


def test_layers_reach_the_tolerance_and_predictions_follow(distilled: tuple[nn.Module, Distilled]) -> None:
    net, result = distilled
    assert [row.layer for row in result.layers] == ["blocks.0.conv1", "blocks.0.conv2"]
    assert all(row.error <= row.worst <= 1e-3 and 0 < row.order <= 32 for row in result.layers)
    x = samples(net, 4, 200)
    wanted = net(x).detach()
    assert float((result.network(x).detach() - wanted).norm()) < 1e-2 * float(wanted.norm())
    assert "blocks.0.conv1" in str(result)


def test_the_network_streams_as_it_runs_in_parallel(distilled: tuple[nn.Module, Distilled]) -> None:
    net = distilled[1].network
    x = samples(net, 2, 300)
    times = [0, 1, 99, 250, 299]
    y = push_all(kf.stream(net, 2), x, [1, 99, 50, 150])
    assert_equal_outputs(y[..., times], forward_after(net, x, times))


def test_memory_and_work_do_not_depend_on_the_kernels_length() -> None:
    memory = [kf.stream(kf.distil(ckcnn(size=size), order=4, refine=0).network).memory for size in (200, 400)]
    assert memory[0] == memory[1]


def test_streams_of_a_distilled_network_start_at_different_times(distilled: tuple[nn.Module, Distilled]) -> None:
    net = distilled[1].network
    x = samples(net, 2, 150)
    online = kf.stream(net, 2)
    online.push(x[..., :70])
    y = online.reset([1]).push(x[..., 70:])
    assert_equal_outputs(y[1:, :, -1:], forward_after(net, x[1:, :, 70:], [79]))
    assert_equal_outputs(y[:1, :, -1:], forward_after(net, x[:1], [149]))


def test_a_saved_state_of_a_distilled_stream_continues(distilled: tuple[nn.Module, Distilled]) -> None:
    net = distilled[1].network
    x = samples(net, 1, 150)
    online, other = kf.stream(net), kf.stream(net)
    online.push(x[..., :70])
    other.load_state_dict(online.state_dict())
    torch.testing.assert_close(other.push(x[..., 70:]), online.push(x[..., 70:]), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^state "):
        kf.stream(distilled[0]).load_state_dict(online.state_dict())


def test_masked_kernels_end_where_their_masks_do() -> None:
    net = ckcnn(size=400, sigma=0.2, hidden=4)
    result = kf.distil(net, order=24, refine=0)
    assert all(layer.lags() == row.points for layer, row in zip(recurrent(result), result.layers, strict=True))
    x = samples(net, 1, 600)
    times = [300, 599]
    assert_equal_outputs(kf.stream(result.network).push(x)[..., times], forward_after(result.network, x, times))
    decaying = kf.distil(net, order=4, refine=0, tail="decay")
    assert [layer.lags() for layer in recurrent(decaying)] == [None, None]


def recurrent(result: Distilled) -> list[RecurrentConv]:
    return [module for module in result.network.modules() if isinstance(module, RecurrentConv)]


def test_short_kernels_are_kept() -> None:
    net = ckcnn(size=60)
    result = kf.distil(net)
    assert [row.reason for row in result.layers] == ["a short kernel"] * 2
    x = samples(net, 1, 80)
    torch.testing.assert_close(result.network(x), net(x))


def test_layers_beyond_the_tolerance_are_kept() -> None:
    result = kf.distil(ckcnn(), tolerance=1e-9, max_order=2, refine=0)
    assert recurrent(result) == []
    assert all("tolerance" in row.reason and row.worst > 1e-9 for row in result.layers)


def test_a_network_is_rebuilt_from_its_state(distilled: tuple[nn.Module, Distilled]) -> None:
    net, result = distilled
    rebuilt = kf.distil(ckcnn(), state=result.network.state_dict()).network
    x = samples(net, 2, 100)
    torch.testing.assert_close(rebuilt(x), result.network(x), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^state "):
        kf.distil(ckcnn(channels=3), state=result.network.state_dict())


def test_accuracy_is_measured_on_data(distilled: tuple[nn.Module, Distilled]) -> None:
    net = distilled[0]
    x = samples(net, 20, 200)
    classes = net(x).argmax(dim=1)
    result = kf.distil(net, order=12, refine=0, data=[(x, classes)])
    assert result.accuracy is not None
    assert result.accuracy[0] == 1.0
    assert result.change == pytest.approx(100 * (result.accuracy[1] - 1))
    assert "accuracy" in str(result)


def test_gradients_of_a_distilled_network() -> None:
    net = kf.distil(ckcnn().double(), order=2, refine=0).network
    names = [name for name, _ in net.named_parameters()]
    assert sum("log_damping" in name for name in names) == 2

    def outputs(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(1, 2, 7, dtype=torch.float64, requires_grad=True)
    parameters = [parameter.detach().clone().requires_grad_() for parameter in net.parameters()]
    assert torch.autograd.gradcheck(outputs, (x, *parameters))


def test_training_improves_a_distilled_network() -> None:
    net = ckcnn()
    small = kf.distil(net, order=2, refine=0).network.train()
    x = samples(net, 16, 100)
    classes = (x[:, 0, :50].sum(dim=1) > 0).long()
    optimizer = torch.optim.Adam(small.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(small(x), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all((layer.log_damping.exp() > 0).all() for layer in small.modules() if isinstance(layer, RecurrentConv))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("step", [1.0, 0.5])
def test_distils_in_the_dtype_of_the_network(dtype: torch.dtype, step: float) -> None:
    net = ckcnn(sigma=0.5, readout="dense", size=300).to(dtype)
    result = kf.distil(net, order=20)
    x = samples(net, 1, 400)
    y = push_all(kf.stream(result.network, step=step), x, [1, 99, 300])
    assert y.dtype == dtype
    for network in (net, result.network):
        wanted = network(x, step=step).detach().double()
        assert float((y.double() - wanted).norm()) < 0.05 * float(wanted.norm())


def test_half_precision_leaves_oscillations_and_reach_as_they_are() -> None:
    layer = conv(reach=279.0).float()
    wanted = layer.kernel(300)
    layer.bfloat16()
    assert layer.bias.dtype == torch.bfloat16
    assert layer.lags() == 279
    assert torch.equal(layer.kernel(300), wanted)
    assert layer.float()(torch.randn(1, 2, 5)).dtype == torch.float32


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("net", 3),
        ("net", kf.CCNN(1, 2, size=8, dim=2, channels=2, blocks=0)),
        ("order", 0),
        ("tolerance", 0.0),
        ("max_order", 1.5),
        ("refine", -1),
        ("tail", "long"),
        ("data", []),
    ],
)
def test_bad_arguments(argument: str, value: Any) -> None:
    arguments = {"net": ckcnn(size=8), argument: value}
    with pytest.raises((TypeError, ValueError), match=rf"^{argument} "):
        kf.distil(**arguments)

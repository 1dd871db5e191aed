"""Fields that share a network, and the network of chapter 6 that has such kernels."""

from __future__ import annotations

import copy

import pytest
import torch

from kernelfield import CCNN, create_model
from kernelfield.fields import RandomFourier, SharedField
from kernelfield.layers import ContinuousConv
from kernelfield.testing import assert_state_dict_round_trip, count_parameters


def small(**options: object) -> CCNN:
    torch.manual_seed(0)
    given = {"in_channels": 2, "out_channels": 3, "size": 16, "channels": 4, "omega_0": 4.0, **options}
    return create_model("ccnn_4_140_shared", **given)


def test_formula() -> None:
    network = RandomFourier(2, 8, hidden=8).double()
    field = SharedField(2, 3, network=network).double()
    coords = torch.rand(5, 2, dtype=torch.float64)
    expected = torch.nn.functional.gelu(network(coords)) @ field.out.weight.T + field.out.bias
    torch.testing.assert_close(field(coords), expected)
    torch.testing.assert_close(field(coords, 2), expected[:, :2])
    before = field(coords)
    torch.testing.assert_close(field.scale_(0.5)(coords), 0.5 * before)


def test_a_network_of_other_coordinates_is_refused() -> None:
    with pytest.raises(ValueError, match=r"network must have dim=2, got 1"):
        SharedField(2, 3, network=RandomFourier(1, 8))


def test_all_layers_share_one_network_that_is_stored_once() -> None:
    net = small()
    fields = [m.field for m in net.modules() if isinstance(m, ContinuousConv)]
    assert len(fields) == 4
    assert all(field.network is net.kernel_network for field in fields)
    tensors = list(net.state_dict().values())
    assert len({t.data_ptr() for t in tensors if t.numel()}) == len([t for t in tensors if t.numel()])
    assert_state_dict_round_trip(small, torch.randn(2, 2, 16))


def test_gradients_of_all_layers_reach_the_shared_network() -> None:
    net = small()
    net(torch.randn(2, 2, 16)).sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in net.kernel_network.parameters())


def test_a_copy_has_a_network_of_its_own() -> None:
    net = small()
    other = copy.deepcopy(net)
    field = other.blocks[0].continuous_layers()[0].field
    assert field.network is other.kernel_network
    assert field.network is not net.kernel_network


def test_learned_architectures_materialize_alike() -> None:
    torch.manual_seed(0)
    net = create_model("dnarch_4_140_shared", in_channels=2, out_channels=3, size=16, channels=4, omega_0=4.0).eval()
    x = torch.randn(3, 2, 16)
    torch.testing.assert_close(net.materialize().eval()(x), net(x), atol=1e-5, rtol=1e-4)


def test_parameters_are_those_of_four_layers_of_128_units() -> None:
    net = create_model("ccnn_4_140_shared", in_channels=3, out_channels=10, dim=2, size=32)
    assert count_parameters(net.kernel_network) == (256 + 1) * 128 + 2 * (128 + 1) * 128
    assert count_parameters(net) == 300_290

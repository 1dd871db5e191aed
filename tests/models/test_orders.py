"""Networks apply their parts in the published order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernelfield.groups import Cyclic
from kernelfield.layers import GroupSignal
from kernelfield.models.gcnn import GCNN, GroupAllCNN, GroupDenseNet, GroupResNet
from kernelfield.models.gridified import GridifiedNet
from kernelfield.models.gsanet import GSANet
from kernelfield.models.partial_gcnn import PartialGCNN, PartialGCNN13
from kernelfield.models.wavelet_net import WaveletNet
from kernelfield.models.wavelet_stages import Stage

GROUP = Cyclic(4)


class Times(nn.Module):
    """Stands for a dropout, to show where it is."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return x.map(self) if isinstance(x, GroupSignal) else self.factor * x


def drawn(net: nn.Module) -> nn.Module:
    """Return the network, in evaluation, with biases and statistics of norms that are neither zero nor one."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):
            if name.endswith(("bias", "running_mean")):
                tensor.normal_(std=0.3)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
    return net.eval()


def test_the_network_for_rotated_digits() -> None:
    net = drawn(GCNN(1, 3, group=GROUP, channels=4))
    net.dropout = Times(2.0)
    x = torch.randn(2, 1, 28, 28)
    y = 2 * F.relu(net.norms[0](net.lift(x).values))
    y = net.pool(F.relu(net.norms[1](net.convs[0](y).values)))
    for conv, norm in zip(net.convs[1:], net.norms[2:], strict=True):
        y = 2 * F.relu(norm(conv(y).values))
    assert y.shape[-2:] == (4, 4)
    torch.testing.assert_close(net(x), net.last(y).values.amax(dim=(2, 3, 4)))


def test_the_all_convolutional_network() -> None:
    net = drawn(GroupAllCNN(1, 3, group=GROUP, channels=2))
    net.dropout_in, net.dropout = Times(2.0), Times(3.0)
    x = torch.randn(2, 1, 16, 16)
    y = F.relu(net.norms[0](net.lift(2 * x).values))
    for layer, (conv, norm) in enumerate(zip(net.convs, net.norms[1:], strict=True), start=2):
        y = conv(y).values
        y = 3 * F.relu(norm(net.pool(y))) if layer in (3, 6) else F.relu(norm(y))
    y = F.relu(net.last_norm(net.last(y).values))
    torch.testing.assert_close(net(x), y.mean(dim=(2, 3, 4)))


@pytest.mark.parametrize("partial", [True, False])
def test_the_network_of_two_residual_blocks(partial: bool) -> None:
    net = drawn(PartialGCNN(1, 3, group=GROUP, partial=partial, channels=(2, 3, 3, 4), kernel_size=3))
    x = torch.randn(2, 1, 16, 16)
    y = F.relu(net.pool(net.norm_in(net.lift(x).values)))
    for block in net.blocks:
        y = block(y).values
    y = F.relu(net.norm_out(net.last(y).values)).amax(dim=(2, 3, 4))
    assert y.shape == (2, 4)
    torch.testing.assert_close(net(x), net.linear(y))


def test_the_network_of_thirteen_layers() -> None:
    net = drawn(PartialGCNN13(1, 3, group=GROUP, samples=None, partial=False, channels=2))
    net.dropout = Times(3.0)
    x = torch.randn(2, 1, 16, 16)
    y = F.relu(net.norms[0](net.lift(x).values))
    for layer, (conv, norm) in enumerate(zip(net.convs, net.norms[1:], strict=True), start=1):
        y = F.relu(norm(conv(y).values))
        y = net.pool(y) if layer in (2, 5) else y
        y = 3 * y if layer in (2, 5, 8) else y
    torch.testing.assert_close(net(x), net.linear(y.mean(dim=(2, 3, 4))))


@pytest.mark.parametrize("attention", [None, "input", "full", "co"])
def test_the_residual_network(attention: str | None) -> None:
    net = drawn(GroupResNet(1, 3, group=GROUP, channels=(2, 3), blocks=2, attention=attention))
    x = torch.randn(2, 1, 8, 8)
    y = net.lift(x).values
    for block in net.blocks:
        y = block(y).values
    y = F.relu(net.norm(y))
    assert y.shape[-2:] == (4, 4)
    pooled_first = net.last(y.mean(dim=(3, 4), keepdim=True)).values.mean(dim=(2, 3, 4))
    torch.testing.assert_close(net(x), pooled_first)
    # Only without attention is the last layer linear, and the order of no importance.
    pooled_last = net.last(y).values.mean(dim=(2, 3, 4))
    assert torch.allclose(pooled_first, pooled_last, rtol=1e-4, atol=1e-6) == (attention is None)


def test_the_dense_network() -> None:
    net = drawn(GroupDenseNet(1, 3, group=GROUP, growth=2, blocks=2))
    x = torch.randn(2, 1, 12, 12)
    y = net.lift(x).values
    y = torch.cat([net.convs[0](F.relu(net.norms[0](y))).values, y[..., 1:-1, 1:-1]], dim=1)
    y = net.between[0](F.relu(net.between_norms[0](y))).values
    y = F.avg_pool3d(y, (1, 2, 2))
    y = torch.cat([net.convs[1](F.relu(net.norms[1](y))).values, y[..., 1:-1, 1:-1]], dim=1)
    torch.testing.assert_close(net(x), net.last(F.relu(net.norm(y))).values.mean(dim=(2, 3, 4)))


@pytest.mark.parametrize("readout", ["mean-max", "sum-max", "max-mean"])
def test_the_network_of_self_attention(readout: str) -> None:
    options = {"channels": 4, "widths": ((4,), (6,)), "crops": (1, 0), "heads": 2, "neighborhood": 3}
    net = drawn(GSANet(1, 3, group=GROUP, readout=readout, **options))
    net.dropout_in, net.dropout_pool = Times(2.0), Times(3.0)
    x = torch.randn(2, 1, 8, 8)
    y = F.silu(net.norm(net.lift(2 * x).values))
    y = 3 * net.pool(net.stages[0](y).values)
    y = net.classify(net.stages[1](y).values)  # (batch, classes, group, rows, columns)
    wanted = {
        "mean-max": lambda: y.mean(dim=(3, 4)).amax(dim=2),
        "sum-max": lambda: y.sum(dim=(3, 4)).amax(dim=2),
        "max-mean": lambda: y.amax(dim=2).mean(dim=(2, 3)),
    }
    torch.testing.assert_close(net(x), wanted[readout]())


@pytest.mark.parametrize("scales", [0, 4])
def test_the_network_of_wavelets(scales: int) -> None:
    stages = [Stage(4, 5, stride=2, pool=2, dropout=0.1), Stage(8, 3, residual=True, pool=2), Stage(8, 3, 2)]
    net = drawn(WaveletNet(1, 3, stages=stages, scales=scales))
    first, block, second = net.stages
    first.dropout = Times(2.0)
    x = torch.randn(2, 1, 64)

    def values(signal: Any) -> Any:
        return signal.values if isinstance(signal, GroupSignal) else signal

    y = values(first.conv(x))
    y = y if scales == 0 else first.shrink(y)  # a plain convolution has a stride
    y = 2 * first.pool(F.relu(first.norm(y)))
    branch = F.relu(block.norm1(values(block.conv1(y))))
    branch = block.norm2(values(block.conv2(branch)))
    y = block.pool(F.relu(block.norm3(branch + torch.cat([y, y], dim=1))))
    y = F.relu(second.norm(values(second.conv(y))))
    y = values(net.head.conv(GroupSignal(y, group=second.group) if scales else y)).mean(dim=-1)
    torch.testing.assert_close(net(x), y.amax(dim=2) if scales else y)


@pytest.mark.parametrize("readout", ["mean", "dense"])
def test_the_network_on_a_grid_between_points(readout: str) -> None:
    net = drawn(GridifiedNet(2, 3, dim=2, channels=4, blocks=2, kernel_size=3, grid=5, readout=readout))
    x, coords = torch.randn(2, 2, 20), 2 * torch.rand(2, 20, 2) - 1
    y = net.gridify(x, coords)
    for block in net.blocks:
        y = block(y)
    y = net.norm(y)
    y = y if readout == "mean" else net.degridify(y, coords)
    torch.testing.assert_close(net(x, coords=coords), net.readout(y))

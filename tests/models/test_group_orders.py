"""Networks on groups apply their parts in the published order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernelfield.groups import Cyclic
from kernelfield.layers import GroupSignal
from kernelfield.models.gcnn import GCNN, GroupAllCNN, GroupDenseNet, GroupResNet
from kernelfield.models.partial_gcnn import PartialGCNN, PartialGCNN13

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


def test_the_residual_network() -> None:
    net = drawn(GroupResNet(1, 3, group=GROUP, channels=(2, 3), blocks=2))
    x = torch.randn(2, 1, 8, 8)
    y = net.lift(x).values
    for block in net.blocks:
        y = block(y).values
    y = F.relu(net.norm(y))
    assert y.shape[-2:] == (4, 4)
    torch.testing.assert_close(net(x), net.last(y).values.mean(dim=(2, 3, 4)))


def test_the_dense_network() -> None:
    net = drawn(GroupDenseNet(1, 3, group=GROUP, growth=2, blocks=2))
    x = torch.randn(2, 1, 12, 12)
    y = net.lift(x).values
    y = torch.cat([net.convs[0](F.relu(net.norms[0](y))).values, y[..., 1:-1, 1:-1]], dim=1)
    y = net.between[0](F.relu(net.between_norms[0](y))).values
    y = F.avg_pool3d(y, (1, 2, 2))
    y = torch.cat([net.convs[1](F.relu(net.norms[1](y))).values, y[..., 1:-1, 1:-1]], dim=1)
    torch.testing.assert_close(net(x), net.last(F.relu(net.norm(y))).values.mean(dim=(2, 3, 4)))

"""Residual blocks and the networks around them compute the equations of their chapters, term by term."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelfield import CCNN, CKCNN, CKConv, FlexNet, SeparableConv
from kernelfield.layers import CCNNBlock, TwoConvBlock


class Triple(nn.Module):
    """Stands for a dropout, to show where it is."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


def with_drawn_biases(module: nn.Module) -> nn.Module:
    """Return the module with biases that are not zero, so that their place has an effect."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return module


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("activate_branch", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_two_convolutions_and_a_shortcut(activation: str, activate_branch: bool, channels: int) -> None:
    options = {"norm": "layer", "activation": activation, "activate_branch": activate_branch}
    block = with_drawn_biases(TwoConvBlock(partial(CKConv, size=8), 3, channels, **options))
    block.dropout = Triple()
    act, x = getattr(F, activation), torch.randn(2, 3, 8)
    branch = 3 * act(block.norm1(block.conv1(x)))
    branch = block.norm2(block.conv2(branch))
    if activate_branch:
        branch = 3 * act(branch)
    torch.testing.assert_close(block(x), act(branch + block.shortcut(x)))
    assert isinstance(block.shortcut, nn.Identity) == (channels == 3)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("final_activation", [True, False])
def test_one_convolution_and_one_linear_map(final_activation: bool, prenorm: bool, channels: int) -> None:
    options = {"norm": "layer", "prenorm": prenorm, "final_activation": final_activation}
    block = with_drawn_biases(CCNNBlock(partial(SeparableConv, size=8), 3, channels, **options))
    x = torch.randn(2, 3, 8)
    branch = block.linear(F.gelu(block.conv(block.norm(x) if prenorm else x)))
    wanted = block.shortcut(x) + (F.gelu(branch) if final_activation else branch)
    torch.testing.assert_close(block(x), wanted if prenorm else block.norm(wanted))


def test_dropout_lies_between_the_nonlinearity_and_the_linear_map() -> None:
    block = with_drawn_biases(CCNNBlock(partial(SeparableConv, size=8), 3, 3, norm="none", dropout=1 - 1e-9))
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(block(x), x + F.gelu(block.linear.bias).view(-1, 1))


@pytest.mark.parametrize("block", ["ccnn", "s4", "resnet"])
def test_a_ccnn_is_its_parts_in_order(block: str) -> None:
    net = with_drawn_biases(CCNN(2, 3, size=8, channels=4, blocks=2, norm="channel", block=block))
    net.input_dropout = Triple()
    x = torch.randn(2, 2, 8)
    y = F.gelu(net.norm(net.stem(3 * x)))
    for each in net.blocks:
        y = each(y)
    torch.testing.assert_close(net(x), net.readout(net.final_norm(y)))
    assert isinstance(net.final_norm, nn.Identity) == (block == "resnet")
    if block == "resnet":
        assert [(each.activation, each.activate_branch) for each in net.blocks] == [("gelu", False)] * 2
    else:
        assert [each.activation for each in net.blocks] == ["gelu" if block == "ccnn" else None] * 2


def test_ckcnns_and_flexnets_are_their_parts_in_order() -> None:
    x = torch.randn(2, 2, 8)
    net = with_drawn_biases(CKCNN(2, 3, 8, channels=4, blocks=2))
    net.input_dropout = Triple()
    y = 3 * x
    for block in net.blocks:
        y = block(y)
    torch.testing.assert_close(net(x), net.readout(y))
    assert [(block.activation, block.activate_branch) for block in net.blocks] == [("relu", True)] * 2
    net = with_drawn_biases(FlexNet(2, 3, 8, dim=1, channels=4, widths=(1, 2))).eval()
    y = F.relu(net.norm(net.stem(x)))
    for block in net.blocks:
        y = block(y)
    torch.testing.assert_close(net(x), net.readout(y))
    assert [(block.activation, block.activate_branch) for block in net.blocks] == [("relu", False)] * 2

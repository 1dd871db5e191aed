"""Residual blocks and the networks around them compute the equations of their chapters, term by term."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelfield import CCNN, CKCNN, CKConv, FlexNet, SeparableConv
from kernelfield.layers import BatchNorm, CCNNBlock, TwoConvBlock, make_norm


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


def test_batch_norms_without_momentum_average_all_batches() -> None:
    ours, theirs = BatchNorm(3, momentum=None), nn.BatchNorm1d(3, momentum=None)
    for _ in range(3):
        x = torch.randn(4, 3, 8) + torch.randn(3, 1)
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_layer_norms_do_not_change_with_the_size_of_a_signal() -> None:
    norm, x = make_norm("layer", 4), torch.randn(2, 4, 8)
    torch.testing.assert_close(norm(1e-3 * x), norm(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm(x).flatten(1).var(dim=1, correction=0), torch.ones(2))


@pytest.mark.parametrize(("blocks", "gain"), [(2, 1.0), (4, 1.0), (16, 0.5)])
def test_deep_ckcnns_start_with_smaller_outputs(blocks: int, gain: float) -> None:
    weight = CKCNN(1, 400, 4, channels=25, blocks=blocks, hidden=4).readout.linear.weight.detach()
    assert float(weight.std()) == pytest.approx(gain / 5, rel=0.05)

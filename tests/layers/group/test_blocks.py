"""Residual blocks on groups compute the equations of their chapters, term by term."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelfield.groups import Cyclic
from kernelfield.layers.group import (
    GroupConv,
    GroupLayerNorm,
    GroupResidualBlock,
    PartialResidualBlock,
    SelfAttentionBlock,
)

GROUP = Cyclic(4)


class Triple(nn.Module):
    """Stands for a dropout, to show where it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x.map(lambda values: 3 * values) if hasattr(x, "map") else 3 * x


def drawn(module: nn.Module) -> nn.Module:
    """Return the module, in evaluation, with biases and statistics of norms that are neither zero nor one."""
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.endswith(("bias", "running_mean")):
                tensor.normal_()
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
    return module.eval()


@pytest.mark.parametrize(("channels", "pool"), [(3, False), (5, False), (3, True)])
def test_a_block_of_chapter_8(channels: int, pool: bool) -> None:
    block = drawn(GroupResidualBlock(3, channels, group=GROUP, pool=pool, bias=True))
    x = torch.randn(2, 3, 4, 6, 6)
    half = block.pool
    y = half(block.conv1(F.relu(block.norm1(x))).values)
    y = block.conv2(F.relu(block.norm2(y))).values
    shortcut = x if block.shortcut is None else half(block.shortcut(x).values)
    torch.testing.assert_close(block(x).values, y + shortcut)
    assert (block.shortcut is None) == (channels == 3 and not pool)


@pytest.mark.parametrize("pool", [False, True])
def test_a_block_of_chapter_11(pool: bool) -> None:
    convs = GroupConv(3, 5, group=GROUP), GroupConv(5, 5, group=GROUP)
    shortcut = GroupConv(3, 5, group=GROUP, kernel_size=1, resample=False)
    block = drawn(PartialResidualBlock(*convs, shortcut, 5, pool=pool))
    block.dropout = Triple()
    x = torch.randn(2, 3, 4, 6, 6)
    y = 3 * F.relu(block.norm(convs[0](x).values))
    y = F.relu(block.norm(convs[1](y).values))
    wanted = F.relu(block.pool(block.norm_out(y + shortcut(x).values)))
    torch.testing.assert_close(block(x).values, wanted)


@pytest.mark.parametrize("norm_after", [False, True])
@pytest.mark.parametrize("channels", [4, 8])
def test_a_block_of_chapter_9(channels: int, norm_after: bool) -> None:
    block = SelfAttentionBlock(4, channels, group=GROUP, crop=1, heads=2, norm_after=norm_after)
    block.dropout = Triple()
    for norm in (block.norm_in, block.norm_attended, block.norm_narrow, block.norm_out):
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 4, 4, 6, 6)
    attended = block.attention(F.silu(block.norm_in(x)), crop=1).values
    y = 3 * F.silu(block.norm_attended(attended)) + block.shortcut(x[..., 1:-1, 1:-1])
    y = y + block.norm_out(block.widen(F.silu(block.norm_narrow(block.narrow(y)))))
    torch.testing.assert_close(block(x).values, F.silu(block.norm_after(y)) if norm_after else y)


@pytest.mark.parametrize("shape", [(2, 3, 1, 1, 1), (2, 3, 1), (2, 3, 1, 1)])
def test_a_single_value_is_not_normalised(shape):
    """It would be zero for every input."""
    with pytest.raises(ValueError, match="x must have more than one value per channel"):
        GroupLayerNorm()(torch.randn(shape))
    assert GroupLayerNorm()(torch.randn(2, 3, 2, 1, 1)).abs().max() > 0.5

"""The cost of an architecture, and the budget it is kept within."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernelfield import CCNN
from kernelfield.layers import BatchNorm, ContinuousConv, Pointwise
from kernelfield.masks import SigmoidMask
from kernelfield.models.dnarch.cost import BlockSizes, block_cost, network_cost
from tests.models.dnarch.nets import build, moved, signal


class _CountGelu(TorchFunctionMode):
    """Counts what no module stands for: nonlinearities and sums of signals."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.gelu:
            self.operations += args[0][0].numel()
        return func(*args, **(kwargs or {}))


def counted(net: CCNN, x: torch.Tensor) -> int:
    """Return the operations of a forward pass of one sample, by hooks on the modules it meets."""
    total = 0

    def count(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        length, channels = math.prod(inputs[0].shape[2:]), inputs[0].shape[1]
        if isinstance(module, Pointwise):
            total += length * channels * output.shape[1]
        elif isinstance(module, ContinuousConv):
            total += round(channels * length * math.log2(length))
        else:
            total += length * channels

    kinds = (Pointwise, ContinuousConv, BatchNorm)
    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, kinds)]
    with _CountGelu() as mode:
        net(x)
    for hook in hooks:
        hook.remove()
    return total + mode.operations


@pytest.mark.parametrize(("dim", "size"), [(1, 256), (2, 64)])
@pytest.mark.parametrize("seed", [0, 1])
def test_complexity_is_what_hooks_count_in_the_materialised_network(dim: int, size: int, seed: int) -> None:
    net = moved(build(dim, size, channels=48), seed).eval()
    with torch.no_grad():
        # Sizes are real numbers and networks are not: with a depth of 2.6 the count is one of no network.
        net.depth.offset.fill_(SigmoidMask.offset_for(3 / 4, net.depth.temperature))
    small = net.materialize()
    count = counted(small, signal(dim, size)[:1])
    assert float(net.complexity().detach()) == pytest.approx(count, rel=0.05)
    assert network_cost(small) == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(
    ("options", "more_per_block", "more"),
    [
        ({}, 0, 0),
        ({"dropout": 0.1}, 64, 0),
        ({"block": "s4"}, -64, 0),
        ({"norm": "none"}, -64, -2 * 64),
        ({"prenorm": False}, 0, -64),
        ({"stem": "linear"}, 0, -3 * 16 * 4),
        ({"readout": "last"}, 0, -64),
        ({"readout": "dense", "causal": False}, 0, 16 * 4 * 5 - 4 * 5 - 64),
    ],
    ids=str,
)
def test_the_cost_of_a_network_has_a_term_for_each_of_its_parts(
    options: dict[str, Any], more_per_block: int, more: int
) -> None:
    """A signal of 4 channels and 16 samples: 64 values, and log₂ 16 = 4."""
    net = CCNN(3, 5, size=16, channels=4, blocks=2, **options)
    block = 4 * 64 + 2 * 64 * 4 + 2 * 64 + 64 + 64  # Fourier, two maps, two nonlinearities, norm, sum
    stem = 3 * 16 * 4 + 3 * 64 + 64 + 64  # Fourier, map, norm, nonlinearity
    end = 64 + 64 + 4 * 5  # norm, mean, readout
    assert network_cost(net) == stem + 2 * (block + more_per_block) + end + more


@pytest.mark.parametrize("shape", [(16,), (8, 4)])
def test_parts_of_a_block_at_a_lower_resolution(shape: tuple[int, ...]) -> None:
    """The norm and the sum stay at the resolution of the signal; the rest is computed at the block's own."""
    net = CCNN(3, 5, dim=len(shape), size=shape if len(shape) > 1 else shape[0], channels=4, blocks=1)
    whole, half = math.prod(shape), math.prod(shape) // 2
    sizes = BlockSizes(read=2, middle=3, written=4, lengths=(shape[0] // 2, *shape[1:]))
    wanted = 2 * half * math.log2(half) + half * (2 * 3 + 3 * 4 + 3 + 4) + whole * (2 + 4)
    assert block_cost(net, sizes) == pytest.approx(wanted)


def test_complexity_loss_is_the_relative_square() -> None:
    net = build(budget=0.5)
    relative = net.relative_complexity()
    torch.testing.assert_close(net.complexity_loss(), (relative / 0.5 - 1) ** 2)
    torch.testing.assert_close(net.complexity_loss(2.0), (relative / 2.0 - 1) ** 2)
    with pytest.raises(ValueError, match=r"\btarget must"):
        build(budget=None).complexity_loss()


@pytest.mark.parametrize("name", ["width", "resolution", "depth"])
def test_a_mask_at_its_limit_still_gets_a_gradient_from_the_cost(name: str) -> None:
    net = build(learn=(name,))
    mask = getattr(net, name)
    with torch.no_grad():
        mask.offset.fill_(mask.limits()[1])
    net.complexity().backward()
    assert (mask.offset.grad > 0).all()


@pytest.mark.parametrize("budget", [0.5, *(pytest.param(b, marks=pytest.mark.slow) for b in (1.0, 1.5))])
def test_the_budget_is_kept_from_the_end_of_warm_up_on(budget: float) -> None:
    net = build(2, 8, budget=budget, learn=("resolution", "width", "depth"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    x = torch.randn(8, 2, 8, 8)
    y = x.flatten(1)[:, :4].argmax(1) % 3
    warmup, steps = 50, 90
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.02 * min(1.0, (step + 1) / warmup)
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + 5.0 * net.complexity_loss()).backward()
        optimizer.step()
        if step >= warmup:
            assert abs(float(net.relative_complexity().detach()) / budget - 1) < 0.1, step

"""Each size is learned, and grows or shrinks with what a task needs."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from kernelfield import CCNN, DNArch
from kernelfield.masks import Mask
from kernelfield.models.dnarch.materialize import kernel_points
from kernelfield.ops import resample
from tests.models.dnarch.nets import SMALL, build, convs, signal

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    "learn",
    [
        ("kernel",),
        ("resolution",),
        ("width",),
        ("depth",),
        ("kernel", "resolution"),
        ("kernel", "resolution", "width", "depth"),
    ],
    ids="+".join,
)
def test_gradients_reach_each_mask_that_is_learned(learn: tuple[str, ...]) -> None:
    net = build(2, 12, learn=learn)
    (net(signal(2, 12)).square().mean() + net.complexity_loss()).backward()
    found = {"width": net.width, "resolution": net.resolution, "depth": net.depth}
    assert {name for name, mask in found.items() if mask is not None} == set(learn) - {"kernel"}
    used = net.sizes.kept_blocks
    for name in set(learn) - {"kernel"}:
        grad = found[name].offset.grad.view(1 if name == "depth" else net.sizes.blocks, -1)
        assert (grad[:used] != 0).all()
    widths = [layer.mask.sigma for layer in convs(net.network)[: used + 1]]
    assert all(isinstance(s, torch.nn.Parameter) and bool((s.grad != 0).all()) for s in widths) == ("kernel" in learn)


def test_masks_start_at_the_size_of_the_network() -> None:
    net = DNArch(CCNN(3, 10, dim=2, size=32))
    made = net.architecture()
    assert made.depth == 4
    assert net.sizes.blocks == 8
    assert {b.widths for b in made.blocks} == {(140, 140, 140)}
    assert {b.resolution for b in made.blocks} == {(32, 32)}
    assert 1 < made.complexity < 1.05  # the identity branch is twice as wide
    torch.testing.assert_close(net.resolution.profile(torch.ones(1, 16)), torch.full((1, 16), 0.85))
    globally = DNArch(CCNN(3, 10, dim=2, size=32, channels=8, sigma=None))
    assert {b.kernel for b in globally.architecture().blocks} == {(35, 35)}


def test_a_new_mask_on_kernels_keeps_their_energy() -> None:
    base = CCNN(2, 3, size=24, **{**SMALL, "sigma": None})
    net = DNArch(base, learn=("kernel",), sigma=0.1)
    for old, new in zip(convs(base), convs(net.network), strict=True):
        assert new.mask is not None
        torch.testing.assert_close(new.energy(), old.energy(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_a_kernel_without_a_mask_has_a_point_for_each_offset(causal: bool) -> None:
    net = DNArch(CCNN(2, 3, size=24, **{**SMALL, "sigma": None, "causal": causal}), learn=("width",))
    points = tuple(convs(net.network)[0].kernel().shape[2:])
    assert all(block.kernel == points for block in net.architecture().blocks)


@pytest.mark.parametrize(("dim", "size"), [(1, 20), (2, (6, 15))])
def test_a_kernel_keeps_two_neighbours_by_which_it_can_grow(dim: int, size: Any) -> None:
    net = build(dim, size, learn=("kernel",), causal=False)
    layers = convs(net.network)
    with torch.no_grad():
        for layer in layers:
            layer.mask.sigma.fill_(1e-6)
    torch.optim.SGD(net.parameters(), lr=0.0).step()  # masks are clamped after a step
    for layer in layers:
        assert all(n >= 3 for n in kernel_points(layer))
    net(signal(dim, size)).square().sum().backward()
    assert all(bool((layer.mask.sigma.grad != 0).all()) for layer in layers)


def test_the_weights_of_the_network_are_preserved() -> None:
    base = CCNN(2, 3, size=32, **SMALL).eval()
    with torch.no_grad():
        for p in base.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x = signal(1, 32)
    torch.testing.assert_close(DNArch(base, learn=("kernel",))(x), base(x))
    net = DNArch(base, max_width=1, max_depth=1)
    with torch.no_grad():
        for mask in (net.width, net.resolution, net.depth):
            mask.offset.fill_(100.0)  # open, beyond any limit
    torch.testing.assert_close(net(x), base(x), rtol=1e-4, atol=1e-5)


def task_net(learn: str, size: int = 64, **options: Any) -> DNArch:
    torch.manual_seed(0)
    given = {"channels": 8, "blocks": 1, "hidden": 16, "causal": False, "norm": "none", "stem": "linear"}
    return DNArch(CCNN(1, 1, size=size, readout="dense", **{**given, **options}), learn=(learn,), budget=None)


def fit(
    net: DNArch, sample: Callable[[], tuple[torch.Tensor, torch.Tensor]], steps: int, weight_decay: float = 0.0
) -> None:
    learned = [p for m in net.modules() if isinstance(m, Mask) for p in m.parameters()]
    others = [p for p in net.network.parameters() if p.requires_grad and all(p is not m for m in learned)]
    groups = [{"params": learned, "lr": 0.02, "weight_decay": 0.0}, {"params": others}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.01, weight_decay=weight_decay)
    for _ in range(steps):
        x, y = sample()
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()


def test_a_task_that_needs_a_long_kernel_grows_it() -> None:
    net = task_net("kernel", sigma=0.04)

    def mean_of_31() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(16, 1, 64)
        return x, F.conv1d(F.pad(x, (15, 15)), torch.ones(1, 1, 31) / math.sqrt(31))

    assert net.architecture().blocks[0].kernel == (11,)
    fit(net, mean_of_31, 60)
    assert net.architecture().blocks[0].kernel > (17,)


def test_a_task_that_needs_high_frequencies_raises_the_resolution() -> None:
    net = task_net("resolution", sigma=0.06, start="flexconv")  # kernels of all frequencies, so that few steps suffice
    with torch.no_grad():
        net.resolution.offset.fill_(-0.3)

    def differences() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(16, 1, 64)
        return x, (x - torch.roll(x, 1, -1)).abs()

    before = net.architecture().blocks[0].resolution
    fit(net, differences, 60)
    assert net.architecture().blocks[0].resolution[0] > before[0] + 8


def test_a_task_that_needs_no_high_frequencies_lowers_it() -> None:
    net = task_net("resolution", sigma=0.25)
    with torch.no_grad():
        net.resolution.offset.fill_(0.3)
    alternating = torch.tensor([1.0, -1.0]).repeat(32)

    def under_noise() -> tuple[torch.Tensor, torch.Tensor]:
        smooth = 2 * resample(torch.randn(16, 1, 8), 64)
        return smooth + 1.5 * torch.randn(16, 1, 64) * alternating, smooth.abs()

    before = net.architecture().blocks[0].resolution
    fit(net, under_noise, 60)
    assert net.architecture().blocks[0].resolution[0] < before[0] - 8


@pytest.mark.parametrize("needs_width", [True, False])
def test_a_task_that_needs_width_gets_it(needs_width: bool) -> None:
    net = task_net("width", 32, sigma=0.15, start="flexconv")
    block = net.network.blocks[0]
    torch.manual_seed(3)
    filters, weights = torch.randn(24, 1, 9) / 3, torch.randn(24, 1) / math.sqrt(6)
    with torch.no_grad():  # features have yet to grow; whether they need more channels for it is the task's business
        block.linear.weight.mul_(0.3)
        block.conv.pointwise.weight.mul_(0.3)

    def sample() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(16, 1, 32)
        features = F.conv1d(F.pad(x, (4, 4)), filters).relu()
        return x, (features * weights).sum(dim=1, keepdim=True) if needs_width else x / 2

    fit(net, sample, 80, weight_decay=1.0)
    relative = float(net.relative_complexity().detach())
    assert relative > 1.4 if needs_width else relative < 1.15


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_a_task_that_needs_more_or_fewer_blocks_gets_them(shift: float) -> None:
    """The task is another network of the same weights, deeper or less deep."""
    net = task_net("depth", 32, sigma=0.15, blocks=2)
    for p in net.network.parameters():
        p.requires_grad_(False)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.depth.offset.add_(shift)

    def answers() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(16, 1, 32)
        return x, other(x).detach()

    assert net.architecture().depth == 2
    fit(net, answers, 40)
    assert net.architecture().depth == other.architecture().depth == (3 if shift > 0 else 1)

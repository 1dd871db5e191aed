"""DNArch: the four sizes are learned, counted, kept within a budget, and materialised as an ordinary network."""

from __future__ import annotations

import copy
import math
import pickle
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from kernelfield import CCNN, DNArch
from kernelfield._step_hooks import pause_step_hooks
from kernelfield.layers import BandLimit, BatchNorm, ContinuousConv, Pointwise
from kernelfield.layers.continuous.learned_size import DelayedSizes
from kernelfield.masks import Mask, SigmoidMask
from kernelfield.models.dnarch.cost import network_cost
from kernelfield.ops import resample
from kernelfield.testing import assert_compiles, assert_exports
from kernelfield.viz.architecture import plot_history
from tests.contracts.models import ModelContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL: dict[str, Any] = {"channels": 8, "blocks": 2, "sigma": 0.2, "hidden": 8}
SHAPES = [(1, 33, {}), (1, 32, {"causal": False}), (2, (9, 14), {}), (3, 6, {"norm": "layer"})]


def build(dim: int = 2, size: int | tuple[int, ...] = 12, *, readout: str = "mean", **options: Any) -> DNArch:
    torch.manual_seed(1)
    own = ("learn", "budget", "fixed_shapes", "max_width", "max_depth")
    given = {name: options.pop(name) for name in own if name in options}
    return DNArch(CCNN(2, 3, dim=dim, size=size, readout=readout, **{**SMALL, **options}), **given)


def moved(net: DNArch, seed: int = 0) -> DNArch:
    """Return ``net`` with masks that differ between all blocks and axes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for mask, spread, shift in ((net.width, 0.5, 0.0), (net.resolution, 1.5, -0.9), (net.depth, 0.0, 0.3)):
            if mask is not None:
                mask.offset += spread * (torch.rand(mask.offset.shape, generator=generator) - 0.5) + shift
                mask.offset.clamp_(*mask.limits())
    return net


def signal(dim: int, size: int | tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, 2, *((size,) * dim if isinstance(size, int) else size), dtype=dtype)


# The two modes


@pytest.mark.parametrize(("dim", "size", "options"), SHAPES, ids=str)
@pytest.mark.parametrize("step", [1.0, 0.5, 1.5])
def test_fixed_and_changing_shapes_agree(dim: int, size: Any, options: dict[str, Any], step: float) -> None:
    changing = moved(build(dim, size, readout="dense", **options).double())
    fixed = build(dim, size, readout="dense", fixed_shapes=True, **options).double()
    fixed.load_state_dict(changing.state_dict())
    x = signal(dim, size, torch.float64)
    outputs = [net(x, step=step) for net in (changing, fixed)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-10)
    grads = [
        torch.autograd.grad(y.square().mean(), list(net.network.parameters())[:4] + masks(net), allow_unused=True)
        for net, y in zip((changing, fixed), outputs, strict=True)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(
            torch.zeros(1, dtype=torch.float64) if a is None else a,
            torch.zeros(1, dtype=torch.float64) if b is None else b,
            rtol=1e-6,
            atol=1e-9,
        )


def masks(net: DNArch) -> list[torch.Tensor]:
    return [p for m in (net.width, net.resolution, net.depth) if m is not None for p in m.parameters()]


def test_fixed_shapes_do_not_synchronise_with_the_device() -> None:
    nets = [moved(build(2, 8, fixed_shapes=fixed)) for fixed in (True, False)]
    x = signal(2, 8)
    with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without values: whoever asks for one fails
        loss = nets[0](x).square().mean() + nets[0].complexity_loss()
        nets[0].sizes.clamp_()
        assert nets[0].sizes.measure() is None
        with pytest.raises(DataDependentOutputException):
            nets[1].sizes.measure().tolist()
    assert loss.shape == ()


@pytest.mark.slow
def test_fixed_shapes_compile() -> None:
    net = moved(build(2, 8, fixed_shapes=True)).eval()
    assert_compiles(net, signal(2, 8), rtol=1e-3, atol=1e-4)


def test_shapes_change_only_after_steps_of_an_optimiser() -> None:
    net = build(1, 64)
    optimizer = torch.optim.SGD([net.width.offset], lr=1.0)
    before = list(net.sizes.kept_widths)
    net.width.offset.grad = torch.full_like(net.width.offset, -0.25)
    net(signal(1, 64))
    assert net.sizes.kept_widths == before == [(8, 8, 8)] * 4
    optimizer.step()
    assert not net.sizes.stale
    assert net.sizes.kept_widths == [(10, 10, 10)] * 4


def test_masks_are_clamped_to_their_limits() -> None:
    net = build(1, 64)
    parameters = masks(net) + [layer.mask.sigma for layer in convs(net.network)]
    for value in (-100.0, 100.0):
        for p in parameters:
            p.grad = torch.full_like(p, value)
        torch.optim.SGD(parameters, lr=1.0).step()
        at_ends = torch.tensor([[-1.0], [1.0]])
        for mask in (net.width, net.resolution, net.depth):
            low, high = mask.profile(at_ends.expand(2, mask.dim))
            if value > 0:
                torch.testing.assert_close(low, torch.full_like(low, 0.95))
            else:
                torch.testing.assert_close(high, torch.full_like(high, 0.85))
        assert all(layer.kernel().shape[-1] > 1 for layer in convs(net.network))
        assert net(signal(1, 64)).isfinite().all()


def convs(net: torch.nn.Module) -> list[ContinuousConv]:
    return [m for m in net.modules() if isinstance(m, ContinuousConv)]


# What is learned


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


# What it costs


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


@pytest.mark.parametrize("budget", [0.5, 1.0, 1.5])
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


# What becomes of it


@pytest.mark.parametrize(("dim", "size", "options"), SHAPES, ids=str)
@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_materialised_equals_masked(dim: int, size: Any, options: dict[str, Any], fixed_shapes: bool) -> None:
    net = moved(build(dim, size, readout="dense", fixed_shapes=fixed_shapes, **options)).eval()
    small = net.materialize()
    assert type(small) is CCNN
    assert not [m for m in small.modules() if isinstance(m, Mask) and list(m.parameters())]
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    x = signal(dim, size)
    torch.testing.assert_close(small(x), net(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(small(x, step=0.5), net(x, step=0.5), rtol=1e-4, atol=1e-5)
    again = CCNN(**small.arguments)
    again.load_state_dict(small.state_dict())
    torch.testing.assert_close(again.eval()(x), small(x))
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        torch.testing.assert_close(other(x), small(x))


@pytest.mark.parametrize("fixed_shapes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_graph(fixed_shapes: bool) -> None:
    trained, x = moved(build(1, 16, blocks=1)).eval(), signal(1, 16)
    net = build(1, 16, blocks=1, fixed_shapes=fixed_shapes).eval()
    net.load_state_dict(trained.state_dict())
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), trained(x))


@pytest.mark.slow
def test_materialised_with_a_band_compiles() -> None:
    assert_compiles(moved(build(2, 12)).eval().materialize(), signal(2, 12), rtol=1e-3, atol=1e-4)


def test_materialised_with_a_band_exports() -> None:
    small = moved(build(2, 12, blocks=1)).eval().materialize()
    x = signal(2, 12)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    assert_exports(small, (x,), shapes, [(torch.randn(5, 2, 12, 12),)], rtol=1e-4, atol=1e-5)


def test_no_blocks_leave_the_identity_path_alive() -> None:
    net = build(2, 12).eval()
    with torch.no_grad():
        net.depth.offset.fill_(-10.0)
    x = signal(2, 12)
    assert net.architecture().depth == 0
    wanted = net.network.readout(net.network.final_norm(F.gelu(net.network.norm(net.network.stem(x)))))
    for other in (net, net.materialize()):
        torch.testing.assert_close(other(x), wanted)
        assert other(x).std() > 0
    fixed = build(2, 12, fixed_shapes=True).eval()
    fixed.load_state_dict(net.state_dict())
    torch.testing.assert_close(fixed(x), wanted)


def test_closed_widths_leave_the_identity_path_alive() -> None:
    nets = [build(2, 12, fixed_shapes=fixed).eval() for fixed in (False, True)]
    x = signal(2, 12)
    for net in nets:
        with torch.no_grad():
            net.width.offset.fill_(-10.0)
    torch.testing.assert_close(nets[0](x), nets[1](x))


@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_masked_width_never_touches_the_identity_branch(fixed_shapes: bool) -> None:
    net = moved(build(1, 32, fixed_shapes=fixed_shapes)).eval()
    block, active = net.network.blocks[0], net.active()[0]
    with torch.no_grad():
        for p in block.linear.parameters():
            p.zero_()
    x = torch.randn(2, 16, 32)
    assert torch.equal(block(x, active=active), x)
    with torch.no_grad():
        block.linear.bias.fill_(1.0)
    written = net.sizes.changing().kept_widths[0][2]
    change = block(x, active=active) - x
    assert (change[:, :written].abs() > 0).all()
    assert torch.equal(change[:, written:], torch.zeros_like(change[:, written:]))


@pytest.mark.parametrize("n", [16, 31, 32])
@pytest.mark.parametrize("share", [0.3, 0.55, 1.0])
def test_downsampling_equals_resample(n: int, share: float) -> None:
    layer = convs(build(1, n).network)[0]
    x = torch.randn(2, 1, n, dtype=torch.float64)
    # A mask so steep that it is one up to its end: the cut alone.
    band = BandLimit((share,), (2 * share - 1 + 1e-4,), 1e6, 0.1)
    low, told = band.down(layer, x, {})
    length = low.shape[-1]
    assert length == min(n, 2 * int(share * n / 2) + 1)
    assert told["step"] == (pytest.approx(n / length),)
    torch.testing.assert_close(low, resample(x, length), rtol=0, atol=1e-9)
    torch.testing.assert_close(band.up(low, (n,), {}), resample(low, n), rtol=0, atol=1e-9)


def test_low_resolution_computes_at_low_resolution() -> None:
    net = build(2, 16, learn=("resolution",)).eval()
    with torch.no_grad():
        net.resolution.offset.view(2, 2).copy_(torch.tensor([[-0.5, 0.2], [2.0, 2.0]]))
    seen = []
    for block in net.network.blocks:
        block.linear.register_forward_hook(lambda *call: seen.append(tuple(call[1][0].shape[2:])))
    y = net(signal(2, 16))
    assert seen == [b.resolution for b in net.architecture().blocks] == [(5, 11), (16, 16)]
    assert y.shape == (2, 3)


def test_points_need_all_frequencies() -> None:
    coords = 12 * torch.rand(9, 2)
    assert build(learn=("kernel", "width", "depth"))(torch.randn(2, 2, 9), coords=coords).shape == (2, 3)
    with pytest.raises(ValueError, match=r"\bcoords must"):
        build()(torch.randn(2, 2, 9), coords=coords)


def test_unobserved_samples_are_ignored_at_low_resolution() -> None:
    net = moved(build(1, 32, norm="none", readout="dense")).eval()
    x, seen = signal(1, 32), torch.arange(32).expand(2, 32) < 20
    other = torch.where(seen.unsqueeze(1), x, 100.0)
    stem = net.network.stem
    net.network.stem = torch.nn.Conv1d(2, 16, 1)  # the identity branch sees unseen samples, the blocks must not

    class Stem(torch.nn.Module):
        def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
            return stem(x)

    net.network.stem = Stem()
    a, b = net(x, mask=seen), net(other, mask=seen)
    torch.testing.assert_close(a[..., :20], b[..., :20])


# As a module like any other


def test_bf16_autocast() -> None:
    net, x = moved(build(2, 12)).eval(), signal(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
    wanted = net(x)
    assert (y - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize("norm", ["batch", "batch-statistics", "layer", "none"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_every_norm(norm: str, prenorm: bool) -> None:
    net = moved(build(1, 24, norm=norm, prenorm=prenorm))
    x = torch.randn(4, 2, 24)
    net(x).sum().backward()  # running statistics move
    net.eval()
    torch.testing.assert_close(net.materialize()(x), net(x), rtol=1e-4, atol=1e-5)


def test_copies_follow_their_own_masks() -> None:
    net = moved(build(1, 32)).eval()
    x = signal(1, 32)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x), net(x))
        with torch.no_grad():
            other.width.offset.sub_(0.3)
        other(x)
        assert other.sizes.kept_widths[0] < net.sizes.kept_widths[0]


def test_delayed_sizes_cover_the_architecture() -> None:
    net, fixed = build(1, 32), build(1, 32, fixed_shapes=True)
    late = DelayedSizes(net)
    assert net.sizes in [size for size, _ in late.sizes]
    assert fixed.sizes not in [size for size, _ in DelayedSizes(fixed).sizes]
    with pause_step_hooks():
        with torch.no_grad():
            net.width.offset.add_(0.25)
        for _ in range(2):
            late.update()
            net(signal(1, 32))
            assert net.sizes.kept_widths == [(9, 9, 9)] * 4  # as they were, and one channel to spare
            late.copy_to_host(late.measure())
        late.update()
        assert net.sizes.kept_widths == [(11, 11, 11)] * 4
        net.width.offset.grad = torch.full_like(net.width.offset, 100.0)
        torch.optim.SGD([net.width.offset], lr=1.0).step()
        assert net.width.offset.min().item() == pytest.approx(net.width.limits()[0])  # limits hold meanwhile


def test_history(tmp_path: Path) -> None:
    net = build(1, 32)
    net.record(step=0)
    with torch.no_grad():
        net.depth.offset.add_(0.6)
    row = net.record(step=1)
    assert [r["depth"] for r in net.history] == [2, 3]
    assert row["step"] == 1
    assert row["block3.width.middle"] == 8
    assert row["block1.resolution.0"] == 32
    plot_history(net.history, tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match=r"\bhistory must"):
        plot_history([], tmp_path / "none.png")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"learn": ("kernels",)}, ValueError, "learn must"),
        ({"budget": 0}, ValueError, "budget .*got 0"),
        ({"max_width": 0.5}, ValueError, "max_width .*got 0.5"),
        ({"fixed_shapes": 1}, TypeError, "fixed_shapes must"),
        ({"fixed_shapes": True, "smooth": True}, ValueError, "fixed_shapes must"),
        ({"block": "resnet"}, TypeError, "network .*got CCNN"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"\b{message}"):
        build(**change)


def test_a_materialised_network_is_rejected() -> None:
    with pytest.raises(ValueError, match="got one that was materialized"):
        DNArch(build().materialize())


def materialised(**arguments: Any) -> CCNN:
    return moved(DNArch(CCNN(**arguments), learn=("kernel", "width", "depth"))).materialize()


class TestMaterialised(ModelContract):
    model = staticmethod(materialised)
    arguments: ClassVar[dict[str, Any]] = {"channels": 6, "blocks": 1, "sigma": 0.1, "hidden": 8}
    dims = (1,)

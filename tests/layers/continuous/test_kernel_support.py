"""The crop to a mask's support: nothing but zeros is cut, and nothing is asked of the device to know it."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, stack_module_state
from torch.nn.utils import vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kernelfield import FlexConv
from kernelfield._hooks import pause_step_hooks
from kernelfield.fields import SIREN
from kernelfield.layers.continuous import learned_size
from kernelfield.layers.continuous.kernel_support import KernelSupport, bucket
from kernelfield.layers.continuous.learned_size import DelayedSizes
from kernelfield.testing import assert_compiles

if TYPE_CHECKING:
    from collections.abc import Callable


def uncropped(layer: FlexConv, x: torch.Tensor) -> torch.Tensor:
    layer.kernel_support, support = None, layer.kernel_support
    try:
        return layer(x)
    finally:
        layer.kernel_support = support


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sigma", [0.005, 0.04, 0.2, 0.46, 1.5])
def test_crop_changes_no_output(causal: bool, sigma: float) -> None:
    layer = FlexConv(2, 3, size=64, sigma=sigma, causal=causal).double()
    x = torch.randn(2, 2, 64, dtype=torch.float64)
    torch.testing.assert_close(layer(x), uncropped(layer, x), rtol=0, atol=1e-12)
    whole = 64 if causal else 127
    assert (layer.kernel().shape[-1] < whole) == (2.146 * sigma < 0.8)  # a bucket may round the rest up


def test_shapes_are_constant_without_a_crop() -> None:
    torch.manual_seed(0)
    free = FlexConv(2, 3, size=64, sigma=0.05, crop=False)
    torch.manual_seed(0)
    cropped = FlexConv(2, 3, size=64, sigma=0.05)
    cropped.load_state_dict(free.state_dict())
    x = torch.randn(1, 2, 64)
    assert free.kernel().shape[-1] == 127 > cropped.kernel().shape[-1]
    torch.testing.assert_close(free(x), cropped(x), rtol=1e-4, atol=1e-5)


def test_a_moved_mask_is_followed() -> None:
    layer = FlexConv(2, 2, dim=2, size=16, sigma=0.05).double()
    with torch.no_grad():
        layer.mask.mean.copy_(torch.tensor([0.3, -0.5]))
        layer.mask.sigma.copy_(torch.tensor([0.1, 0.02]))
    x = torch.randn(1, 2, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(layer(x), uncropped(layer, x), rtol=0, atol=1e-12)
    rows, columns = layer.kernel().shape[2:]
    assert (rows, columns) == (2 * 10 - 1, 2 * 10 - 1)


def test_crop_follows_the_optimiser_outside_of_forward() -> None:
    layer = FlexConv(1, 1, size=64, sigma=0.1)
    optimizer = torch.optim.SGD(layer.mask.parameters(), lr=1.0)
    layer.mask.sigma.grad = torch.tensor([-0.2])
    optimizer.step()
    assert not layer.kernel_support.stale
    assert layer.kernel_support.steps == (bucket(int(2.146 * 0.3 * 64) + 1),)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_crop_follows_every_kind_of_optimiser(options: dict[str, bool]) -> None:
    layer = FlexConv(1, 1, size=64, sigma=0.1)
    optimizer = torch.optim.AdamW(layer.mask.parameters(), lr=0.2, **options)
    layer.mask.sigma.grad, layer.mask.mean.grad = torch.tensor([-1.0]), torch.tensor([0.0])
    optimizer.step()
    x = torch.randn(1, 1, 64)
    torch.testing.assert_close(layer(x), uncropped(layer, x))
    assert layer.kernel().shape[-1] > 2 * int(2.146 * 0.25 * 64)


def test_crop_follows_a_loaded_state() -> None:
    wide, narrow = FlexConv(1, 1, size=64, sigma=0.4), FlexConv(1, 1, size=64, sigma=0.02)
    narrow.load_state_dict(wide.state_dict())
    assert narrow.kernel().shape == wide.kernel().shape


def replaced(layer: FlexConv) -> None:
    layer.mask.sigma.data = torch.tensor([0.3])


def overwritten(layer: FlexConv) -> None:
    layer.mask.sigma.data.fill_(0.3)


def from_a_vector(layer: FlexConv) -> None:
    vector_to_parameters(torch.tensor([0.3]), [layer.mask.sigma])


def averaged(layer: FlexConv) -> None:
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.mask.sigma.fill_(0.57)
    for mean, new in zip(layer.parameters(), other.parameters(), strict=True):
        mean.data.mul_(0.5).add_(new.data, alpha=0.5)


@pytest.mark.parametrize("change", [replaced, overwritten, from_a_vector, averaged])
def test_crop_follows_changes_that_no_version_counts(change: Callable[[FlexConv], None]) -> None:
    layer = FlexConv(2, 2, size=64, sigma=0.03).double()
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    layer(x)
    change(layer)
    torch.testing.assert_close(layer(x), uncropped(layer, x), rtol=0, atol=1e-12)


def test_crop_follows_parameters_that_take_turns() -> None:
    layer = FlexConv(2, 2, size=64, sigma=0.03).double()
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    for sigma in (0.03, 0.3, 0.02, 0.4) * 4:  # a new tensor may have the address, and the id, of the one before
        parameters = {name: p.detach().clone() for name, p in layer.named_parameters()}
        parameters["mask.sigma"] = torch.full((1,), sigma, dtype=torch.float64)
        slope = grad(lambda p: functional_call(layer, p, (x,)).square().sum())(parameters)["mask.sigma"]
        assert layer.kernel_support.steps == KernelSupport(FlexConv(1, 1, size=64, sigma=sigma).mask, (64,)).steps
        assert slope.abs() > 0


def test_networks_with_masks_of_different_sizes_are_vmapped() -> None:
    layers = [FlexConv(2, 2, size=64, sigma=sigma).double() for sigma in (0.03, 0.3)]
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    base = copy.deepcopy(layers[0])
    y = torch.vmap(lambda *state: functional_call(base, state, (x,)))(*stack_module_state(layers))
    torch.testing.assert_close(y, torch.stack([layer(x) for layer in layers]))
    torch.testing.assert_close(base(x), layers[0](x))
    assert base.kernel_support.steps == layers[0].kernel_support.steps


@pytest.mark.parametrize("notice", ["mode", "step"])
def test_a_compiled_average_of_weights_follows_its_mask(notice: str) -> None:
    """Nothing is compared in a compiled program; masks are read when the mode is switched and after optimiser steps."""
    layer = FlexConv(2, 2, size=64, sigma=0.03).double()
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    compiled = torch.compile(average.module, backend="eager", fullgraph=True)
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    compiled(x)
    average.update_parameters(layer)
    with torch.no_grad():
        layer.mask.sigma.fill_(0.5)
    average.update_parameters(layer)
    if notice == "mode":
        average.eval()
    else:
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
    torch.testing.assert_close(compiled(x), uncropped(average.module, x), rtol=0, atol=1e-12)


@pytest.mark.slow  # by default eager training follows it, and the contracts of layers compile
def test_compiled_training_follows_the_mask() -> None:
    layer = FlexConv(2, 2, size=32, sigma=0.05, field=SIREN)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    optimizer = torch.optim.SGD(layer.mask.parameters(), lr=1.0)
    x = torch.randn(1, 2, 32)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
        layer.mask.sigma.grad = torch.tensor([-0.1])
        optimizer.step()
    assert_compiles(layer, x)


def test_a_switch_of_the_mode_reads_only_what_may_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FlexConv(1, 1, size=64, sigma=0.1)
    support, read = layer.kernel_support, []
    assert support is not None
    measure = support.measure
    monkeypatch.setattr(support, "measure", lambda: read.append(1) or measure())
    layer.eval()
    assert not read  # the values are known to be the same
    overwritten(layer)
    layer.train()
    assert len(read) == 1
    # Sizes of a few steps ago, with slack, are replaced although no mask has changed.
    exact = support.steps
    DelayedSizes(layer.parameters(), slack=0.2)
    assert support.steps > exact
    layer.eval()
    assert support.steps == exact


def test_a_diverged_mask_is_not_cropped() -> None:
    layer = FlexConv(1, 1, size=8)
    with torch.no_grad():
        layer.mask.sigma.fill_(float("nan"))
    assert layer.kernel().shape[-1] == 15


def test_buckets_are_few_and_never_too_small() -> None:
    buckets = {bucket(n) for n in range(1, 1025)}
    assert all(n <= bucket(n) < 1.25 * n + 1 for n in range(1, 1025))
    assert len(buckets) < 40


@pytest.mark.filterwarnings("ignore:a mask grew so fast")
def test_delayed_sizes_lag_two_steps_and_cover_the_support() -> None:
    layer = FlexConv(1, 1, size=64, sigma=0.1)
    x = torch.randn(1, 1, 64)
    late = DelayedSizes(layer.parameters())
    assert layer.mask is not None
    assert layer.kernel_support is not None
    with pause_step_hooks():
        used, read = [], []
        for width in (0.1, 0.101, 0.3, 0.3, 0.3):
            with torch.no_grad():
                layer.mask.sigma.fill_(width)
            late.update()
            used.append(layer.kernel_support.steps)
            read.append(KernelSupport(layer.mask, (64,)).steps)
            layer(x)  # changes nothing: hooks are paused
            assert layer.kernel_support.steps == used[-1]
            late.copy_to_host(late.measure())
    assert used[2] == used[0] < read[2]
    assert used[4] >= read[4]
    # Little growth is covered by the slack.
    assert used[1] >= read[1]
    late.catch_up()
    assert late.shapes == (layer.kernel_support.steps,) == (used[4],)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"dim": 2}, {"dim": 2, "isotropic": True}, {"threshold": 0.5}]
)
@pytest.mark.parametrize("size", [4, 8, 12])
def test_a_learned_mask_begins_with_neighbours(size: int, options: dict[str, Any]) -> None:
    """A kernel of a single point does not depend on the width of its mask, which would never grow."""
    torch.manual_seed(0)
    layer = FlexConv(1, 2, size=size, sigma=0.01, **options)
    assert min(layer.grid(None, (1.0,) * layer.dim).count) > 1
    x = torch.randn(3, 1, *(size,) * layer.dim)
    layer(x).square().sum().backward()
    assert (layer.mask.sigma.grad != 0).all()


def test_masks_that_are_not_learned_or_long_stay_as_narrow_as_given() -> None:
    assert FlexConv(1, 1, size=8, sigma=0.01, learn_sigma=False).mask.sigma.item() == pytest.approx(0.01)
    assert FlexConv(1, 1, size=28, sigma=0.0375).mask.sigma.item() == pytest.approx(0.0375)
    assert FlexConv(1, 1, dim=2, size=(1, 64), sigma=0.03).mask.sigma.tolist() == pytest.approx([0.03, 0.03])


def set_sigma(layers: list[FlexConv], sigmas: list[float]) -> None:
    """Set masks as one step of an optimiser does."""
    masks = [layer.mask.sigma for layer in layers]
    for mask, sigma in zip(masks, sigmas, strict=True):
        mask.grad = mask.detach() - sigma
    torch.optim.SGD(masks, lr=1.0).step()


def test_compiled_training_steps_share_a_size_that_rarely_changes() -> None:
    """A mask that grows step by step to the whole kernel would have sixteen sizes, each compiled for seconds."""
    layers = [FlexConv(1, 1, size=784, sigma=0.04), FlexConv(1, 1, size=784, sigma=0.02)]
    compiled, plain = set(), set()
    for sigma in torch.linspace(0.04, 0.5, 60).tolist():
        set_sigma(layers, [sigma, 0.02])
        supports = [layer.kernel_support for layer in layers]
        assert supports[0].compiled_steps == supports[1].compiled_steps
        assert all(s.compiled_steps >= s.steps for s in supports)
        compiled.add(supports[0].compiled_steps)
        plain.add(supports[0].steps)
    assert len(compiled) <= 8 < len(plain)
    assert max(compiled) == (784,)


def test_compiled_steps_follow_masks_that_shrink() -> None:
    layers = [FlexConv(1, 1, size=256, sigma=0.4), FlexConv(1, 1, size=256, sigma=0.1)]
    set_sigma(layers, [0.4, 0.1])
    assert {layer.kernel_support.compiled_steps for layer in layers} == {(256,)}
    set_sigma(layers, [0.02, 0.02])
    for layer in layers:
        assert layer.kernel_support.steps <= layer.kernel_support.compiled_steps < (40,)


def test_delayed_sizes_never_leave_compiled_steps_too_small() -> None:
    layer = FlexConv(1, 1, size=256, sigma=0.05)
    sizes = DelayedSizes(layer.parameters())
    with pause_step_hooks(), torch.no_grad():
        layer.mask.sigma.fill_(0.3)
        sizes.catch_up()
    assert layer.kernel_support.compiled_steps >= layer.kernel_support.steps > (160,)


def test_steps_of_compiled_code_alone_follow_late_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a read would wait for the step."""
    monkeypatch.setattr(learned_size, "_waits", lambda _: True)
    torch.compiler.reset()
    net = torch.nn.Sequential(FlexConv(1, 2, size=256, sigma=0.05), FlexConv(2, 1, size=256, sigma=0.02))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, backend=counter, fullgraph=True)
    supports = [layer.kernel_support for layer in net]
    sigmas = [layer.mask.sigma for layer in net]
    optimizer, x = torch.optim.SGD(sigmas, lr=1.0), torch.randn(1, 1, 256)
    read: list[Any] = []
    original = learned_size.read_sizes

    def count(sizes: Any, after_step: bool = False) -> None:
        if after_step:
            read.extend(sizes)
        original(sizes, after_step)

    monkeypatch.setattr(learned_size, "read_sizes", count)
    for step in range(30):
        compiled(x)
        # A mask that grows by less than the slack in two steps is never cut.
        for support in supports:
            assert support.compiled_steps >= KernelSupport(support.mask, support.size).steps
        for sigma, rate in zip(sigmas, (0.002, 0.001), strict=True):
            sigma.grad = torch.full_like(sigma, -rate)
        optimizer.step()
        assert not read, step
    assert supports[0].compiled_steps == supports[1].compiled_steps
    assert counter.frame_count <= 4
    wide = supports[0].compiled_steps
    exact = KernelSupport(supports[0].mask, supports[0].size).steps
    net(x)  # eager code reads now, and from then on after each step
    assert supports[0].steps == exact <= wide
    optimizer.step()
    assert len(read) == 2
    assert supports[0].steps == KernelSupport(supports[0].mask, supports[0].size).steps
    compiled(x)
    optimizer.step()
    assert len(read) == 2
    torch.compiler.reset()


def test_sizes_on_several_devices_are_copied_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[Any] = []
    monkeypatch.setattr(learned_size, "_waits", lambda _: True)
    monkeypatch.setattr(learned_size, "_follow_late", followed.append)
    first, second, third = (FlexConv(1, 1, size=8, sigma=0.2).kernel_support for _ in range(3))
    for support, device in ((first, "cuda:0"), (second, "cuda:1"), (third, "cuda:0")):
        monkeypatch.setattr(support, "tensors", lambda name=device: [mock.Mock(device=torch.device(name))])
    learned_size._after_step([first, second, third])
    assert followed == [[first, third], [second]]


@pytest.mark.parametrize("way", ["captured", "compiled"])
def test_a_mask_that_outgrows_its_late_size_is_announced_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_size, "_waits", lambda _: True)
    layer = FlexConv(1, 1, size=256, sigma=0.02)
    assert layer.mask is not None
    sigma = layer.mask.sigma
    optimizer = torch.optim.SGD([sigma], lr=1.0)
    delayed = DelayedSizes(layer.parameters()) if way == "captured" else None

    def grow(steps: int, rate: float) -> None:
        for _ in range(steps):
            sigma.grad = torch.full_like(sigma, -rate)
            with pause_step_hooks() if delayed else nullcontext():
                optimizer.step()
            if delayed:
                delayed.update()
                delayed.copy_to_host(delayed.measure())

    grow(8, 0.002)  # less than the margin
    with pytest.warns(UserWarning, match="mask grew so fast that its kernel was cut at .* samples"):
        grow(6, 0.06)
    grow(3, 0.06)  # once is enough


@pytest.mark.filterwarnings("ignore:a mask grew so fast")
def test_programs_exported_after_compiled_steps_have_whole_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has read the masks since they grew, unless the network was put in evaluation mode."""
    monkeypatch.setattr(learned_size, "_waits", lambda _: True)
    torch.compiler.reset()
    layer = FlexConv(1, 1, size=64, sigma=0.05)
    compiled, x = torch.compile(layer, backend="eager"), torch.randn(1, 1, 64)
    assert layer.mask is not None
    optimizer = torch.optim.SGD([layer.mask.sigma], lr=1.0)
    for _ in range(5):
        compiled(x)
        layer.mask.sigma.grad = torch.full_like(layer.mask.sigma, -0.05)
        optimizer.step()
    program = torch.export.export(layer, (x,)).module()
    expected = layer(x)
    torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


def test_a_compiled_network_computes_what_an_eager_one_does_while_its_masks_grow() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(FlexConv(1, 2, size=64, sigma=0.05), FlexConv(2, 1, size=64, sigma=0.08))
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, backend=counter, fullgraph=True)
    x = torch.randn(2, 1, 64)
    sizes = set()
    for sigma in (0.05, 0.06, 0.07, 0.08, 0.1, 0.12):
        set_sigma(list(net), [sigma, 0.08])
        net.zero_grad()
        compiled(x).square().sum().backward()
        found = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        torch.testing.assert_close(found, [p.grad for p in net.parameters()], rtol=1e-3, atol=1e-4)
        sizes.add(net[0].kernel_support.steps)
    torch.compiler.reset()
    assert counter.frame_count <= 4 < len(sizes)


def test_evaluations_between_steps_rarely_compile_again() -> None:
    torch.compiler.reset()
    layer = FlexConv(1, 1, size=64, sigma=0.05).eval()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    x, exact = torch.randn(1, 1, 64), set()
    for sigma in (0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22):
        set_sigma([layer], [sigma])
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
        exact.add(layer.kernel_support.steps)
    torch.compiler.reset()
    assert counter.frame_count <= 3 < len(exact)


def test_traced_predictions_of_loaded_networks_are_cropped_to_their_masks() -> None:
    layer = FlexConv(1, 1, size=64, sigma=0.1).eval()
    support = layer.kernel_support
    assert support.steps < support.compiled_steps

    def traced_points(**how: bool) -> tuple[int, ...]:
        modes = {"is_compiling": True, "is_exporting": False, **how}
        with mock.patch.multiple(
            "torch.compiler", **{name: lambda value=value: value for name, value in modes.items()}
        ):
            return layer.grid((64,), (1.0,)).count

    exact, shared = ((2 * n[0] - 1,) for n in (support.steps, support.compiled_steps))
    assert traced_points() == exact
    layer.train()
    assert traced_points() == shared
    assert traced_points(is_exporting=True) == exact
    layer.eval()
    set_sigma([layer], [0.1])
    assert traced_points() == shared

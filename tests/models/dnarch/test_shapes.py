"""Fixed and changing shapes agree; sizes follow the optimiser and stay within their limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from kernelfield.masks import SigmoidMask
from kernelfield.testing import assert_compiles
from tests.models.dnarch.nets import SHAPES, build, convs, masks, moved, signal


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


@pytest.mark.parametrize("open_blocks", [0, 1, 2])
def test_closed_blocks_are_skipped_with_their_norms(open_blocks: int) -> None:
    """Norms at the end of blocks, with statistics of a trained network."""
    nets = [build(1, 12, prenorm=False, fixed_shapes=fixed).double().eval() for fixed in (False, True)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        nets[0].depth.offset.fill_(SigmoidMask.offset_for(open_blocks / 4, nets[0].depth.temperature))
        for name, statistics in nets[0].named_buffers():
            if name.endswith(("running_mean", "running_var")):
                statistics.copy_(torch.rand(statistics.shape, generator=generator) + 0.5)
    nets[1].load_state_dict(nets[0].state_dict())
    assert nets[0].architecture().depth == open_blocks
    x = signal(1, 12, torch.float64)
    torch.testing.assert_close(nets[1](x), nets[0](x), rtol=0, atol=1e-10)
    torch.testing.assert_close(nets[0].materialize()(x), nets[0](x), rtol=0, atol=1e-10)


def test_fixed_shapes_do_not_synchronise_with_the_device() -> None:
    nets = [moved(build(2, 8, fixed_shapes=fixed)) for fixed in (True, False)]
    x = signal(2, 8)
    with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without values: whoever asks for one fails
        loss = nets[0](x).square().mean() + nets[0].complexity_loss()
        nets[0].sizes.clamp_()
        assert not nets[0].sizes.measure()
        with pytest.raises(DataDependentOutputException):
            torch.cat(nets[1].sizes.measure()).tolist()
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


def test_shapes_follow_changes_that_no_version_counts() -> None:
    net = build(1, 64)
    net.width.offset.data.add_(0.25)
    net(signal(1, 64))
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

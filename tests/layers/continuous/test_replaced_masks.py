"""Compiled calls with other masks than the layer's own, whose sizes the host cannot read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state

from kernelfield import FlexConv
from tests.layers.continuous.test_kernel_support import uncropped
from tests.models.dnarch.nets import build


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager", fullgraph=True)


def layers(training: bool) -> list[FlexConv]:
    return [FlexConv(2, 2, size=64, sigma=sigma).double().train(training) for sigma in (0.03, 0.4)]


@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_call_with_a_larger_mask_does_not_crop_it(training: bool) -> None:
    narrow, wide = layers(training)
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    own = narrow(x)

    def call(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(narrow, parameters, (x,))

    torch.testing.assert_close(compiled(call)(dict(wide.named_parameters())), wide(x))
    program = compiled(narrow)
    torch.testing.assert_close(program(x), own)
    others = {f"_orig_mod.{name}": p for name, p in wide.named_parameters()}
    torch.testing.assert_close(functional_call(program, others, (x,)), wide(x))
    torch.testing.assert_close(program(x), own)


@pytest.mark.parametrize("training", [True, False])
def test_compiled_networks_with_masks_of_different_sizes_are_vmapped(training: bool) -> None:
    both = layers(training)
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    wanted = torch.stack([layer(x) for layer in both])

    def each(*state: dict[str, Tensor]) -> Tensor:
        return torch.vmap(lambda *own: functional_call(both[0], own, (x,)))(*state)

    torch.testing.assert_close(compiled(each)(*stack_module_state(both)), wanted)


@pytest.mark.parametrize("change", [lambda p: p.detach(), lambda p: p * 1.0], ids=["leaf", "result"])
def test_a_mask_of_an_earlier_call_does_not_crop_a_compiled_one(change: Any) -> None:
    narrow, wide = layers(training=True)
    x = torch.randn(1, 2, 64, dtype=torch.float64)
    functional_call(wide, {name: change(p) for name, p in narrow.named_parameters()}, (x,))
    torch.testing.assert_close(compiled(wide)(x), uncropped(wide, x), rtol=0, atol=1e-12)


def test_a_converted_layer_still_crops_compiled_kernels() -> None:
    """A new dtype replaces the buffers of a mask."""
    layer = FlexConv(1, 1, size=64, sigma=0.03, learn_mean=False)
    mean = layer.mask.mean
    layer.double()
    assert layer.mask.mean is not mean
    assert layer.kernel_support.fits()
    assert build(1).double().sizes.fits()


def test_a_learned_architecture_refuses_other_masks_in_compiled_code() -> None:
    net = build(1).double().eval()
    x = torch.randn(2, 2, 12, dtype=torch.float64)
    torch.testing.assert_close(compiled(net)(x), net(x))
    others = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(Exception, match="fixed_shapes must"):
        compiled(lambda p: functional_call(net, p, (x,)))(others)

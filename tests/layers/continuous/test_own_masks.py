"""Masks of one's own on kernels: sampled where the mask says, copied, learned, and refused by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from kernelfield import CCNN, CKCNN, DNArch, FlexConv, FlexNet, FlexTCN, SeparableConv
from kernelfield.layers import ContinuousConv
from kernelfield.layers.continuous.kernel_sampler import sample_kernels
from kernelfield.masks import GaussianMask, Mask, SigmoidMask


class Tent(Mask):
    """A triangle of a learned half width."""

    def __init__(self, dim: int, width: float = 0.25) -> None:
        super().__init__(dim)
        self.width = torch.nn.Parameter(torch.full((dim,), width))

    def profile(self, coords: torch.Tensor) -> torch.Tensor:
        return (1 - coords.abs() / self.width).clamp(min=0)

    def roots(self) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.width * (1 - self.threshold)
        return -half, half


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [Tent, SigmoidMask, GaussianMask])
def test_kernels_are_sampled_on_the_support(kind: type[Mask], causal: bool) -> None:
    mask = Tent(1) if kind is Tent else kind(1, 0.2, domain=(0.0 if causal else -1.0, 1.0))
    layer = FlexConv(2, 3, size=64, mask=mask, causal=causal)
    full = FlexConv(2, 3, size=64, mask=mask, causal=causal, crop=False)
    full.load_state_dict(layer.state_dict())
    x = torch.randn(1, 2, 64)
    torch.testing.assert_close(layer(x), full(x), rtol=1e-4, atol=1e-5)
    if kind is not SigmoidMask or causal:  # a sigmoid is open on its low side
        assert layer.kernel().shape[-1] < full.kernel().shape[-1]


def test_a_layer_copies_its_mask_and_follows_the_copy() -> None:
    mask = Tent(1)
    layer = FlexConv(1, 1, size=64, mask=mask)
    assert layer.mask is not mask
    assert isinstance(layer.mask, Tent)
    before = layer.kernel_support.steps
    layer.mask.width.grad = torch.tensor([-0.3])
    torch.optim.SGD(layer.mask.parameters(), lr=1.0).step()
    assert layer.kernel_support.steps > before
    assert mask.width.item() == 0.25


@pytest.mark.parametrize("block", ["ccnn", "resnet"])
def test_each_layer_of_a_network_has_its_own_mask(block: str) -> None:
    net = CCNN(1, 2, dim=2, size=8, channels=3, blocks=2, block=block, mask=Tent(2, 0.5))
    masks = [m.mask for m in net.modules() if isinstance(m, ContinuousConv)]
    assert all(isinstance(mask, Tent) for mask in masks)
    assert len({id(mask) for mask in masks}) == len(masks)
    net(torch.randn(2, 1, 8, 8)).sum().backward()
    assert all(mask.width.grad.abs().sum() > 0 for mask in masks[:1])
    assert isinstance(CKCNN(1, 2, size=8, channels=3, mask=Tent(1)).blocks[0].conv1.mask, Tent)


@pytest.mark.parametrize("mask", [Tent, partial(Tent, width=0.5), lambda dim: Tent(dim, 0.5)])
@pytest.mark.parametrize(
    "make",
    [
        partial(FlexConv, 1, 2, dim=2, size=8),
        partial(SeparableConv, 1, 2, dim=2, size=8, sigma=None),
        partial(CCNN, 1, 2, dim=2, size=8, channels=3, blocks=1),
        partial(FlexNet, 1, 2, size=8, channels=3, widths=(1,)),
        partial(CKCNN, 1, 2, dim=2, size=8, channels=3, blocks=1),
        partial(FlexTCN, 1, 2, dim=2, size=8, channels=3, blocks=1),
    ],
    ids=lambda make: make.func.__name__,
)
def test_classes_and_functions_make_masks(make: partial[torch.nn.Module], mask: Any) -> None:
    net = make(mask=mask)
    masks = [m.mask for m in net.modules() if isinstance(m, ContinuousConv)]
    assert masks
    assert all(isinstance(found, Tent) and found.dim == 2 for found in masks)
    assert len({id(found) for found in masks}) == len(masks)
    net(torch.randn(2, 1, 8, 8)).sum().backward()


@pytest.mark.parametrize("mask", [Tent(1, 0.5), partial(Tent, width=0.5)])
def test_learned_architectures_keep_the_mask(mask: Any) -> None:
    net = DNArch(CCNN(1, 2, size=16, channels=4, blocks=1, mask=mask, sigma=None)).eval()
    x = torch.randn(2, 1, 16)
    small = net.materialize()
    torch.testing.assert_close(small(x), net(x), rtol=1e-4, atol=1e-5)
    assert not any(p.requires_grad for m in small.modules() if isinstance(m, Tent) for p in m.parameters())


def test_other_objects_and_masks_of_other_dimensions_are_refused() -> None:
    with pytest.raises(TypeError, match="mask"):
        FlexConv(1, 1, size=8, mask=0.3)
    with pytest.raises(TypeError, match="mask"):
        FlexConv(1, 1, size=8, mask=lambda dim: dim)
    with pytest.raises(TypeError, match=r"\bmask must be .* a callable that makes one from dim, .* fails for dim=1"):
        FlexConv(1, 1, size=8, mask=lambda coords: torch.exp(-coords.square().sum(-1)))
    with pytest.raises(ValueError, match="mask"):
        SeparableConv(1, 1, dim=2, size=8, mask=Tent(1))


def test_a_gaussian_mask_with_another_profile_keeps_it_where_kernels_are_sampled_together() -> None:
    class Flat(GaussianMask):
        def profile(self, coords: torch.Tensor) -> torch.Tensor:
            return super().profile(coords) ** 0.5

    masks = [Flat(1, 0.2), Flat(1, 0.4)]
    coords = torch.linspace(-1, 1, 9).unsqueeze(1)
    torch.testing.assert_close(Flat.together(masks, coords), torch.stack([mask(coords) for mask in masks]))
    layers = [FlexConv(2, 2, size=8, mask=Flat) for _ in range(2)]
    for layer, kernel in zip(layers, sample_kernels(layers, torch.randn(1, 2, 8)), strict=True):
        coords = layer.grid(None, (1.0,)).coords()
        window = layer.mask.profile(coords).squeeze(-1)
        expected = layer.field(coords).movedim(-1, 0) * torch.where(window < 0.1, 0.0, window)
        assert kernel is not None
        torch.testing.assert_close(kernel.flatten(0, 1), expected, rtol=1e-4, atol=1e-6)

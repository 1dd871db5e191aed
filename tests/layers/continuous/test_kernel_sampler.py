"""Kernels sampled together are the kernels sampled one by one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield import CCNN, CKCNN, CKConv, FlexConv, FlexNet
from kernelfield.fields import MLP, SIREN, BSpline, FourierFilter, GaborFilter, MAGNet, RandomFourier
from kernelfield.grids import KernelGrid
from kernelfield.layers.continuous import kernel_sampler
from kernelfield.layers.continuous.continuous_conv import ContinuousConv
from kernelfield.layers.continuous.kernel_sampler import sample_kernels, sample_requests
from tests.pairwise import pairwise

if TYPE_CHECKING:
    from collections.abc import Callable

FIELDS: list[Callable[..., Any]] = [
    MLP,
    SIREN,
    partial(SIREN, weight_norm=True),
    partial(MLP, norm=True),
    RandomFourier,
    FourierFilter,
    GaborFilter,
    MAGNet,
    BSpline,
]


@pairwise(field=FIELDS, grid=[(1, 1.0), (1, 0.5), (2, (0.5, 2.0))], layer=[CKConv, FlexConv])
def test_values_and_gradients(field: Callable[..., Any], grid: tuple[int, Any], layer: type[CKConv]) -> None:
    dim, step = grid
    layers = [layer(2, 3, dim=dim, size=8, field=field, smooth=True).double() for _ in range(3)]
    x = torch.randn(1, 2, *(7,) * dim, dtype=torch.float64)
    parameters = [p for m in layers for name, p in m.named_parameters() if name != "bias"]
    weights = torch.randn(1, 3, *x.shape[2:], dtype=torch.float64)

    def run(kernels: list[torch.Tensor | None]) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
        outputs = [m(x, step=step, kernel=k) for m, k in zip(layers, kernels, strict=True)]
        return outputs, torch.autograd.grad(sum((y * weights).sum() for y in outputs), parameters)

    torch.testing.assert_close(run(sample_kernels(layers, x, step=step)), run([None] * 3), rtol=1e-9, atol=1e-9)


def test_published_kernel_networks_are_sampled_together() -> None:
    for field in (SIREN, partial(SIREN, weight_norm=True), MAGNet, GaborFilter, FourierFilter):
        layers = [CKConv(2, 2, size=8, field=field) for _ in range(2)]
        assert all(k is not None for k in sample_kernels(layers, torch.randn(1, 2, 8)))


@pytest.mark.parametrize("field", [SIREN, partial(SIREN, weight_norm=True), MAGNet, FourierFilter])
def test_samples_only_the_requested_channels(field: Callable[..., Any]) -> None:
    layers = [CKConv(5, 5, size=8, field=field, depthwise=True) for _ in range(3)]
    whole = sample_requests([(layer, (8,), (1.0,), None) for layer in layers])
    part = sample_requests([(layer, (8,), (1.0,), n) for layer, n in zip(layers, (2, 3, 1), strict=True)])
    for all_of_it, first in zip(whole, part, strict=True):
        assert first.shape[0] == 3  # of layers that are sampled together, the most
        torch.testing.assert_close(first, all_of_it[:3])
    mixed = sample_requests([(layer, (8,), (1.0,), n) for layer, n in zip(layers, (2, None, 1), strict=True)])
    assert mixed[0].shape[0] == 5


def test_different_layers_sample_separately() -> None:
    layers = [
        CKConv(2, 2, size=8),
        CKConv(2, 2, size=9),
        CKConv(2, 3, size=8),
        CKConv(2, 2, size=8, causal=True),
        CKConv(2, 2, size=8, field=partial(SIREN, omega_0=3.0)),
        FlexConv(2, 2, size=8),
        FlexConv(2, 2, size=8, sigma=0.3),  # another crop
    ]
    assert sample_kernels(layers, torch.randn(1, 2, 8)) == [None] * len(layers)


@pytest.mark.parametrize("part", ["field", "field.out", "mask"])
def test_hooks_on_fields_and_masks_are_called(part: str) -> None:
    """Kernels that are sampled together would call neither the fields nor the masks."""
    net = CCNN(1, 2, size=16, channels=4, blocks=3, sigma=0.2).eval()
    x = torch.randn(1, 1, 16)
    before, seen = net(x), []
    for block in net.blocks:
        block.conv.depthwise.get_submodule(part).register_forward_hook(lambda *call: seen.append(call[2].shape))
    torch.testing.assert_close(net(x), before)
    assert len(seen) == 3
    net.blocks[1].conv.depthwise.get_submodule(part).register_forward_hook(lambda *call: 0 * call[2])
    assert net.blocks[1].conv.depthwise.kernel().abs().max() == 0
    assert not torch.equal(net(x), before)


def test_points_and_frozen_layers_sample_nothing() -> None:
    layers = [CKConv(2, 2, size=8).eval() for _ in range(2)]
    x = torch.randn(1, 2, 8)
    assert sample_kernels(layers, x, coords=torch.rand(8, 1)) == [None, None]
    for layer in layers:
        layer.freeze()
    assert sample_kernels(layers, x) == [None, None]


@pytest.mark.parametrize("model", [CKCNN, CCNN, FlexNet])
def test_networks_are_the_same_either_way(model: type[torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    net = model(1, 2, size=12, channels=4).double().eval()
    x = torch.randn(2, 1, *(12,) * (2 if model is FlexNet else 1), dtype=torch.float64)
    calls = []
    sample = kernel_sampler._sample_batch
    monkeypatch.setattr(kernel_sampler, "_sample_batch", lambda *args: calls.append(args) or sample(*args))
    with_batches = net(x)
    assert calls  # the kernels did come from batches
    monkeypatch.setattr(ContinuousConv, "batch_key", lambda *_: None)
    calls.clear()
    torch.testing.assert_close(with_batches, net(x), rtol=1e-9, atol=1e-9)
    assert not calls  # and each from its own layer


@pytest.mark.parametrize(("dim", "causal", "step"), [(1, False, 1.0), (1, True, 0.5), (2, False, 1.0), (3, False, 1.0)])
@pytest.mark.parametrize("shared", [False, True], ids=["exact grids", "one grid"])
def test_kernels_of_different_sizes_come_from_one_grid(
    dim: int, causal: bool, step: float, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where points that are sampled and not used cost less than the launches of another batch."""
    monkeypatch.setattr(kernel_sampler, "EXTRA", {"cpu": 1} if shared else {})
    layers: list[Any] = [
        FlexConv(2, 2, dim=dim, size=9, causal=causal, sigma=sigma).double() for sigma in (0.1, 0.3, 0.1, 0.2)
    ]
    x = torch.randn(1, 2, *(9,) * dim, dtype=torch.float64)
    batches = []
    sample = kernel_sampler.sample_fields
    monkeypatch.setattr(kernel_sampler, "sample_fields", lambda *args: batches.append(args[0]) or sample(*args))
    kernels = sample_kernels(layers, x, step=step)
    assert [len(fields) for fields in batches] == ([4] if shared else [2])
    parameters = [p for layer in layers for name, p in layer.named_parameters() if name != "bias"]
    alone = [layer.sample((step,) * dim, x.shape[2:]) for layer in layers]
    assert len({kernel.shape for kernel in alone}) == 3
    found = [own if kernel is None else kernel for kernel, own in zip(kernels, alone, strict=True)]
    for kernel, own in zip(found, alone, strict=True):
        torch.testing.assert_close(kernel, own, rtol=1e-12, atol=1e-12)
    weights = [torch.randn_like(kernel) for kernel in alone]
    got, wanted = (
        torch.autograd.grad(
            sum((k * w).sum() for k, w in zip(each, weights, strict=True)), parameters, retain_graph=True
        )
        for each in (found, alone)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def test_grids_are_joined_up_to_a_number_of_points() -> None:
    grids = tuple(KernelGrid.of((64,), (1.0,), limit=(n,)) for n in (3, 60, 5, 58))
    assert [members for _, members in kernel_sampler._unions(grids, 4)] == [[1, 3], [2, 0]]
    assert [members for _, members in kernel_sampler._unions(grids, 10_000)] == [[1, 3, 2, 0]]
    assert [members for _, members in kernel_sampler._unions(grids, 0)] == [[1], [3], [2], [0]]

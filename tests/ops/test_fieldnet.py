"""Kernel networks on grids in one launch: against float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelfield import CKConv, FlexConv
from kernelfield.fields import MLP, SIREN, Field, FourierFilter, GaborFilter, MAGNet, Table
from kernelfield.grids import KernelGrid, kernel_grid
from kernelfield.layers import ActiveSlice, kernel_l2
from kernelfield.layers.continuous.kernel_sampler import sample_kernels, sampled_once
from kernelfield.masks import GaussianMask, SteerableMask
from kernelfield.ops import use_fast_paths
from kernelfield.ops.fieldnet import _architectures, sample_fields
from tests.ops.interpreted import DEVICE, interpreter, poisoned, windows
from tests.ops.interpreted import features_launch as launch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["interpreter"]

FIELDS: dict[str, Callable[..., Field]] = {
    "MAGNet": MAGNet,
    "wide MAGNet": partial(MAGNet, hidden=64),
    "narrow MAGNet": partial(MAGNet, hidden=5, layers=1),
    "Gabor": partial(GaborFilter, hidden=7, layers=2),
    "Fourier": partial(FourierFilter, hidden=20),
    "SIREN": SIREN,
    "deep SIREN": partial(SIREN, hidden=33, layers=4, weight_norm=True),
    "shallow SIREN": partial(SIREN, layers=2, omega_0=3.0),
    "MLP of sines": partial(MLP, activation="sine", hidden=9),
}


@st.composite
def grids(draw: st.DrawFn) -> KernelGrid:
    dim = draw(st.integers(1, 3))
    size = tuple(draw(st.integers(1, (50, 6, 2)[dim - 1])) for _ in range(dim))
    step = tuple(draw(st.sampled_from([0.5 if dim > 1 else 1 / 3, 1.0, 1.7])) for _ in range(dim))
    return KernelGrid.of(size, step, causal=dim == 1 and draw(st.booleans()))


def assert_right(make: Callable[..., Field], grid: KernelGrid, channels: int | None = None) -> None:
    """Compare values and gradients of two fields with float64, allowing what float32 operations would be off.

    What is allocated for them is poisoned.
    """
    fields: list[Any] = [make(len(grid.count), 3).to(DEVICE) for _ in range(2)]
    exact = [copy.deepcopy(f).double() for f in fields]
    coords = grid.coords(dtype=torch.float64, device=DEVICE).flatten(0, -2)
    weights = torch.randn(2, channels or 3, grid.points, device=DEVICE)

    def all_of(values: torch.Tensor, fields: list[Any]) -> list[torch.Tensor]:
        parameters = [p for f in fields for p in f.parameters()]
        return [values, *torch.autograd.grad(values, parameters, weights.to(values.dtype))]

    with poisoned():
        values = sample_fields(fields, grid, channels)
        assert values.shape == weights.shape
        got = all_of(values, fields)
    plain = all_of(torch.stack([f(coords.float(), channels).mT for f in fields]), fields)
    truth = all_of(torch.stack([f(coords, channels).mT for f in exact]), exact)
    scale = max(t.abs().max() for t in truth)
    for a, b, c in zip(got, plain, truth, strict=True):
        allowed = 4 * (b - c).abs().max() + 2e-5 * c.abs().max() + 1e-7 * scale
        assert (a - c).abs().max() <= allowed


@settings(max_examples=2)
@pytest.mark.parametrize("name", FIELDS)
@given(grid=grids())
def test_any_grid_equals_float64(name: str, grid: KernelGrid) -> None:
    assert_right(FIELDS[name], grid)


@pytest.mark.parametrize("name", ["narrow MAGNet", "SIREN", pytest.param("MAGNet", marks=pytest.mark.slow)])
def test_programs_of_several_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_ROWS", 2)
    assert_right(FIELDS[name], KernelGrid.of((150,), (1.0,)))
    assert_right(FIELDS[name], KernelGrid.of((200,), (1.0,), causal=True), channels=2)


@pytest.mark.parametrize("name", ["MAGNet", "SIREN"])
def test_second_derivatives_agree_with_the_torch_path(name: str) -> None:
    field, grid = FIELDS[name](1, 3).to(DEVICE), KernelGrid.of((9,), (1.0,))
    parameters = list(field.parameters())

    def second(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grads = torch.autograd.grad(values.square().sum(), parameters, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), parameters)

    got = second(sample_fields([field], grid)[0])
    expected = second(field(grid.coords(device=DEVICE).flatten(0, -2)).mT)
    for a, b in zip(got, expected, strict=True):
        assert (a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-6


@given(grid=grids())
def test_grids_agree_with_coordinates(grid: KernelGrid) -> None:
    causal = grid.first[0] == 0 and grid.count[0] > 1
    assume(causal or grid.first[0] < 0)
    dim = len(grid.count)
    assert torch.equal(grid.coords(), kernel_grid(grid.size, grid.step, dim=dim, causal=causal and dim == 1))


@pytest.mark.parametrize("layer", [CKConv, FlexConv])
def test_layers_agree_with_the_torch_path(layer: type[CKConv]) -> None:
    layers = [layer(3, 3, dim=2, size=6, depthwise=True).to(DEVICE) for _ in range(2)]
    x = torch.randn(2, 3, 5, 6, device=DEVICE)
    parameters = [p for m in layers for name, p in m.named_parameters() if name != "bias"]

    def results(fused: bool) -> list[torch.Tensor]:
        with use_fast_paths(fused):
            kernels = [*sample_kernels(layers, x), layers[0].kernel(0.5)]
            outputs = [layers[1](x[:, :2], active=ActiveSlice((2,))), *(k for k in kernels if k is not None)]
            total = sum(y.square().sum() for y in outputs)
            return [*outputs, *torch.autograd.grad(total, parameters)]

    with mock.patch.object(launch, "fused_features", wraps=launch.fused_features) as fused:
        got = results(True)
        assert fused.call_count == 3
    for a, b in zip(got, results(False), strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-5


def gaussians(dim: int, **options: Any) -> list[Any]:
    """Return masks of which one is much smaller than the grid; a threshold of 0.1 is exceeded at no point exactly."""
    return [GaussianMask(dim, sigma, mean=0.07, learn_mean=True, **options).to(DEVICE) for sigma in (0.11, 0.43)]


@settings(max_examples=3)
@pytest.mark.parametrize("isotropic", [False, True])
@given(grid=grids())
def test_windows_on_any_grid_equal_float64(isotropic: bool, grid: KernelGrid) -> None:
    dim = len(grid.count)
    masks, fields = gaussians(dim, isotropic=isotropic), [MAGNet(dim, 9).to(DEVICE) for _ in range(2)]
    parameters = [p for module in (*masks, *fields) for p in module.parameters()]
    exact = [copy.deepcopy(module).double() for module in (*masks, *fields)]
    coords = grid.coords(dtype=torch.float64, device=DEVICE).flatten(0, -2)
    weights = torch.randn(2, 9, grid.points, device=DEVICE)
    with poisoned(), mock.patch.object(windows, "multiply_gaussians", wraps=windows.multiply_gaussians) as fused:
        values = sample_fields(fields, grid, masks=masks)
        got = [values, *torch.autograd.grad(values, parameters, weights)]
    assert fused.call_count == 1
    truth = torch.stack([(f(coords) * m(coords).unsqueeze(-1)).mT for m, f in zip(exact[:2], exact[2:], strict=True)])
    wanted = [truth, *torch.autograd.grad(truth, [p for m in exact for p in m.parameters()], weights.double())]
    scale = max(t.abs().max() for t in wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 2e-6 * scale


def test_second_derivatives_of_windows_agree_with_the_torch_path() -> None:
    masks, fields, grid = gaussians(1), [SIREN(1, 3).to(DEVICE) for _ in range(2)], KernelGrid.of((9,), (1.0,))
    parameters = [p for module in (*masks, *fields) for p in module.parameters()]

    def second(fast: bool) -> tuple[torch.Tensor, ...]:
        with use_fast_paths(fast):
            values = sample_fields(fields, grid, masks=masks)
            grads = torch.autograd.grad(values.square().sum(), parameters, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in grads), parameters)

    for a, b in zip(second(True), second(False), strict=True):
        assert (a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-6


def test_gradients_of_fixed_windows_are_not_computed() -> None:
    masks, field, grid = (
        [GaussianMask(1, 0.2, learn_sigma=False).to(DEVICE)],
        SIREN(1, 3).to(DEVICE),
        KernelGrid.of((9,), (1.0,)),
    )
    values = sample_fields([field], grid, masks=masks)
    values.sum().backward()
    with use_fast_paths(False):
        torch.testing.assert_close(values, sample_fields([field], grid, masks=masks), rtol=1e-4, atol=1e-5)


def test_other_masks_take_the_torch_path() -> None:
    class Own(GaussianMask):
        def profile(self, coords: torch.Tensor) -> torch.Tensor:
            return super().profile(coords) ** 2

    calls: list[Any] = []
    hooked = GaussianMask(2, 0.2)
    hooked.register_forward_hook(lambda *args: calls.append(args))
    mixed = [GaussianMask(2, 0.2), GaussianMask(2, 0.2, threshold=0.3)]
    grid = KernelGrid.of((4, 4), (1.0, 1.0))
    coords = grid.coords(device=DEVICE).flatten(0, -2)
    for masks in ([Own(2, 0.2)], [SteerableMask(2, 0.2, angle=0.3)], [hooked], mixed, [GaussianMask(2, 0.2).half()]):
        fields: Any = [SIREN(2, 3).to(DEVICE) for _ in masks]
        for mask in masks:
            mask.to(DEVICE)
        with mock.patch.object(windows, "multiply_gaussians") as fused:
            values = sample_fields(fields, grid, masks=masks)
        assert not fused.called
        plain = torch.stack([(f(coords) * m(coords).unsqueeze(-1)).mT for f, m in zip(fields, masks, strict=True)])
        torch.testing.assert_close(values, plain, rtol=1e-3, atol=1e-5, check_dtype=False)
    assert len(calls) == 2


def test_a_mask_that_has_diverged_shows_it() -> None:
    mask, field, grid = GaussianMask(1, 0.2).to(DEVICE), SIREN(1, 3).to(DEVICE), KernelGrid.of((9,), (1.0,))
    with torch.no_grad():
        mask.sigma.fill_(float("nan"))
    assert sample_fields([field], grid, masks=[mask]).isnan().all()


def test_unsupported_fields_take_the_torch_path() -> None:
    grid = KernelGrid.of((4,), (1.0,))

    class Other(MAGNet):
        def envelope(self, coords: torch.Tensor, *shape: torch.Tensor) -> torch.Tensor:
            return 2 * super().envelope(coords, *shape)

    others = [MLP(1, 2), MLP(1, 2, activation="sine", norm=True), MAGNet(1, 2, hidden=65), Other(1, 2)]
    for field in (*others, Table(1, 2, size=3), MAGNet(1, 2).double()):
        field.to(DEVICE)
        dtype = next(field.parameters()).dtype
        with mock.patch.object(launch, "fused_features") as fused:
            values = sample_fields([field], grid)
        assert not fused.called
        torch.testing.assert_close(values[0].mT, field(grid.coords(dtype=dtype, device=DEVICE).flatten(0, -2)))


def test_kernels_of_a_step_are_sampled_once() -> None:
    layers = torch.nn.ModuleList([CKConv(2, 2, size=8).to(DEVICE), CKConv(2, 2, size=9).to(DEVICE)])
    x = torch.randn(1, 2, 8, device=DEVICE)
    with mock.patch.object(launch, "fused_features", wraps=launch.fused_features) as fused:
        with sampled_once():
            first = layers[0].kernel()
            assert layers[0].kernel() is first
            layers[0](x)
            inside = kernel_l2(layers)
            with torch.no_grad():
                assert layers[0].kernel() is not first
        assert fused.call_count == 3
        assert layers[0].kernel() is not first
    torch.testing.assert_close(inside, kernel_l2(layers))


def test_grids_beyond_32_bits_take_the_torch_path() -> None:
    """The kernels count through the values of all layers of a network in 32 bits."""
    field = MAGNet(1, 1, hidden=64).to(DEVICE)
    fits, beyond = (KernelGrid.of((points,), (1.0,), causal=True) for points in ((1 << 23) - 1, 1 << 23))
    like = torch.zeros(1, device=DEVICE)
    assert _architectures([field], fits, like) is not None
    assert _architectures([field], beyond, like) is None

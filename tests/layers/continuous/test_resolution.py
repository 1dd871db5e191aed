"""The same weights at other resolutions, on missing and on irregular samples."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from kernelfield import CKConv, FlexConv, SeparableConv
from kernelfield.fields import SIREN, Field, MAGNet
from kernelfield.layers.continuous.smoothing import smooth_kernel
from kernelfield.testing import assert_exports, assert_resolution_consistent

STEPS = (0.5, 2.0, 0.37)


def packet(positions: torch.Tensor, slower: float = 1.0) -> torch.Tensor:
    """Three band-limited channels: slow waves under a Gaussian, zero at both ends of 128 steps."""
    t = positions[..., 0] - 64
    envelope = torch.exp(-0.5 * (t / 12).square())
    waves = [torch.cos(2 * torch.pi * t / (slower * period)) for period in (16, 23, 40)]
    return torch.stack([envelope * wave for wave in waves]).unsqueeze(0)


def worst(layer: nn.Module, steps: tuple[float, ...] = STEPS) -> float:
    """Return the least relative bound within which ``layer`` agrees across ``steps``, to a factor of 1.3."""
    bound = 1e-7
    while not agrees(layer, steps, bound):
        bound *= 1.3
    return bound


def agrees(layer: nn.Module, steps: tuple[float, ...], bound: float) -> bool:
    try:
        assert_resolution_consistent(layer, packet, shape=[128], steps=steps, rtol=bound)
    except AssertionError:
        return False
    return True


@pytest.fixture(autouse=True)
def float64() -> None:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("causal", [True, False])
def test_smooth_kernels_agree_closely(causal: bool) -> None:
    slow = partial(MAGNet, omega_0=0.2)
    masked = FlexConv(3, 2, size=128, field=slow, sigma=0.1, causal=causal, threshold=1e-4)
    # A causal kernel begins with a jump, at which sums converge to integrals in the second order of the step only.
    assert_resolution_consistent(masked, packet, shape=[128], steps=STEPS, rtol=0.03 if causal else 1e-4)


def test_the_bound_shrinks_with_the_frequencies_of_the_kernel() -> None:
    def error(omega_0: float) -> float:
        torch.manual_seed(0)
        field = partial(MAGNet, omega_0=omega_0)
        return worst(FlexConv(3, 2, size=128, field=field, sigma=0.1, threshold=1e-4), steps=(0.5, 2.0))

    errors = [error(omega_0) for omega_0 in (20.0, 2.0, 0.2)]
    assert errors[0] > 3 * errors[1]
    assert errors[1] > 100 * errors[2]


def test_the_edge_of_a_mask_costs_a_few_percent() -> None:
    """At the usual threshold of 0.1 the kernel jumps at the edge of its support: a bound of a few percent."""
    layer = FlexConv(3, 2, size=128, field=partial(MAGNet, omega_0=0.2), sigma=0.1)
    assert_resolution_consistent(layer, packet, shape=[128], steps=STEPS, rtol=0.05)


def test_measure_is_accounted_for() -> None:
    layer = CKConv(3, 2, size=128, field=partial(SIREN, omega_0=1.0))
    assert_resolution_consistent(layer, packet, shape=[128], steps=STEPS, rtol=0.02)
    with pytest.raises(AssertionError, match="disagrees"):
        assert_resolution_consistent(
            lambda x, step: layer(x, step=step) / step, packet, shape=[128], steps=STEPS, rtol=0.2
        )


@pytest.mark.parametrize("causal", [False, True])
def test_smooth_kernels_export_with_dynamic_length(causal: bool) -> None:
    class Fine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = CKConv(2, 3, size=32, causal=causal, smooth=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x, step=0.4)

    shapes = {"x": {2: torch.export.Dim("length", min=3)}}
    others = [(torch.randn(2, 2, n),) for n in (3, 17, 300)]
    assert_exports(Fine().eval(), (torch.randn(2, 2, 40),), shapes, others)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_no_output_of_a_smooth_kernel(causal: bool) -> None:
    layer = CKConv(1, 2, size=20, causal=causal, smooth=True)
    for length in (1, 2, 15):
        x = torch.randn(2, 1, length)
        padded = layer(nn.functional.pad(x, (0, 60)), step=0.4)[..., :length]
        torch.testing.assert_close(layer(x, step=0.4), padded)
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x, step=0.4), padded)
    torch.testing.assert_close(layer.freeze(0.4)(x, step=0.4), padded)


def test_a_crop_changes_no_output_of_a_smooth_kernel() -> None:
    cropped, whole = (FlexConv(1, 2, dim=2, size=(20, 12), smooth=True, crop=crop, sigma=0.2) for crop in (True, False))
    whole.load_state_dict(cropped.state_dict())
    x = torch.randn(1, 1, 50, 12)
    for steps in ((0.4, 1.0), (0.5, 0.6)):
        torch.testing.assert_close(cropped(x, step=steps), whole(x, step=steps))


def test_smooth_kernels_agree_in_2d() -> None:
    def bump(positions: torch.Tensor) -> torch.Tensor:
        centred = (positions - 12) / 3
        return torch.exp(-0.5 * centred.square().sum(-1)).expand(1, 3, *positions.shape[:-1])

    layer = SeparableConv(3, 2, dim=2, size=24, field=partial(MAGNet, omega_0=0.2), sigma=0.15, threshold=1e-3)
    assert_resolution_consistent(layer, bump, shape=[24, 24], steps=[(0.5, 2.0), 0.4], rtol=0.02)


def test_subsampling_meets_the_same_kernel_values() -> None:
    layer = CKConv(1, 1, size=182, causal=True)
    whole = layer.kernel()
    for n in (2, 3, 4, 8):
        coarse = layer.kernel(step=n) / n
        torch.testing.assert_close(coarse[..., 1:], whole[..., ::n][..., 1:], rtol=0, atol=1e-12)
        # The first point's cell reaches from half a training step in the future: (1 + n)/2 of them, not n.
        torch.testing.assert_close(coarse[..., 0], whole[..., 0] * (1 + n) / (2 * n), rtol=0, atol=1e-12)


def test_smoothing_removes_what_training_never_saw() -> None:
    torch.manual_seed(0)
    fast = partial(SIREN, omega_0=400.0)
    plain, smooth = (CKConv(3, 2, size=128, field=fast, smooth=s) for s in (False, True))
    smooth.load_state_dict(plain.state_dict())
    assert torch.equal(plain.kernel(), smooth.kernel())  # at the training step nothing is blurred
    spectrum, smoothed = (torch.fft.rfft(m.kernel(0.25)).abs().square().sum((0, 1)) for m in (plain, smooth))
    nyquist = len(spectrum) // 4
    assert smoothed[2 * nyquist :].sum() < 0.05 * spectrum[2 * nyquist :].sum()


def test_smoothing_blurs_with_a_gaussian_of_half_a_training_step() -> None:
    peak = torch.zeros(1, 1, 41)
    peak[..., 20] = 1.0
    for step, reach in ((0.5, 2), (0.1, 10)):
        blurred = smooth_kernel(peak, (step,)).flatten()
        offsets = step * (torch.arange(41.0) - 20)
        wanted = torch.exp(-2 * offsets.square()) * (offsets.abs() <= reach * step + 1e-6)
        torch.testing.assert_close(blurred, wanted / wanted.sum())


@pytest.mark.parametrize("at_points", [False, True])
def test_one_sample_per_step_is_the_density_of_a_grid(at_points: bool) -> None:
    layer = CKConv(3, 2, size=16, field=partial(SIREN, omega_0=2.0))
    x = torch.randn(2, 3, 20)
    given = {"coords": 0.5 * torch.arange(20.0).view(-1, 1)} if at_points else {}
    plain = layer(x, step=0.5, **given)
    torch.testing.assert_close(layer(x, step=0.5, density=torch.full((2, 20), 2.0), **given), plain)
    twice = layer(x, step=0.5, density=torch.full((2, 20), 4.0), add_bias=False, **given)
    torch.testing.assert_close(twice, layer(x, step=0.5, add_bias=False, **given) / 2)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_density_corrects_for_dropped_samples(share: float) -> None:
    corrected, plain = (dropped_error(share, density) for density in ("estimate", None))
    assert corrected < plain
    assert corrected < share


def test_more_dropped_samples_cost_more_but_not_suddenly() -> None:
    errors = [dropped_error(share, "estimate") for share in (0.1, 0.3, 0.5, 0.7)]
    assert errors == sorted(errors)
    assert errors[0] < 0.02
    assert errors[-1] < 0.6


def dropped_error(share: float, density: str | None) -> float:
    """Return the relative error of a layer's output at the samples left when ``share`` of them are dropped."""
    layer = CKConv(3, 2, size=128, field=partial(SIREN, omega_0=2.0), causal=True)
    positions = torch.arange(128.0).view(-1, 1)
    x = packet(positions, slower=3.0)
    wanted = layer(x)
    total = 0.0
    for seed in range(5):
        kept = torch.rand(128, generator=torch.Generator().manual_seed(seed)) >= share
        y = layer(x[..., kept], coords=positions[kept], density=density)
        total += ((y - wanted[..., kept]).norm() / wanted[..., kept].norm()).item()
    return total / 5


class Exponential(Field):
    """The kernel of a linear recurrent unit, W^τ U, at τ steps in the past (chapter 2, appendix 1.3)."""

    def __init__(self, w: torch.Tensor, u: torch.Tensor, size: int) -> None:
        super().__init__(1, w.shape[0] * u.shape[1])
        self.w, self.u, self.size = w, u, size

    def evaluate(self, coords: torch.Tensor) -> torch.Tensor:
        powers = torch.stack([torch.matrix_power(self.w, round(t)) for t in (coords[:, 0] * self.size).tolist()])
        return (powers @ self.u).flatten(1)


def test_a_linear_recurrent_unit_is_a_convolution() -> None:
    w, u = torch.linalg.qr(torch.randn(4, 4))[0] * 0.95, torch.randn(4, 3)
    layer = CKConv(3, 4, size=50, field=Exponential(w, u, 50), causal=True, bias=False, gain=None)
    x = torch.randn(2, 3, 50)
    state, states = torch.zeros(2, 4), []
    for t in range(50):
        state = state @ w.T + x[..., t] @ u.T
        states.append(state)
    torch.testing.assert_close(layer(x), torch.stack(states, dim=-1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("step", [0.5, 2.0])
def test_a_causal_layer_exports_with_every_length(step: float) -> None:
    """The first point of a kernel has its own weight, also where there are one or two points."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = CKConv(2, 3, size=9, causal=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x, step=step)

    shapes = {"x": {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}}
    assert_exports(Scaled().eval(), (torch.randn(3, 2, 12),), shapes, [(torch.randn(2, 2, n),) for n in (1, 2, 3, 30)])

"""Parts of layers: fewer channels than there are, factors on weights, steps that only the device knows."""

from __future__ import annotations

import pytest
import torch

from kernelfield import CKConv, FlexConv, SeparableConv
from kernelfield.fields import MLP, SIREN, BSpline, FourierFilter, GaborFilter, MAGNet, RandomFourier, Table
from kernelfield.layers import ActiveSlice, BatchNorm, CumulativeNorm, Pointwise


@pytest.mark.parametrize("field", [MLP, SIREN, RandomFourier, FourierFilter, GaborFilter, MAGNet, BSpline, Table])
def test_the_first_channels_of_a_field(field: type) -> None:
    made = field(2, 7, **({"size": 5} if field in (BSpline, Table) else {}))
    coords = 2 * torch.rand(9, 2) - 1
    torch.testing.assert_close(made(coords, channels=3), made(coords)[:, :3])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_the_first_channels_of_a_depthwise_convolution(causal: bool, channels: int) -> None:
    layer = FlexConv(5, 5, size=16, depthwise=True, causal=causal, sigma=0.2).double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    part, active = x[:, :channels], ActiveSlice((channels,))
    torch.testing.assert_close(layer(part, active=active), layer(x)[:, :channels])
    coords = 16 * torch.rand(2, 16, 1, dtype=torch.float64)
    both = layer(part, active=active, coords=coords), layer(x, coords=coords)[:, :channels]
    torch.testing.assert_close(*both)
    layer.eval().freeze()
    torch.testing.assert_close(layer(part, active=active), layer(x)[:, :channels])


def test_channels_are_checked() -> None:
    with pytest.raises(ValueError, match="active"):
        CKConv(3, 3, size=8)(torch.randn(1, 2, 8), active=ActiveSlice((2,)))
    with pytest.raises(ValueError, match="active"):
        CKConv(3, 3, size=8, depthwise=True)(torch.randn(1, 4, 8), active=ActiveSlice((4,)))
    with pytest.raises(ValueError, match=r"\bx must"):
        CKConv(3, 3, size=8, depthwise=True)(torch.randn(1, 3, 8), active=ActiveSlice((2,)))
    with pytest.raises(ValueError, match=r"\bx must"):
        Pointwise(3, 5)(torch.randn(4, 3))


def test_parts_of_linear_maps() -> None:
    layer = Pointwise(5, 4)
    torch.nn.init.normal_(layer.bias)
    x, rows, columns = torch.randn(2, 3, 6), torch.rand(2), torch.rand(3)
    whole = torch.nn.functional.pad(x * columns.view(3, 1), (0, 0, 0, 2))
    wanted = layer(whole)[:, :2] * rows.view(2, 1)
    torch.testing.assert_close(layer(x, active=ActiveSlice((3, 2), (columns, rows))), wanted)
    separable = SeparableConv(5, 4, size=8, sigma=0.2)
    part = separable(x, active=ActiveSlice((3, 2)))
    middle = separable.depthwise(torch.nn.functional.pad(x, (0, 0, 0, 2)))
    middle[:, 3:] = 0
    torch.testing.assert_close(part, separable.pointwise(middle)[:, :2])


@pytest.mark.parametrize("track", [True, False])
def test_parts_of_batch_norms(track: bool) -> None:
    whole, part = (BatchNorm(4, track_running_stats=track) for _ in range(2))
    for norm in (whole, part):
        torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 4, 8)
    for mode in (True, False):
        whole.train(mode)
        part.train(mode)
        torch.testing.assert_close(part(x[:, :2], active=ActiveSlice((2,))), whole(x)[:, :2])
    if track:
        torch.testing.assert_close(part.running_mean[:2], whole.running_mean[:2])
        assert int(part.num_batches_tracked) == 1


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("step", [1.0, 1.6, 0.75])
def test_a_step_that_is_a_tensor(causal: bool, step: float) -> None:
    layer = FlexConv(3, 3, size=16, depthwise=True, causal=causal, sigma=0.3, crop=False).double()
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    kernel = layer.sample_at((16,), [torch.tensor(step, dtype=torch.float64)], 3)
    assert kernel.shape[-1] == (16 if causal else 31)
    torch.testing.assert_close(layer(x, kernel=kernel), layer(x, step=step))


def test_the_cumulative_norm_of_values_far_from_zero() -> None:
    torch.manual_seed(0)
    norm, x = CumulativeNorm(4), torch.randn(2, 4, 50)
    far = (x.double() + 4096).float()  # rounded, and so is what it is compared with
    torch.testing.assert_close(norm(far), norm(far - 4096), atol=2e-3, rtol=0)

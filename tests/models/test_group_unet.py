"""The equivariant U-Net: its output turns with its input, exactly, at every size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelfield import GroupUNet, SpatialUpsample, create_model
from kernelfield.groups import SO2, Cyclic, Dihedral, Mirror, Trivial
from kernelfield.testing import assert_compiles, assert_equivariant, assert_exports

from .test_gcnn import settle


@settings(deadline=None, max_examples=12)
@given(
    group=st.sampled_from([Cyclic(4), Dihedral(4), Mirror()]),
    size=st.integers(4, 13),
    readout=st.sampled_from(["max", "mean"]),
    training=st.booleans(),
)
def test_the_output_turns_with_the_input(group, size, readout, training):
    torch.manual_seed(0)
    net = settle(GroupUNet(2, 3, group=group, channels=2, depth=2, readout=readout)).train(training)
    x = torch.randn(2, 2, size, size, dtype=torch.float64)
    assert_equivariant(net, group, x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", ["co", "full"])
def test_attention_keeps_the_symmetry(attention):
    net = settle(GroupUNet(1, 1, group=Cyclic(4), channels=2, depth=1, attention=attention)).eval()
    assert_equivariant(net, Cyclic(4), torch.randn(2, 1, 9, 9, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_an_ordinary_unet_does_not_have_it():
    net = settle(GroupUNet(1, 1, group=Trivial(), channels=4)).eval()
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(net, Cyclic(4), torch.randn(2, 1, 8, 8, dtype=torch.float64), rtol=1e-3)


def test_rectangles_keep_their_shape():
    assert create_model("unet_p4m", in_channels=2, out_channels=5)(torch.randn(1, 2, 10, 15)).shape == (1, 5, 10, 15)


def test_it_learns_what_a_rotation_cannot_change():
    """Smoothing is equivariant: one orientation to train on, a fourth of a turn to test on."""
    torch.manual_seed(0)
    net = GroupUNet(1, 1, group=Cyclic(4), channels=4, depth=1)
    x = torch.randn(32, 1, 8, 8).cumsum(dim=3)  # not isotropic
    y = torch.nn.functional.avg_pool2d(x, 3, 1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    turned = (net(x.rot90(1, (2, 3))) - y.rot90(1, (2, 3))).square().mean()
    assert loss.item() < 0.2 * y.square().mean().item()
    assert turned.item() == pytest.approx((net(x) - y).square().mean().item(), rel=1e-3)


@pytest.mark.slow
def test_compiles():
    assert_compiles(GroupUNet(1, 2, group=Cyclic(4), channels=2, depth=1).eval(), torch.randn(2, 1, 8, 8))


@pytest.mark.slow
def test_exports_with_any_even_size():
    net = GroupUNet(1, 2, group=Cyclic(4), channels=2, depth=1).eval()
    batch, half = torch.export.Dim("batch", min=2), torch.export.Dim("half", min=2, max=64)
    shapes = {0: batch, 2: 2 * half, 3: 2 * half}
    assert_exports(net, (torch.randn(2, 1, 8, 8),), (shapes,), [(torch.randn(5, 1, 14, 14),)])


def test_an_image_too_small_for_the_depth_is_refused():
    with pytest.raises(ValueError, match="x must have at least 4 samples"):
        GroupUNet(1, 1, group=Cyclic(4), depth=2)(torch.randn(1, 1, 3, 8))


def test_a_continuous_group_is_refused():
    with pytest.raises(ValueError, match="group"):
        GroupUNet(1, 1, group=SO2())


class TestUpsample:
    @pytest.mark.parametrize("kind", ["linear", "nearest"])
    @pytest.mark.parametrize("shape", [(10, 12), (9, 11), (10, 11)])
    def test_flips_commute(self, kind: str, shape: tuple[int, int]) -> None:
        up, x = SpatialUpsample(kind), torch.randn(1, 2, 5, 6, dtype=torch.float64)
        for axes in ((2,), (3,), (2, 3)):
            torch.testing.assert_close(up(x.flip(axes), shape), up(x, shape).flip(axes))

    def test_a_ramp_stays_a_ramp(self) -> None:
        x = torch.arange(5.0).expand(1, 1, 5)
        inner: Tensor = SpatialUpsample(dim=1)(x)[0, 0, 1:-1]
        torch.testing.assert_close(inner, torch.linspace(0.25, 3.75, 8))
        torch.testing.assert_close(SpatialUpsample(dim=1)(x, (9,))[0, 0], torch.linspace(0, 4, 9))

    @pytest.mark.parametrize("shape", [(11,), (8,), (10, 10)])
    def test_other_lengths_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="shape"):
            SpatialUpsample(dim=1)(torch.randn(1, 1, 5), shape)

"""Masks: the contract, and what is particular to each."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from kernelfield import FlexConv
from kernelfield.masks import GaussianMask, Mask, SigmoidMask, SteerableMask
from tests.contracts.masks import MaskContract

ROOT = math.sqrt(-2 * math.log(0.1))  # the usual threshold cuts a Gaussian at 2.146 deviations


class TestGaussian(MaskContract):
    mask = GaussianMask
    extent = "sigma"
    inside = (0.01, 0.15, 0.4)
    beyond = 2.0
    bad_arguments: ClassVar = [
        ("sigma", 0.0, ValueError, r"sigma .*got 0\.0"),
        ("sigma", -1.0, ValueError, r"sigma .*got -1\.0"),
        (
            "sigma",
            (0.1, 0.2, 0.3),
            ValueError,
            r"sigma .*got \(0\.1, 0\.2, 0\.3\)",
        ),
        ("sigma", float("nan"), ValueError, "sigma .*got nan"),
        ("mean", float("inf"), ValueError, "mean .*got inf"),
        ("mean", (0.0,), ValueError, r"mean .*got \(0\.0,\)"),
        ("learn_mean", 1, TypeError, "learn_mean .*got 1"),
        ("isotropic", "no", TypeError, "isotropic .*got 'no'"),
    ]

    def test_formula(self) -> None:
        mask = GaussianMask(2, (0.3, 0.5), (0.1, -0.2)).double()
        coords = torch.tensor([[0.3, 0.4]], dtype=torch.float64)
        expected = math.exp(-0.5 * ((0.2 / 0.3) ** 2 + (0.6 / 0.5) ** 2))
        assert mask(coords).item() == pytest.approx(expected, rel=1e-6)

    def test_support_in_closed_form(self) -> None:
        low, high = GaussianMask(2, (0.1, 0.2), (0.0, 0.3)).support()
        assert low.tolist() == pytest.approx([-0.1 * ROOT, 0.3 - 0.2 * ROOT])
        assert high.tolist() == pytest.approx([0.1 * ROOT, 0.3 + 0.2 * ROOT])

    def test_the_sign_of_a_width_does_not_count(self) -> None:
        # Nothing keeps an optimiser from stepping over zero.
        mask, mirrored = GaussianMask(1, 0.2), GaussianMask(1, 0.2)
        with torch.no_grad():
            mirrored.sigma.neg_()
        coords = self.points(mask)
        assert mask(coords).equal(mirrored(coords))
        assert mask.size(33).equal(mirrored.size(33))
        assert mask.support()[1].equal(mirrored.support()[1])


class TestGaussianWithLearnedMean(MaskContract):
    traced = False
    mask = GaussianMask
    arguments: ClassVar = {"learn_mean": True, "mean": 0.1, "threshold": 0.2}
    extent = "sigma"
    inside = (0.01, 0.15, 0.4)
    beyond = 2.0
    bad_arguments: ClassVar = [("mean", "0", TypeError, "mean .*got '0'")]

    def test_the_mean_is_a_parameter_only_if_learned(self) -> None:
        assert {name for name, _ in self.build().named_parameters()} == {"sigma", "mean"}
        assert {name for name, _ in GaussianMask(2).named_parameters()} == {"sigma"}

    def test_a_mean_that_leaves_the_edge_is_counted_from_both_sides(self) -> None:
        mask = GaussianMask(1, 0.05, 0.0, learn_mean=True, domain=(0.0, 1.0))
        with torch.no_grad():
            mask.mean.fill_(0.5)
        assert mask.size(100).item() == pytest.approx(100 * 2 * ROOT * 0.05, rel=1e-5)


class TestCausalGaussian(MaskContract):
    traced = False
    mask = GaussianMask
    arguments: ClassVar = {"domain": (0.0, 1.0)}
    extent = "sigma"
    inside = (0.01, 0.15, 0.4)
    beyond = 2.0
    bad_arguments: ClassVar = [
        (
            "domain",
            (0.0, 0.0),
            ValueError,
            r"domain .*got \(0\.0, 0\.0\)",
        )
    ]

    def test_only_the_far_edge_moves(self) -> None:
        mask = self.build(1, sigma=0.2)
        mask.size(100).sum().backward()
        assert mask.support()[0].item() == 0.0
        assert mask.sigma.grad.item() == pytest.approx(100 * ROOT)

    def test_one_axis_at_the_edge_leaves_the_others_alone(self) -> None:
        mask = GaussianMask(2, 0.05, (0.0, 0.5), domain=(0.0, 1.0))
        assert mask.size(100).tolist() == pytest.approx([100 * ROOT * 0.05, 100 * 2 * ROOT * 0.05], rel=1e-5)


class TestSigmoid(MaskContract):
    mask = SigmoidMask
    extent = "offset"
    inside = (-0.8, 0.0, 0.7)
    beyond = 3.0
    bad_arguments: ClassVar = [
        ("offset", float("nan"), ValueError, "offset .*got nan"),
        (
            "offset",
            (0.1, 0.2, 0.3),
            ValueError,
            r"offset .*got \(0\.1, 0\.2, 0\.3\)",
        ),
        ("temperature", 0, ValueError, "temperature .*got 0"),
        ("temperature", -25.0, ValueError, r"temperature .*got -25\.0"),
        ("learn_offset", None, TypeError, "learn_offset .*got None"),
    ]

    def test_formula(self) -> None:
        mask = SigmoidMask(1, 0.1, temperature=5.0)
        expected = 1 - 1 / (1 + math.exp(-5 * (0.3 - 0.1)))
        assert mask(torch.tensor([[0.3]])).item() == pytest.approx(expected, rel=1e-6)

    def test_support_in_closed_form(self) -> None:
        low, high = SigmoidMask(1, 0.1, temperature=25.0, threshold=0.2).support()
        assert low.item() == -1
        assert high.item() == pytest.approx(0.1 + math.log(4) / 25)

    def test_a_fixed_offset_is_a_buffer(self) -> None:
        mask = SigmoidMask(2, learn_offset=False)
        assert list(mask.parameters()) == []
        assert set(mask.state_dict()) == {"offset"}


class TestSigmoidOnItsOwnDomain(MaskContract):
    traced = False
    mask = SigmoidMask
    arguments: ClassVar = {"domain": (0.0, 1.0), "threshold": 0.3, "temperature": 60.0}
    extent = "offset"
    inside = (0.1, 0.5, 0.9)
    beyond = 1.5
    bad_arguments: ClassVar = [("domain", (1, 0), ValueError, r"domain .*got \(1, 0\)")]


def test_isotropic_shares_one_width() -> None:
    mask = GaussianMask(3, 0.2, isotropic=True)
    assert mask.sigma.shape == (1,)
    coords = torch.rand(50, 3) - 0.5
    torch.testing.assert_close(mask(coords), GaussianMask(3, 0.2)(coords))
    low, high = mask.support()
    assert low.shape == high.shape == mask.size(33).shape == (3,)


def test_a_closed_mask_has_size_zero() -> None:
    mask = SigmoidMask(1, offset=-5.0)
    assert mask.size(33).item() == 0
    assert (mask(torch.linspace(-1, 1, 33)[:, None]) == 0).all()


def test_the_base_class_has_no_profile() -> None:
    with pytest.raises(NotImplementedError):
        Mask(1)(torch.zeros(1, 1))
    with pytest.raises(NotImplementedError):
        Mask(1).support()


class TestSteerable:
    def test_at_angle_0_it_is_the_gaussian_mask(self) -> None:
        coords = 2 * torch.rand(200, 2) - 1
        plain, turned = GaussianMask(2, (0.1, 0.3), 0.2), SteerableMask(2, (0.1, 0.3), mean=0.2)
        torch.testing.assert_close(turned(coords), plain(coords))
        torch.testing.assert_close(turned.support(), plain.support())

    @pytest.mark.parametrize("angle", [-2.0, 0.3, 1.2])
    def test_it_turns_with_its_angle(self, angle: float) -> None:
        mask, upright = (SteerableMask(2, (0.1, 0.3), angle=a).double() for a in (angle, 0.0))
        coords = 2 * torch.rand(500, 2, dtype=torch.float64) - 1
        cos, sin = math.cos(angle), math.sin(angle)
        turn = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
        torch.testing.assert_close(mask(coords @ turn.T), upright(coords))

    @pytest.mark.parametrize("angle", [-2.0, 0.3, 1.2])
    def test_its_support_is_the_smallest_box_around_it(self, angle: float) -> None:
        mask = SteerableMask(2, (0.05, 0.25), angle=angle, mean=0.1).double()
        axis = torch.linspace(-1, 1, 801, dtype=torch.float64)
        coords = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(-1, 2)
        kept = coords[mask(coords) > 0]
        low, high = mask.support()
        torch.testing.assert_close(kept.amin(dim=0), low, atol=0.005, rtol=0)
        torch.testing.assert_close(kept.amax(dim=0), high, atol=0.005, rtol=0)

    def test_gradients_reach_the_angle(self) -> None:
        mask = SteerableMask(2, (0.1, 0.3), angle=0.4)
        mask(2 * torch.rand(500, 2) - 1).square().sum().backward()
        assert all(p.grad is not None and (p.grad != 0).all() for p in (mask.angle, mask.sigma))

    def test_a_layer_samples_no_more_than_its_box(self) -> None:
        mask, x = SteerableMask(2, (0.05, 0.2), angle=0.5), torch.randn(2, 2, 12, 12)
        layer, whole = (FlexConv(2, 3, dim=2, size=12, mask=mask, crop=crop) for crop in (True, False))
        whole.load_state_dict(layer.state_dict())
        assert layer.kernel().numel() < whole.kernel().numel()
        torch.testing.assert_close(layer(x), whole(x), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize(("argument", "value"), [("dim", 3), ("angle", float("nan")), ("sigma", -1.0)])
    def test_bad_arguments(self, argument: str, value: float) -> None:
        with pytest.raises(ValueError, match=rf"{argument} .*got"):
            SteerableMask(**{argument: value})


def test_a_width_that_is_not_a_number_shows() -> None:
    masks = [GaussianMask(1), GaussianMask(1)]
    with torch.no_grad():
        masks[0].sigma.fill_(torch.nan)
    coords = torch.tensor([[0.1]])
    assert masks[0](coords).isnan().all()
    assert GaussianMask.together(masks, coords).isnan().tolist() == [[True], [False]]

from __future__ import annotations

import math

import pytest
import torch

from kernelfield.data.transforms.rotate import mnist6_180, mnist6_m, rotate, rotated, sixes
from kernelfield.groups import O2, SO2, Cyclic
from kernelfield.models.partial_gcnn import PartialGCNN
from kernelfield.viz.groups import plot_prediction_under_rotation, plot_subsets, predictions_under_rotation


@pytest.fixture
def digits():
    images = torch.zeros(6, 1, 12, 12)
    images[:, :, 3:9, 3:9] = torch.rand(6, 1, 6, 6)
    return images, torch.tensor([6, 1, 6, 6, 0, 6])


def test_each_image_is_turned_by_its_own_angle(digits):
    x, _ = digits
    quarters = torch.arange(6)
    turned = rotate(x, quarters * (math.pi / 2))
    for i in range(6):
        torch.testing.assert_close(turned[i], torch.rot90(x[i], i, (-2, -1)), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"\bangles must"):
        rotate(x, torch.zeros(3))


def test_mnist6_180_is_balanced_and_its_classes_are_half_a_turn_apart(digits):
    x, y = mnist6_180(*digits, copies=3)
    assert x.shape == (24, 1, 12, 12)
    assert y.sum() == 12
    assert x[y == 1].equal(x[y == 0].flip((-2, -1)))
    again, _ = mnist6_180(*digits, copies=3)
    assert x.equal(again)
    assert not x.equal(mnist6_180(*digits, copies=3, seed=1)[0])


@pytest.mark.parametrize("margin", [0, 30])
def test_sixes_are_turned_up_to_the_margin(digits, margin, monkeypatch):
    found = []
    monkeypatch.setattr(
        "kernelfield.data.transforms.rotate.rotate", lambda images, angles: found.append(angles) or images
    )
    mnist6_180(*digits, copies=100, margin=margin)
    angles = torch.rad2deg(found[0])
    assert 0.97 * (90 - margin) < angles.max() <= 90 - margin
    assert -(90 - margin) <= angles.min() < -0.97 * (90 - margin)


def test_mnist6_m_holds_mirror_images(digits):
    x, y = mnist6_m(*digits)
    assert x[y == 1].equal(x[y == 0].flip(-1))
    assert x[y == 0].equal(sixes(*digits))


def test_rotated_keeps_labels_and_mass(digits):
    x, y = rotated(*digits, copies=2)
    assert y.equal(digits[1].repeat(2))
    torch.testing.assert_close(x.sum((1, 2, 3)), digits[0].sum((1, 2, 3)).repeat(2), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("group", [SO2(), O2(), Cyclic(4)], ids=str)
def test_pictures(group, tmp_path):
    pytest.importorskip("matplotlib")
    net = PartialGCNN(1, 2, group=group, samples=4, channels=(2, 2, 2, 2), kernel_size=3, pool=(True, True, True))
    plot_subsets(net, tmp_path / "subsets.png")
    plot_prediction_under_rotation(net, torch.randn(1, 24, 24), tmp_path / "prediction.png", turns=8)
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("subsets.png", "prediction.png"))
    angles, probabilities = predictions_under_rotation(net, torch.randn(1, 24, 24), turns=8)
    assert angles.shape == (8,)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(8))
    with pytest.raises(ValueError, match="learned distribution"):
        plot_subsets(torch.nn.Linear(1, 1), tmp_path / "none.png")

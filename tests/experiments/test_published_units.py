"""Recipes in the units of this library against the published settings in the authors' units.

The authors' kernels span [-1, 1], so (points - 1)/2 steps are one unit. Here, one unit is the reach of the kernel.
"""

from __future__ import annotations

import pytest
import torch

from kernelfield.experiments.recipe import find_recipe, list_recipes
from kernelfield.experiments.run import make_network
from kernelfield.masks import GaussianMask
from kernelfield.models.kernel_arguments import kernel_reach

#: published initial widths of the masks that differ from 0.075
WIDTHS = {
    "ch03-cifar10-*-4-140": 0.75,
    "ch03-listops-*": 0.03,
    "ch03-text-*-4-140": 0.015,
    "ch03-text-*-6-380": 0.03,
    "ch03-pathfinder-ccnn-*": 0.4,
    "ch03-pathfinder-2d-*": 0.225,
}
#: recipes whose kernels have no published units: clouds, voxels, and sounds that the publication does not use
OWN_UNITS = ("*-modelnet*", "*-voxels*", "*-fsdd-*")


def names(pattern: str, without: tuple[str, ...]) -> list[str]:
    left_out = {name for other in without for name in list_recipes(other)}
    return [name for name in list_recipes(pattern) if name not in left_out]


def unit(name: str) -> float:
    """Return the authors' unit of length in units of this library."""
    recipe = find_recipe(name)
    size, points, causal = recipe.shape.size[0], recipe.model.get("kernel_size"), len(recipe.shape.size) == 1
    ours = kernel_reach(recipe.model.get("size", size), points, causal=causal)
    assert isinstance(ours, int)
    # Kernels of chapter 5 end at half of an image; here they reach over all of it.
    return ((points - 1) / 2 if points and not causal else ours / 2) / ours


@pytest.mark.parametrize("name", names("ch03-*", OWN_UNITS))
def test_masks_of_chapter_3_have_the_published_width_and_learning_rate(name: str) -> None:
    recipe = find_recipe(name)
    found = [width for pattern, width in WIDTHS.items() if name in list_recipes(pattern)]
    width = recipe.model.get("sigma", 0.0375) / unit(name)
    assert width == pytest.approx(found[0] if found else 0.075, rel=2e-3)
    # A step of the learning rate moves the width by the same number of pixels as in the authors' code.
    assert recipe.optimizer.mask_lr == pytest.approx(unit(name), rel=1e-3)


@pytest.mark.parametrize("name", names("ch05-cifar*-flexnet-*", ("*-njet", "*-k3", "*-k33")))
def test_masks_of_chapter_5_learn_at_a_tenth_of_the_rate(name: str) -> None:
    assert find_recipe(name).optimizer.mask_lr == pytest.approx(0.1 * unit(name))


@pytest.mark.parametrize("name", names("ch05-*-siren", ("*-kodak-*",)))
def test_sirens_of_chapter_5_have_the_published_frequencies(name: str) -> None:
    model = find_recipe(name).model
    assert model["omega_0"] * unit(name) == pytest.approx(30, rel=1e-3)
    assert model["hidden_omega_0"] == 30  # the inputs of hidden layers do not depend on the unit


def test_wide_masks_have_wide_envelopes() -> None:
    network = make_network(find_recipe("ch03-cifar10-ccnn-4-140"))
    centres = torch.cat([m.mean.detach().flatten() for m in network.modules() if hasattr(m, "inverse_widths")])
    assert 1.1 < float(centres.abs().max()) <= 1.667 * 0.75 * 16 / 17
    assert any(isinstance(m, GaussianMask) for m in network.modules())

"""Language modelling refuses networks that see the tokens they have to predict."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelfield import create_model
from kernelfield.experiments.causality import check_language_model, leak
from kernelfield.experiments.recipe import find_recipe
from kernelfield.experiments.run import make_task


def character_model(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return create_model("ckcnn_ptb", size=50, channels=(6, 4), in_channels=4, hidden=4, **options)


@pytest.mark.parametrize("start", [None, "ckconv"])
def test_the_registered_character_model_does_not_leak(start: str | None) -> None:
    assert leak(character_model(start=start), 50, 24) < 1e-9


def test_a_character_model_with_the_published_norm_leaks() -> None:
    network = character_model()
    for block in network.blocks:
        block.norm1, block.norm2 = (nn.GroupNorm(1, block.norm1.channels) for _ in range(2))
    assert leak(network, 50, 24) > 1e-2
    with pytest.raises(ValueError, match=r"\bmodel must"):
        check_language_model(network, 50, 24)


def test_recipes_for_language_refuse_networks_that_look_ahead() -> None:
    recipe = find_recipe("ch02-ptb-ckcnn")
    make_task(recipe, character_model())
    with pytest.raises(ValueError, match=r"\bmodel must"):
        make_task(recipe, character_model(causal=False))


def test_the_probe_leaves_the_network_as_it_was() -> None:
    network = character_model(norm="batch", dropout=0.5)
    before, state = network.training, torch.get_rng_state()
    weights = {name: t.clone() for name, t in network.state_dict().items()}
    leak(network, 50, 24)
    assert network.training is before
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, weights[name]) for name, t in network.state_dict().items())


def test_a_single_token_has_no_later_ones() -> None:
    assert leak(character_model(), 50, 1) == 0

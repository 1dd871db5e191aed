"""Tokens drawn from streaming networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kernelfield as kf
from tests.streaming.networks import settled


def language_model(**changes: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    arguments: dict[str, Any] = {"size": 40, "channels": 8, "blocks": 1, "hidden": 4, "norm": "batch"}
    arguments |= {"in_channels": 8, "out_channels": 12, "vocabulary": 12, "readout": "dense"}
    net = settled(kf.CKCNN(**{**arguments, **changes}))
    torch.nn.init.normal_(net.embedding.weight)
    return net


@torch.no_grad()
def most_likely(net: torch.nn.Module, prompt: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        prompt = torch.cat([prompt, net(prompt)[..., -1].argmax(dim=1, keepdim=True)], dim=1)
    return prompt


def test_without_temperature_takes_the_most_likely_token() -> None:
    net = language_model()
    prompt = torch.randint(0, 12, (3, 5))
    assert torch.equal(kf.generate(net, prompt, 60, temperature=0), most_likely(net, prompt, 60))


def test_a_distilled_network_generates() -> None:
    net = kf.distil(language_model(size=100), order=8, refine=0).network
    prompt = torch.randint(0, 12, (1, 5))
    assert torch.equal(kf.generate(net, prompt, 30, temperature=0), most_likely(net, prompt, 30))


def test_seeds_repeat_and_differ() -> None:
    net, prompt = language_model(), [1, 2, 3]
    first, again, other = (kf.generate(net, prompt, 40, temperature=10.0, seed=seed) for seed in (1, 1, 2))
    assert first.shape == (43,)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first[:3].tolist() == prompt


def test_sequences_with_seeds_of_their_own_do_not_depend_on_each_other() -> None:
    net, prompt = language_model(), torch.tensor([[1, 2], [3, 4]])
    both = kf.generate(net, prompt, 30, seed=[5, 6])
    assert torch.equal(both[1:], kf.generate(net, prompt[1:], 30, seed=[6]))


def test_top_k_of_one_is_the_most_likely_token() -> None:
    net, prompt = language_model(), torch.tensor([[1, 2]])
    assert torch.equal(kf.generate(net, prompt, 20, top_k=1, seed=0), most_likely(net, prompt, 20))


def test_draws_follow_the_temperature() -> None:
    net = language_model()
    cold, hot = (kf.generate(net, [[1]] * 64, 10, temperature=t, seed=0) for t in (0.01, 100.0))
    assert len(cold.unique(dim=0)) < len(hot.unique(dim=0))


def test_no_new_tokens_is_the_prompt() -> None:
    assert kf.generate(language_model(), [1, 2], 0).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("prompt", [12]),
        ("prompt", []),
        ("prompt", [0.5]),
        ("prompt", torch.zeros(1, 1, 1, dtype=torch.int64)),
        ("length", -1),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("seed", [1, 2]),
        ("net", kf.CCNN(1, 2, size=8, channels=2, blocks=0)),
    ],
)
def test_bad_arguments(argument: str, value: Any) -> None:
    arguments = {"net": language_model(), "prompt": [1], "length": 2, argument: value}
    with pytest.raises((TypeError, ValueError), match=rf"^{argument} "):
        kf.generate(**arguments)


def test_a_network_of_other_outputs_is_refused() -> None:
    net = kf.CCNN(4, 3, size=8, channels=4, blocks=1, vocabulary=12)
    with pytest.raises(ValueError, match=r"^net "):
        kf.generate(net, [1], 2)

"""Split convolutions equal whole ones, outputs and all gradients, over drawn shapes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from . import cases

if TYPE_CHECKING:
    from .workers import Workers


def draw(seed: int, processes: int) -> tuple[str, dict[str, Any], tuple[int, ...], dict[str, Any]]:
    """Return a random convolution and the shape of its input."""
    rng = random.Random(seed)
    dim = rng.choice((1, 1, 2, 3))
    lengths = tuple(rng.randint(2 * processes, 33 if dim == 1 else 9) for _ in range(dim))
    layer = rng.choice(("CKConv", "FlexConv", "FlexConv"))
    depthwise = rng.random() < 0.5
    channels = rng.randint(processes if depthwise else 1, 7)
    arguments: dict[str, Any] = {
        "in_channels": channels,
        "out_channels": channels if depthwise else rng.randint(processes, 5),
        "dim": dim,
        "size": rng.choice((lengths, max(lengths), 5)),
        "depthwise": depthwise,
        "causal": dim == 1 and rng.random() < 0.4,
        "method": rng.choice(("auto", "direct", "fft")),
    }
    if not arguments["causal"] and rng.random() < 0.5:
        arguments["boundary"] = "periodic"
        arguments["size"] = tuple(min(n, 5) for n in lengths) if rng.random() < 0.5 else lengths
    if layer == "FlexConv":
        arguments |= {"sigma": rng.choice((0.05, 0.2, 1.0)), "crop": rng.random() < 0.8}
    if rng.random() < 0.3:
        arguments["kernel_dropout"] = 0.3
    how: dict[str, Any] = {}
    if "boundary" not in arguments and rng.random() < 0.4:
        how["step"] = rng.choice((0.5, 2.0, 1.3))
        arguments["smooth"] = rng.random() < 0.5
    if rng.random() < 0.3:
        how["mask"] = 0.7
    return layer, arguments, (rng.randint(1, 3), channels, *lengths), how


def assert_equal(found: list[dict[str, float]]) -> None:
    for rank, differences in enumerate(found):
        worst = max(differences, key=lambda name: differences[name])
        assert differences[worst] < 1e-10, (rank, worst, differences[worst])


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_split_equals_whole(two: Workers, first: int) -> None:
    for seed in range(first, first + 6):
        assert_equal(two.run(cases.conv_case, *draw(seed, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 160, 6))
def test_split_over_four_equals_whole(four: Workers, first: int) -> None:
    for seed in range(first, first + 6):
        assert_equal(four.run(cases.conv_case, *draw(seed, 4)))


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("sigma", [0.03, 2.0])
def test_bytes_are_those_of_the_formula(two: Workers, depthwise: bool, sigma: float) -> None:
    arguments = {"in_channels": 5, "out_channels": 5, "size": 21, "dim": 2, "depthwise": depthwise, "sigma": sigma}
    for method, sent, expected in two.run(cases.sent_bytes, "FlexConv", arguments, (2, 5, 21, 6)):
        assert method == ("halo" if sigma < 1 else "channels")
        assert sent == expected > 0

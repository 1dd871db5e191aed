"""Caches: equal keys of other types are not taken for each other, and threads may share them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernelfield.ops import conv
from kernelfield.ops.graph_cache import graph_cache


@pytest.mark.parametrize(("name", "value"), [("groups", 1.0), ("groups", True), ("causal", 1), ("causal", 0)])
def test_arguments_of_another_type_are_refused_after_equal_ones(name: str, value: object) -> None:
    x, kernel = torch.randn(1, 1, 8), torch.randn(1, 1, 3)
    for causal in (True, False):
        conv(x, kernel, groups=1, causal=causal)
    with pytest.raises(TypeError, match=name):
        conv(x, kernel, **{name: value})  # type: ignore[arg-type]


def test_threads_share_a_small_cache() -> None:
    @graph_cache(2)
    def table(n: int) -> torch.Tensor:
        return torch.full((3,), n)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: int(table(i % 5).sum()), range(2000)))
    assert found == [3 * (i % 5) for i in range(2000)]

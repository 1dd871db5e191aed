"""Hooks after optimiser steps: none by an import, none across trainings, and counted for every kind of optimiser."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from kernelfield import CCNN, FlexConv
from kernelfield._hooks import on_optimizer_step, pause_step_hooks, step_hooks_paused
from kernelfield.layers import kernel_l2
from kernelfield.layers.continuous.kernel_sampler import sampled_once
from tests.fresh_import import hooks_before_and_after_import

if TYPE_CHECKING:
    from torch import nn


@pytest.mark.skipif(not hasattr(torch_optimizer, "_global_optimizer_post_hooks"), reason="torch has renamed its dict")
def test_only_learned_sizes_install_a_hook() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(hooks_before_and_after_import) == (0, 0, 1)


def test_pauses_belong_to_their_thread() -> None:
    seen = []
    with pause_step_hooks():
        thread = threading.Thread(target=lambda: seen.append(step_hooks_paused()))
        thread.start()
        thread.join()
        assert step_hooks_paused()
    assert seen == [False]
    assert not step_hooks_paused()


def test_followers_are_referenced_weakly_and_called_for_their_own_parameters() -> None:
    called: list[nn.Module] = []
    followers = on_optimizer_step(torch.nn.Module.parameters, called.extend)
    first, second = (torch.nn.Linear(1, 1) for _ in range(2))
    for layer in (first, second):
        followers.add(layer)
        layer.weight.grad = torch.ones(1, 1)
    torch.optim.SGD([first.weight], lr=0.1).step()
    assert called == [first]
    with pause_step_hooks():
        torch.optim.SGD([second.weight], lr=0.1).step()
    assert called == [first]
    called.clear()
    del first, layer
    gc.collect()
    assert list(followers) == [second]


def test_sets_of_followers_are_called_in_the_order_in_which_they_were_made() -> None:
    called: list[str] = []
    first = on_optimizer_step(torch.nn.Module.parameters, lambda _: called.append("first"))
    second = on_optimizer_step(torch.nn.Module.parameters, lambda _: called.append("second"))
    layer = torch.nn.Linear(1, 1)
    second.add(layer)
    first.add(layer)
    layer.weight.grad = torch.ones(1, 1)
    torch.optim.SGD([layer.weight], lr=0.1).step()
    assert called == ["first", "second"]


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_every_optimiser_is_counted(options: dict[str, bool]) -> None:
    layer = FlexConv(1, 1, size=8)
    assert layer.mask is not None
    layer.mask.sigma.grad = torch.ones(1)
    version = layer.mask.sigma._version
    torch.optim.AdamW([layer.mask.sigma], **options).step()
    assert layer.mask.sigma._version > version


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_follow_their_own_masks(copied) -> None:
    layer = FlexConv(1, 1, size=64, sigma=0.1)
    other = copied(layer)
    other.mask.sigma.grad = torch.tensor([-0.2])
    torch.optim.SGD([other.mask.sigma], lr=1.0).step()
    assert other.kernel_support.steps > layer.kernel_support.steps
    assert not other.kernel_support.stale


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return CCNN(1, 2, size=16, channels=4, blocks=2, sigma=0.1, hidden=8)


def train(net: nn.Module, seed: int) -> torch.Tensor:
    """Return all parameters after a few steps, whose kernels are sampled for the network and for a penalty."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    x, y = torch.randn(8, 1, 16, generator=generator), torch.randint(2, (8,), generator=generator)
    for _ in range(5):
        optimizer.zero_grad()
        with sampled_once():
            loss = torch.nn.functional.cross_entropy(net(x), y) + 1e-3 * kernel_l2(net)
        loss.backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_training_in_four_threads_equals_training_in_one() -> None:
    serial = [train(build(seed), seed) for seed in range(4)]
    networks = [build(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(train, networks, range(4)))
    torch.testing.assert_close(beside, serial, rtol=0, atol=0)
    assert not torch.equal(serial[0], serial[1])

"""Batch norm with the statistics of all processes: of one process it is torch's batch norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from kernelfield.experiments.processes import synchronise_norms
from kernelfield.layers import BatchNorm, GroupBatchNorm
from kernelfield.ops.fused.synced_norm import has_several_processes, synced_batch_norm

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if dist.is_initialized():  # by a training of another test in this process
        dist.destroy_process_group()
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 2, 5)])
@pytest.mark.parametrize("affine", [True, False])
def test_equals_batch_norm(shape: tuple[int, ...], affine: bool) -> None:
    x = (3 + 2 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    affines = [torch.randn(3, dtype=torch.float64, requires_grad=True) if affine else None for _ in range(2)]
    running = [(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    outputs = (
        synced_batch_norm(x, *affines, running[0], 0.1, 1e-5),
        F.batch_norm(x, *running[1], *affines, training=True, momentum=0.1, eps=1e-5),
    )
    inputs = [t for t in (x, *affines) if t is not None]
    slope = torch.randn(shape, dtype=torch.float64)
    grads = [torch.autograd.grad(y, inputs, slope) for y in outputs]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*running)
    torch.testing.assert_close(*grads)


@pytest.mark.usefixtures("one_process")
def test_one_process_needs_no_synchronisation() -> None:
    assert not has_several_processes()


def test_norms_of_a_network_are_synchronised() -> None:
    network = nn.Sequential(BatchNorm(2), nn.Sequential(GroupBatchNorm(2), nn.BatchNorm2d(2)), nn.GroupNorm(1, 2))
    nn.init.normal_(network[1][1].weight)
    before = {name: t.clone() for name, t in network.state_dict().items()}
    network = synchronise_norms(network.eval())
    assert [type(m) for m in (network[0], *network[1])] == [BatchNorm, GroupBatchNorm, BatchNorm]
    assert all(m.synchronised for m in (network[0], *network[1]))
    assert not any(m.training for m in network.modules())
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())

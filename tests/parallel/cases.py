"""Functions that run on every process: a split network beside the whole one."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.parallel import count_bytes, gather, scatter, shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh


def largest(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    assert a.shape == b.shape
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / (1 + b.abs().max())) if a.numel() else 0.0


def loss_of(y: Tensor) -> Tensor:
    """Return a loss in which every output counts differently."""
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return (y * weight).sum() + y.square().mean()


def compare(
    mesh: DeviceMesh, make: Callable[..., nn.Module], shape: tuple[int, ...], how: dict[str, Any], dense: bool
) -> dict[str, float]:
    """Return the largest differences of output, gradients and buffers between a split network and a whole one."""
    torch.manual_seed(0)
    whole = make().double()
    split = shard(copy.deepcopy(whole), mesh)
    x = torch.randn(shape, dtype=torch.float64)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    if "mask" in how:
        how = {**how, "mask": torch.rand(shape[0], *shape[2:]) < how["mask"]}
    torch.manual_seed(1)
    expected = whole(inputs[0], **how)
    loss_of(expected).backward()
    torch.manual_seed(1)
    parts = {name: scatter(value, mesh, axis=1) if name == "mask" else value for name, value in how.items()}
    y = split(scatter(inputs[1], mesh), **parts)
    y = gather(y, mesh) if dense else y
    loss_of(y).backward()
    found = {"output": largest(y, expected), "input": largest(inputs[1].grad, inputs[0].grad)}
    for (name, p), q in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            found[name] = largest(p.grad, q.grad)
    for (name, p), q in zip(split.named_buffers(), whole.buffers(), strict=True):
        found[name] = largest(p.double(), q.double())
    return found


def conv_case(mesh: DeviceMesh, layer: str, arguments: dict[str, Any], shape: tuple[int, ...], how: Any) -> Any:
    """Compare a split convolution with a whole one."""
    return compare(mesh, lambda: getattr(kf, layer)(**arguments), shape, how, dense=True)


def sent_bytes(mesh: DeviceMesh, layer: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> tuple[str, int, int]:
    """Return the method of a convolution and the bytes it has sent forward and backward, and those of the formula."""
    conv = shard(getattr(kf, layer)(**arguments), mesh)
    x = scatter(torch.randn(shape), mesh).requires_grad_()
    with count_bytes() as sent:
        conv(x).sum().backward()
    grid = conv.grid(conv.input_lengths(shape[2:]), (1.0,) * conv.dim)
    plan = conv.plan(shape, conv.slabs.lengths, grid.count[0])
    return plan.method, sum(sent), plan.bytes_sent(conv.slabs.rank, shape, 4, backward=True)

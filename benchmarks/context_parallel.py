"""What does it cost to split signals over processes, in time, memory and bytes?

torchrun --nproc-per-node 4 benchmarks/context_parallel.py [--length 1000000] [--channels 8] [--steps 3]
python benchmarks/context_parallel.py --device cuda --length 16384 --channels 140     # one process: the wrapper's cost

Trains a CCNN of global kernels on one long sequence per data group. Prints, for each process, the time of a step, the
bytes kept for the backward pass, and the bytes that convolutions sent, measured and by the formula. With one process it
also times the same network without ``shard``, in turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _measure import machine
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.layers import ContinuousConv
from kernelfield.parallel import count_bytes, make_mesh, scatter, shard


def network(options: argparse.Namespace) -> nn.Module:
    """Return the network to train."""
    torch.manual_seed(0)
    return kf.CCNN(
        *(1, 2),
        size=options.length,
        channels=options.channels,
        blocks=options.blocks,
        hidden=options.hidden,
        sigma=options.sigma or None,
        norm="channel",
    ).to(options.device)


def kept_bytes(net: nn.Module, x: Tensor) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, without parameters."""
    known, kept = {p.untyped_storage().data_ptr() for p in net.parameters()}, {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = net(x)
    del y
    return sum(kept.values())


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor) -> float:
    """Do one step and return its loss."""
    loss = nn.functional.cross_entropy(net(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def seconds_of(nets: list[nn.Module], x: Tensor, target: Tensor, options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the median time of a step of each network, and the losses of the first.

    The networks are measured in turns, in an order that changes from step to step: the second one finds warm caches.
    """
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in nets]
    times: list[list[float]] = [[] for _ in nets]
    losses = []
    for step in range(options.steps + 3):
        for i in sorted(range(len(nets)), reverse=step % 2 == 1):
            begun = time.perf_counter()
            loss = train_step(nets[i], optimizers[i], x, target)  # waits for the device
            if step >= min(3, options.steps):
                times[i].append(time.perf_counter() - begun)
            if i == 0:
                losses.append(loss)
    return [statistics.median(each) for each in times], losses


def formula(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the bytes that this process sends in a training step, by :func:`kernelfield.parallel.plan_conv`."""
    total = 0
    for layer in net.modules():
        if isinstance(layer, ContinuousConv) and hasattr(layer, "slabs"):
            grid = layer.grid(layer.input_lengths(shape[2:]), (1.0,) * layer.dim)
            signal = (shape[0], layer.in_channels, *shape[2:])
            plan = layer.plan(signal, layer.slabs.lengths, grid.count[0])
            needs_no_gradient = layer is net.stem.depthwise  # of its input
            total += plan.bytes_sent(layer.slabs.rank, signal, 4, backward=not needs_no_gradient)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--length", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sigma", type=float, default=0.0, help="width of the masks; 0 for global kernels")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--context", type=int, default=0, help="processes that share a sample; all by default")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        os.environ |= {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    mesh = make_mesh(options.context or dist.get_world_size(), device_type=options.device)
    plain = network(options)
    net = shard(copy.deepcopy(plain), mesh)
    shape = (options.batch, 1, options.length)
    torch.manual_seed(1)
    whole = torch.randn(shape, device=options.device)
    x, target = scatter(whole, mesh), torch.zeros(options.batch, dtype=torch.long, device=options.device)
    alone = dist.get_world_size() == 1
    times, losses = seconds_of([net, plain] if alone else [net], x, target, options)
    with count_bytes() as sent:
        nn.functional.cross_entropy(net(x), target).backward()
    row = {
        "processes": dist.get_world_size(),
        "rank": dist.get_rank(),
        "seconds": round(times[0], 4),
        "kept_bytes": kept_bytes(net, x),
        "sent_bytes": sum(sent),
        "sent_by_formula": formula(net, shape),
        "losses": losses,
    }
    if alone:
        row |= {"seconds_without": round(times[1], 4), "overhead": round(times[0] / times[1] - 1, 4)}
    rows: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rows, row)
    if dist.get_rank() == 0:
        for each in rows:
            print(json.dumps(each), flush=True)
        if options.out is not None:
            settings = {name: value for name, value in vars(options).items() if name != "out"}
            found = {"machine": machine(torch.device(options.device), 0), "settings": settings, "rows": rows}
            options.out.write_text(json.dumps(found, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

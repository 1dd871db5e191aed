"""Functions that run on every process: a split network beside the whole one."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import kernelfield as kf
from kernelfield.layers.continuous.kernel_sampler import sampled_once
from kernelfield.layers.continuous.kernel_support import sample_full_kernels
from kernelfield.models.registry import options_of
from kernelfield.parallel import count_bytes, gather, scatter, shard

if TYPE_CHECKING:
    from collections.abc import Callable


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
    tokens = len(shape) == 2
    x = torch.randint(50, shape) if tokens else torch.randn(shape, dtype=torch.float64)
    inputs = [x if tokens else x.clone().requires_grad_() for _ in range(2)]
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
    found = {"output": largest(y, expected)}
    if not tokens:
        found["input"] = largest(inputs[1].grad, inputs[0].grad)
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


def network_arguments(name: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return arguments that make a registered network small, and the shape of an input for it."""
    known = options_of(name)
    arguments: dict[str, Any] = {"hidden": 4, "in_channels": 1, "out_channels": 3}
    arguments["dim"] = dim = 2 if "widths" in known else known.get("dim", 1)
    arguments["size"] = 11 if dim == 1 else (7, 5, 4)[:dim]
    if isinstance(known.get("widths"), tuple):
        arguments |= {"channels": 4, "widths": (1, 1.5)}
    elif not isinstance(known.get("channels"), tuple):
        arguments |= {"channels": 5, "blocks": 2}
    if known.get("kernel_size"):
        arguments["kernel_size"] = 5
    if known.get("vocabulary"):
        arguments |= {"in_channels": 6, "out_channels": 50, "channels": (5, 6)}
    sizes = (11,) if dim == 1 else (7, 5, 4)[:dim]
    return arguments, (2, *sizes) if known.get("vocabulary") else (2, 1, *sizes)


def network_case(mesh: DeviceMesh, name: str, changes: dict[str, Any], how: dict[str, Any]) -> dict[str, float]:
    """Compare a registered network, split, with itself."""
    arguments, shape = network_arguments(name)
    arguments |= changes
    dense = {**options_of(name), **arguments}.get("readout") == "dense"
    return compare(mesh, lambda: kf.create_model(name, **arguments), shape, how, dense)


def training_case(mesh: DeviceMesh, name: str, changes: dict[str, Any], steps: int) -> tuple[list[float], list[float]]:
    """Return the losses of a training of a split network, and of the whole one."""
    arguments, shape = network_arguments(name)
    losses = []
    for split in (True, False):
        torch.manual_seed(0)
        net = kf.create_model(name, **{**arguments, **changes}).double()
        if split:
            net = shard(net, mesh, full=True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        tokens = len(shape) == 2
        x = torch.randint(50, shape) if tokens else torch.randn(shape, dtype=torch.float64)
        with torch.no_grad():
            target = torch.randn_like(net.eval()(x))
        net.train()
        torch.manual_seed(1)
        losses.append([])
        for _ in range(steps):
            with sampled_once():
                penalty = 1e-3 * kf.kernel_l2(net) + 1e-3 * kf.kernel_norm(net, parameters="none")
                loss = (net(x) - target).square().mean() + penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    return losses[0], losses[1]


def coarse_case(mesh: DeviceMesh, processes: int) -> dict[str, float]:
    """Compare a network whose blocks are computed at half of the resolution."""

    def make() -> nn.Module:
        net = kf.DNArch(kf.CCNN(2, 3, size=24, channels=processes + 1, blocks=2, hidden=4, dropout=0.3))
        with torch.no_grad():
            net.resolution.offset.copy_(torch.tensor([-0.2, 0.1, 0.3, -0.1])[: net.resolution.offset.numel()])
        return net

    return compare(mesh, make, (2, 2, 23), {"mask": 0.8, "step": 1.0}, dense=False)


def _small(**arguments: Any) -> nn.Module:
    return kf.CCNN(1, 3, **{"size": 16, "channels": 4, "blocks": 1, "hidden": 4, "dropout": 0.1, **arguments})


def _other_mesh(mesh: DeviceMesh, *names: str) -> DeviceMesh:
    return init_device_mesh("cpu", (mesh.size(),), mesh_dim_names=names) if names else DeviceMesh("cpu", [0, 1])


#: networks that cannot be split, and signals that cannot be scattered
_REFUSED: dict[str, Callable[[DeviceMesh], Any]] = {
    "no context": lambda mesh: shard(_small(), _other_mesh(mesh, "data")),
    "no names": lambda mesh: shard(_small(), _other_mesh(mesh)),
    "channels": lambda mesh: shard(_small(channels=1), mesh),
    "layer": lambda mesh: shard(kf.create_model("p4cnn"), mesh),
    "nested layer": lambda mesh: shard(nn.Sequential(kf.CKConv(2, 2, size=8), nn.Conv1d(2, 2, 3)), mesh),
    "pair": lambda mesh: shard(_small(readout="pair"), mesh),
    "fixed shapes": lambda mesh: shard(kf.DNArch(_small(), fixed_shapes=True), mesh),
    "twice": lambda mesh: shard(shard(_small(), mesh), mesh),
    "scatter": lambda mesh: scatter(torch.randn(2, 1, 1), mesh),
    "gather": lambda mesh: gather(torch.randn(2, 1 + mesh.get_rank(), 4), mesh),
    "axis": lambda mesh: gather(torch.randn(2, 1, 4), mesh, axis=2 + mesh.get_rank()),
    "full": lambda mesh: shard(_small(), mesh, full=True)(torch.randn(2, 1, 1)),
}
#: inputs that at least one process has to refuse, by network, slab and rank
_WRONG: dict[str, Callable[[Any, Tensor, int], Any]] = {
    "batch": lambda net, x, rank: net(x[: 1 + rank % 2]),
    "empty": lambda net, x, rank: net(x[..., : 8 * (rank % 2)]),
    "dtype": lambda net, x, rank: net(x.double() if rank else x),
    "type": lambda net, x, rank: net(x if rank else "x"),
    "axes": lambda net, x, rank: net(x if rank else x.unsqueeze(-1)),
    "coords": lambda net, x, rank: net(x, coords=torch.rand(2, 8, 1) if rank else None),
    "training": lambda net, x, rank: net.train(rank == 0)(x),
    "step": lambda net, x, rank: net(x, step=1.0 + rank),
    "random": lambda net, x, rank: (torch.manual_seed(rank), net(x)),
    "part": lambda net, x, rank: net.stem(x),
}


def bad_input(mesh: DeviceMesh, what: str) -> None:
    """Build a network that cannot be split, or give one an input that at least one process has to refuse."""
    torch.manual_seed(0)
    if what in _REFUSED:
        _REFUSED[what](mesh)
    else:
        _WRONG[what](shard(_small(), mesh), torch.randn(2, 1, 8), mesh.get_rank())


def refused_case(mesh: DeviceMesh, name: str) -> None:
    """Split a registered network that is not continuous."""
    given = {"size": 8, "in_channels": 1, "out_channels": 2, "dim": 2, "channels": 4}
    needed = [key for key, value in options_of(name).items() if value is inspect.Parameter.empty]
    shard(kf.create_model(name, **{key: given[key] for key in needed}), mesh)


def still_works(mesh: DeviceMesh) -> bool:
    """Return whether the processes can still talk to each other."""
    x = torch.arange(10.0).view(1, 1, 10)
    return torch.equal(gather(scatter(x, mesh), mesh), x)


def parallel_case(mesh: DeviceMesh, strategy: str, steps: int) -> list[float]:
    """Return the differences of losses and of final weights between one process and a mesh with shares of the batch."""
    data = mesh["data"].size()
    torch.manual_seed(0)
    arguments = {"size": 13, "channels": 5, "blocks": 2, "hidden": 4, "sigma": 0.3, "dim": 1}
    whole = kf.CCNN(2, 3, **arguments).double()
    sample_full_kernels(whole)  # a mask of which each process holds a shard cannot be read
    split = shard(copy.deepcopy(whole), mesh, full=True, average_gradients=strategy == "own")
    if strategy == "fsdp":
        split = fully_shard(split, mesh=init_device_mesh("cpu", (mesh.size(),)))
    elif strategy == "ddp":
        split = nn.parallel.DistributedDataParallel(split)
    x, target = torch.randn(4, 2, 13, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    share = slice(mesh.get_local_rank("data") * 4 // data, (mesh.get_local_rank("data") + 1) * 4 // data)
    differences = []
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (split, whole)]
    for _ in range(steps):
        losses = [
            (split(x[share]) - target[share]).square().mean(),
            (whole(x) - target).square().mean(),
        ]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = losses[0].detach().clone()
        dist.all_reduce(mean)
        differences.append(float((mean / mesh.size() - losses[1].detach()).abs()))
    for p, q in zip(split.parameters(), whole.parameters(), strict=True):
        differences.append(largest(p.full_tensor() if strategy == "fsdp" else p, q))
    return differences


def _saved_bytes(net: nn.Module, x: Tensor) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, but for parameters."""
    known = {p.untyped_storage().data_ptr() for p in net.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = net(x)  # alive until the end: storages of freed tensors would be counted as one
    assert y.requires_grad
    return sum(kept.values())


def memory_case(mesh: DeviceMesh, name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> float:
    """Return the activations of a split network as a share of those of the whole one."""
    torch.manual_seed(0)
    whole = kf.create_model(name, **arguments)
    split = shard(copy.deepcopy(whole), mesh)
    x = torch.randn(shape)
    torch.manual_seed(0)
    return _saved_bytes(split, scatter(x, mesh)) / _saved_bytes(whole, x)

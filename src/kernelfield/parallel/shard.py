"""Split the signals of a network over the processes of a mesh."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._arguments import checked
from .._kinds import ListOf
from .._object_kinds import Instance
from ..fields import Field
from ..layers import (
    BatchNorm,
    CCNNBlock,
    ChannelNorm,
    ContinuousConv,
    CumulativeNorm,
    Dropout,
    Pointwise,
    SeparableConv,
    TwoConvBlock,
)
from ..masks import Mask
from ..models import CCNN, CKCNN, DNArch, FlexNet
from ..models.readout import PAIR, Embedding, Readout
from .agree import agree_on_input
from .band_limit import SplitBlock
from .conv import SplitConv
from .layers import (
    SplitBatchNorm,
    SplitCumulativeNorm,
    SplitDropout,
    SplitGroupNorm,
    SplitPointwise,
    SplitReadout,
)
from .scatter import gather_slabs, scatter_slabs
from .slabs import MESH, Slabs, space_axis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["shard"]

#: layers whose result at a position depends on others, and the mixin that exchanges values; subclasses come first
_SPLIT: dict[type[nn.Module], type[nn.Module]] = {
    ContinuousConv: SplitConv,
    BatchNorm: SplitBatchNorm,
    nn.GroupNorm: SplitGroupNorm,
    CumulativeNorm: SplitCumulativeNorm,
    Dropout: SplitDropout,
    Pointwise: SplitPointwise,
    Readout: SplitReadout,
    CCNNBlock: SplitBlock,
}
#: modules that treat all positions alike, or only call the modules inside them
_POINTWISE: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.Sequential, nn.ModuleList),
    *(ChannelNorm, Embedding, TwoConvBlock, SeparableConv, CCNN, CKCNN, FlexNet, DNArch),
)

Network = TypeVar("Network", bound=nn.Module)


@checked(network=Instance("torch.nn.Module"), mesh=MESH, pointwise=ListOf(Instance("builtins.type"), least=0))
def shard(
    network: Network,
    mesh: DeviceMesh,
    *,
    full: bool = False,
    average_gradients: bool = True,
    pointwise: Sequence[type[nn.Module]] = (),
) -> Network:
    r"""Split the signals of a network over the processes of a mesh, in place, and return the network.

    Each process holds a slab of the first axis of space. Up to rounding, its results are those that one process would
    compute from the whole signal. Weights, their names and the state dict do not change, so checkpoints can be
    exchanged between sharded and ordinary networks.

    Layers whose result at a position depends on other positions (convolutions, norms over space, readouts, dropout) get
    a class that exchanges values between processes. Gradients are those of the mean of all processes' losses, as in
    data parallel training.

    Args:
        network: one of the library's continuous networks, or any module made of its continuous layers.
        mesh: mesh with an axis "context", whose processes share samples, and perhaps an axis "data", whose processes
            have different samples; see :func:`make_mesh`.
        full: whether ``forward`` takes and returns whole signals, of which each process computes its slab. By default
            it takes and returns slabs; see :func:`scatter` and :func:`gather`. Readouts that pool over space give the
            same predictions on all processes in both cases.
        average_gradients: whether to average the gradients of parameters over the mesh at the end of each backward
            pass. Pass False if DistributedDataParallel or FSDP2 does so over all processes of the mesh.
        pointwise: further classes of modules that treat all positions alike, or only call the layers inside them, such
            as your own network.

    >>> mesh = make_mesh(context=4)                                # doctest: +SKIP
    >>> net = shard(CCNN(1, 10, size=1_000_000), mesh)             # doctest: +SKIP
    >>> net(scatter(x, mesh)).shape                                # doctest: +SKIP
    torch.Size([2, 10])
    """
    slabs = Slabs(mesh)
    found = list(_layers(network, (*_POINTWISE, *pointwise)))
    _check(network, found, slabs)
    if slabs.size == 1 and slabs.data_group is None:
        return network
    for module, mixin in found:
        module.__class__ = _split_class(type(module), mixin)
        module.slabs = slabs  # type: ignore[assignment]
    average = _Average(list(network.parameters()), slabs) if average_gradients else None
    network.register_forward_pre_hook(functools.partial(_before, slabs, full, average), with_kwargs=True)
    if full and any(isinstance(m, Readout) and m.kind == "dense" for m, _ in found):
        network.register_forward_hook(lambda _module, _args, y: gather_slabs(y, slabs, 2))
    return network


def _layers(
    network: nn.Module, pointwise: tuple[type[nn.Module], ...], name: str = ""
) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    """Yield the modules that depend on several positions, with their mixins; raise for one that cannot be split."""
    if isinstance(network, (Field, Mask)):
        return
    if hasattr(network, "slabs"):
        found = f"one whose layer {name} is sharded" if name else "a sharded one"
        raise ValueError(f"network must not be sharded already, got {found}")
    for kind, mixin in _SPLIT.items():
        if isinstance(network, kind):
            yield network, mixin
            break
    else:
        if not isinstance(network, pointwise):
            where = f"{name}, a {type(network).__name__}," if name else f"a {type(network).__name__},"
            raise TypeError(
                f"network must be made of layers that can be split over processes, got {where} which cannot"
            )
    for child, module in network.named_children():
        yield from _layers(module, pointwise, f"{name}.{child}" if name else child)


def _check(network: nn.Module, found: list[tuple[nn.Module, type[nn.Module]]], slabs: Slabs) -> None:
    """Raise for options of networks that cannot be split, and for more processes than channels."""
    for module in network.modules():
        if isinstance(module, Readout) and module.kind == PAIR:
            raise ValueError("network must not have the readout 'pair', whose two sequences lie on different processes")
        if isinstance(module, DNArch) and "resolution" in module.learn and module.fixed_shapes:
            raise ValueError("network must not be a DNArch that learns a resolution with fixed_shapes=True, got one")
    widths = [max(m.in_channels, m.out_channels) for m, _ in found if isinstance(m, ContinuousConv)]
    if widths and max(widths) < slabs.size:
        raise ValueError(
            f"mesh must have at most as many processes along 'context' as the convolutions of network have channels, "
            f"{max(widths)}, got {slabs.size}"
        )


_classes: dict[tuple[Any, Any], type[nn.Module]] = {}


def _split_class(kind: type[nn.Module], mixin: type[nn.Module]) -> type[nn.Module]:
    if (kind, mixin) not in _classes:
        _classes[kind, mixin] = type(f"Split{kind.__name__}", (mixin, kind), {"__doc__": mixin.__doc__})
    return _classes[kind, mixin]


def _before(
    slabs: Slabs, full: bool, average: _Average | None, network: nn.Module, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Cut whole inputs of a network into slabs, and let the processes agree on their inputs."""
    if average is not None:
        average.ready.clear()
    x, *others = args or (kwargs.pop("x"),)
    if full and isinstance(x, Tensor) and x.dim() >= 2 and x.shape[space_axis(x)] >= slabs.size:
        kwargs = {
            name: scatter_slabs(value, slabs, 1) if name in ("mask", "density") and isinstance(value, Tensor) else value
            for name, value in kwargs.items()
        }
        x = scatter_slabs(x, slabs, space_axis(x))
    elif full and isinstance(x, Tensor) and x.dim() >= 2:
        x = x.narrow(space_axis(x), 0, 0)  # too short for this many processes: the check below raises on all of them
    agree_on_input(network, x, kwargs, slabs)
    return (x, *others), kwargs


class _Average:
    """Average the gradients of parameters over a mesh, all at once at the end of a backward pass."""

    def __init__(self, parameters: list[nn.Parameter], slabs: Slabs) -> None:
        self.slabs = slabs
        self.ready: set[int] = set()
        self.parameters = parameters
        for i, parameter in enumerate(parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook(i))

    def _hook(self, i: int) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            if not self.ready:
                torch.autograd.Variable._execution_engine.queue_callback(self.average)  # noqa: SLF001
            self.ready.add(i)

        return hook

    @torch.no_grad()
    def average(self) -> None:
        """Average the gradients that this backward pass has changed."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for i in sorted(self.ready):
            grad = self.parameters[i].grad
            if grad is not None:
                by_dtype.setdefault(grad.dtype, []).append(grad)
        self.ready.clear()
        for grads in by_dtype.values():
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            for group in self.slabs.groups:
                dist.all_reduce(flat, group=group)
                flat /= dist.get_world_size(group)
            for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view_as(grad))

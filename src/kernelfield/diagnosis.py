"""What may be wrong with a network without an error: windows, steps, units, frequencies, optimiser."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._arguments import checked
from ._checks import floats_per_axis
from ._object_kinds import Instance
from .groups import Distribution
from .layers.continuous import ContinuousConv
from .layers.group.kernel import GroupKernel
from .masks import Mask
from .testing._compare import evaluation, other_signal, scale_of, signal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Finding", "diagnose"]

#: share of a kernel's energy beyond the Nyquist frequency of its grid, from which it is rough: for a layer on a grid,
#: where the edge of a narrow mask has such a share too, and for a layer that commutes with rotations
ROUGH, ROUGH_IN_TURNS = 0.4, 0.1
#: length of an input, in units of a layer's ``size``, from which the step may have been forgotten
LONG = 1.5
#: most points whose neighbours are counted, and most kernels of a layer that are looked at
MOST = 256
#: samples of a kernel between two points of its training grid
FINER = 4


@dataclass(frozen=True)
class Finding:
    """Something that may be wrong.

    Args:
        where: name of the module, or "output" or "optimizer".
        what: what was measured.
        remedy: what to do if that is not intended.

    >>> print(Finding("stem", "its kernel has a single point", "a larger sigma"))
    stem: its kernel has a single point. Remedy: a larger sigma.
    """

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. Remedy: {self.remedy}."


@checked(model=Instance("torch.nn.Module"), optimizer=Instance("torch.optim.Optimizer") | None)
def diagnose(
    model: nn.Module, *args: Any, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
) -> list[Finding]:
    """Return what may be wrong with a network although no call fails; an empty list if nothing was found.

    - A kernel holds frequencies that its training grid cannot, so it changes at other steps and under rotations.
    - With an input: a kernel that meets a single sample, an input that is longer than the layers' ``size`` without a
      ``step``, points that are out of each other's reach, or all at one place.
    - Also with an input: outputs that are not finite, that ignore the input, or that depend on the rest of the batch.
    - With an optimiser: parameters that it does not train, and masks or subsets of a group that it decays.

    A finding is a question, not an error: the thresholds are rough. The network and the random state stay as they are.

    Args:
        model: the network.
        *args: an input, as in training: the arguments of the network's forward pass.
        optimizer: the optimiser of the training.
        **kwargs: more arguments of the forward pass, such as ``step``.

    >>> from kernelfield import CCNN
    >>> net = CCNN(1, 2, size=64, channels=4, blocks=1)
    >>> diagnose(net, torch.randn(2, 1, 64))
    []
    >>> for finding in diagnose(net, torch.randn(2, 1, 200))[:1]:
    ...     print(finding)
    stem.depthwise: its input has 200 training steps and its kernel reaches 64. Remedy: step=0.32 if ...
    """
    found = [finding for name, module in model.named_modules() for finding in _of_kernel(name, module)]
    if args or kwargs:
        gpus = {p.device for p in model.parameters() if p.is_cuda}
        with torch.random.fork_rng(devices=list(gpus)), evaluation(model):
            found += _of_call(model, args, kwargs)
    if optimizer is not None:
        found += _of_optimizer(model, optimizer)
    return found


def _of_kernel(name: str, module: nn.Module) -> Iterator[Finding]:
    if isinstance(module, ContinuousConv):
        share = max(rough_share(_line(module, axis)) for axis in range(module.dim))
        if share > ROUGH:
            yield Finding(
                name,
                f"{100 * share:.0f} % of its kernel's energy lies beyond the Nyquist frequency of the training grid, "
                "so the kernel takes other values at a finer step",
                "a smaller omega_0 or bandwidth of its field, smooth=True or a penalty on aliasing",
            )
        counts = module.grid(None, (1.0,) * module.dim).count
        if any(count == 1 < n for count, n in zip(counts, module.size, strict=True)):
            what = "along an axis its kernel has a single point at the training step, where its mask cannot grow"
            yield Finding(name, what, "a larger sigma of its mask")
    if isinstance(module, GroupKernel) and module.disc is not None and module.field.lattice is None:
        share = rough_share(_radius(module))
        if share > ROUGH_IN_TURNS:
            yield Finding(
                name,
                f"{100 * share:.0f} % of its kernel's energy lies beyond the Nyquist frequency of its "
                f"{module.kernel_size} points, so the layer does not commute with rotations between them",
                "a smaller omega_0 or bandwidth of its field, or a larger kernel_size",
            )


@torch.no_grad()
def _line(layer: ContinuousConv, axis: int) -> Tensor:
    """Return kernel values along one axis through the origin, finer than the training grid: (kernels, points)."""
    size, low = layer.size[axis], 0.0 if layer.causal else -1.0
    count = FINER * round(size * (1.0 - low))
    coords = layer.reach.new_zeros(count, layer.dim)
    coords[:, axis] = low + torch.arange(count).to(coords) / (FINER * size)
    return layer.values(coords)[:, :MOST].mT


@torch.no_grad()
def _radius(kernel: GroupKernel) -> Tensor:
    """Return kernel values along the last axis of space at the identity, finer than the grid: (kernels, points)."""
    count = FINER * (kernel.kernel_size - 1)
    like = next(kernel.field.parameters())
    coords = like.new_zeros(count, kernel.field.dim)
    coords[:, -1] = torch.linspace(-1, 1, count + 1)[:-1].to(like)
    return kernel.field(coords)[:, :MOST].mT


def rough_share(values: Tensor) -> float:
    """Return the share of energy beyond the Nyquist frequency of every fourth of these values.

    Args:
        values: (kernels, points) values at a quarter of the step of a grid.

    >>> t = torch.arange(64.0)
    >>> fast, slow = torch.cos(2 * torch.pi * 0.2 * t), torch.cos(2 * torch.pi * 0.05 * t)
    >>> rough_share(fast[None]) > 0.9, rough_share(slow[None]) < 0.1
    (True, True)
    """
    points = values.shape[1]
    window = torch.hann_window(points, periodic=False, dtype=torch.float64)
    energy = torch.fft.rfft(values.double().cpu() * window).abs().square().sum(dim=0)
    # The window spreads each frequency over two more places.
    first = math.ceil(points / (2 * FINER)) + 2
    return float(energy[first:].sum() / energy.sum().clamp(min=torch.finfo(torch.float64).tiny))


def _of_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Finding]:
    with _listening(model) as found:
        result = model(*args, **kwargs)
    try:
        y = signal_of(result)
    except TypeError:  # of another form
        return found
    if not y.is_floating_point() or not y.numel():
        return found
    finite = y.isfinite()
    if not bool(finite.all()):
        bad = int((~finite).sum())
        remedy = "mask= for missing values, and finite inputs"
        return [*found, Finding("output", f"{bad} of {y.numel()} values are not finite", remedy)]
    x, call = _of_tensor(model, args, kwargs)
    if x is None:
        return found
    if torch.equal(call(other_signal(x)), y):
        found.append(Finding("output", "it is the same for another input", "a check of scales, masks and dead units"))
    elif len(y) == len(x) > 1:
        try:
            alone = call(x[:1])
        except (RuntimeError, ValueError, TypeError):  # other arguments have a batch axis too
            return found
        if alone.shape == y[:1].shape and float((alone - y[:1]).abs().max()) > 1e-2 * scale_of(y):
            what = "the first sample has another output alone than in its batch"
            found.append(Finding("output", what, "a norm other than of the batch at hand, or coords of each sample"))
    return found


def _of_tensor(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor | None, Callable[[Tensor], Tensor]]:
    """Return the first argument if it is a tensor, and the output as a function of it."""

    def call(x: Tensor) -> Tensor:
        return signal_of(model(x, *args[1:], **kwargs))

    return (args[0], call) if args and isinstance(args[0], Tensor) else (None, call)


@contextmanager
def _listening(model: nn.Module) -> Iterator[list[Finding]]:
    """Collect findings about the arguments of continuous layers inside the block."""
    found: list[Finding] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, ContinuousConv):

                def look(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name) -> None:
                    found.extend(_of_input(name, layer, args[0] if args else kwargs["x"], kwargs))

                handle = module.register_forward_pre_hook(look, with_kwargs=True)
                stack.callback(handle.remove)
        yield found


def _of_input(name: str, layer: ContinuousConv, x: Tensor, options: dict[str, Any]) -> Iterator[Finding]:
    steps = floats_per_axis("step", options.get("step", 1.0), layer.dim)
    coords = options.get("coords")
    if coords is not None:
        seen = x.shape[-1] - options.get("queries", 0)  # queries come last
        yield from _of_coords(name, layer, coords[..., :seen, :], options.get("mask"))
        return
    lengths = x.shape[2:]
    spans = [n * step for n, step in zip(lengths, steps, strict=True)]
    longest = max(range(layer.dim), key=lambda axis: spans[axis] / layer.size[axis])
    span, size = spans[longest], layer.size[longest]
    if span > LONG * size:
        yield Finding(
            name,
            f"its input has {span:g} training steps and its kernel reaches {size}",
            f"step={size / lengths[longest]:.3g} if both inputs take the same time; nothing if this one takes longer",
        )
    points = layer.grid(tuple(lengths), steps).count
    for axis, (count, n) in enumerate(zip(points, lengths, strict=True)):
        if count == 1 < n and steps[axis] != 1:
            what = f"its kernel has a single point along axis {axis} at step {steps[axis]:g}, so samples do not mix"
            yield Finding(name, what, "a larger sigma of its mask, or a smaller step")


def _of_coords(name: str, layer: ContinuousConv, coords: Tensor, mask: Tensor | None) -> Iterator[Finding]:
    """Yield findings on the points of the first sample; ``mask`` (batch, points) is True for seen ones, or None."""
    points = (coords if coords.dim() == 3 else coords[None])[0].double()
    seen = points.isfinite().all(dim=1)
    if mask is not None:
        seen = seen & mask[0, : len(seen)]
    points = points[seen]
    if len(points) < 2:
        return
    reach = layer.grid(None, (1.0,) * layer.dim)
    limits = torch.tensor(
        [max(abs(first), abs(first + n - 1)) for first, n in zip(reach.first, reach.count, strict=True)]
    )
    # Points may come in any order, so some of them are compared with all.
    apart = (points[:MOST, None] - points[None]).abs().cpu()
    meets = (apart <= limits).all(dim=2).sum(dim=1) - 1
    alone = float((meets == 0).double().mean())
    extent = float((points.amax(dim=0) - points.amin(dim=0)).amax())
    remedy = "coords in training steps: neighbouring samples of the training data differ by 1"
    if alone > 0.5:
        what = f"{100 * alone:.0f} % of the points have no other within its kernel's reach of {limits.tolist()}"
        yield Finding(name, what, remedy)
    elif extent < 1.0:
        what = f"all points lie within {extent:.2g} training steps, at the centre of its kernel"
        yield Finding(name, what, remedy)


def _of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Finding]:
    decay = {id(p): group.get("weight_decay", 0.0) for group in optimizer.param_groups for p in group["params"]}
    parameters = dict(model.named_parameters())
    missing = [name for name, p in parameters.items() if p.requires_grad and id(p) not in decay]
    if missing:
        what = f"it does not train {len(missing)} of {len(parameters)} parameters, such as {missing[0]}"
        yield Finding("optimizer", what, "optimizer.add_param_group, or an optimiser made after the last change")
    for kind, words in ((Mask, "masks"), (Distribution, "subsets of a group")):
        own = {id(p) for module in model.modules() if isinstance(module, kind) for p in module.parameters()}
        decayed = [name for name, p in parameters.items() if id(p) in own and decay.get(id(p), 0.0) > 0]
        if decayed:
            what = f"it decays parameters of {words}, such as {decayed[0]}, which pulls their sizes to zero"
            yield Finding("optimizer", what, "kernelfield.experiments.optim.parameter_groups")

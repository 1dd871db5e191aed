"""From long kernels to recurrences: networks that stream with constant memory and work."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._hooks import with_hooks_of
from .._kinds import POSITIVE, Choice, Int, ListOf
from .._object_kinds import IterableOf, MappingOf, TensorOf
from .causality import check_causal, convolutions, separate
from .exponentials import fit_kernels, scales
from .recurrent_conv import RecurrentConv

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..layers import ContinuousConv

__all__ = ["Distilled", "LayerReport", "distil"]

TAILS = ("auto", "cut", "decay")


@dataclass(frozen=True)
class LayerReport:
    """The result of distilling one convolution.

    Args:
        layer: name of the layer in the network.
        points: lags of its kernel at the training step.
        kernels: number of kernels, out · in / groups.
        order: largest number of oscillations of a kernel; 0 for a layer that was kept as it is.
        mean_order: mean number of oscillations.
        error: relative error over all kernels of the layer; over those tried, if the layer was kept.
        worst: largest relative error of a single kernel, relative to at least a hundredth of the kernels' mean size.
        reason: why the layer was kept, or an empty string.
    """

    layer: str
    points: int
    kernels: int
    order: int
    mean_order: float
    error: float
    worst: float
    reason: str = ""


@dataclass(frozen=True)
class Distilled:
    """The result of :func:`~kernelfield.streaming.distil` with a report.

    Args:
        network: the distilled network.
        layers: a report on each convolution.
        accuracy: share of correct predictions of the network and of the distilled one; None without data.
    """

    network: nn.Module
    layers: tuple[LayerReport, ...]
    accuracy: tuple[float, float] | None = None

    @property
    def change(self) -> float | None:
        """Change in accuracy, in percentage points."""
        return None if self.accuracy is None else 100 * (self.accuracy[1] - self.accuracy[0])

    def __str__(self) -> str:
        """Return a table of the layers, and the change in accuracy."""
        width = max([5, *(len(row.layer) for row in self.layers)])
        lines = [f"{'layer':{width}s} points  kernels  order   mean    error    worst"]
        for row in self.layers:
            numbers = f"{row.order:6d} {row.mean_order:6.1f} {row.error:8.1e} {row.worst:8.1e}"
            text = f"   kept: {row.reason}, error {row.error:.1e}" if row.reason else numbers
            lines.append(f"{row.layer:{width}s} {row.points:6d} {row.kernels:8d} {text}")
        if self.accuracy is not None:
            before, after = self.accuracy
            lines.append(f"accuracy {100 * before:.2f} → {100 * after:.2f} % ({self.change:+.2f} points)")
        return "\n".join(lines)


@checked(
    tolerance=POSITIVE,
    refine=Int(0),
    tail=Choice(*TAILS),
    data=IterableOf(ListOf(TensorOf(), count=2)) | None,
    state=MappingOf(TensorOf()) | None,
)
def distil(
    net: nn.Module,
    order: int | None = None,
    tolerance: float = 1e-3,
    *,
    max_order: int = 32,
    refine: int = 20,
    tail: str = "auto",
    data: Iterable[tuple[Tensor, Tensor]] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> Distilled:
    r"""Replace the long kernels of a causal network by sums of damped oscillations.

    .. math:: k(\tau) \approx \sum_{n=1}^{N} e^{-\alpha_n \tau}
        \big(a_n \cos \omega_n \tau + b_n \sin \omega_n \tau\big)

    The poles come from the sampled kernel in closed form (Hankel matrix, matrix pencil), the weights from least
    squares, and Gauss-Newton steps lower the error further; see ``streaming.exponentials``. The result is an ordinary
    network of :class:`.RecurrentConv`: it takes whole sequences in parallel and can be trained further.
    :func:`~kernelfield.streaming.stream` runs it with constant memory and work per sample.

    Args:
        net: a causal network, which is not changed. A layer that it uses twice becomes two.
        order: number of oscillations of every kernel. If not given, each kernel has as few as ``tolerance`` allows, and
            a layer is kept as it is if it needs more than ``max_order``, or if its kernels are too short to gain.
        tolerance: accepted relative error of a kernel.
        max_order: largest number of oscillations, if ``order`` is not given.
        refine: Gauss-Newton steps after the closed form.
        tail: how a kernel ends. "cut" ends it at its last lag, as in the network, and needs memory for that many
            samples. "decay" lets the oscillations go on, in constant memory; outputs differ from the network's for
            inputs longer than the kernel. "auto" cuts masked kernels, which end abruptly, and lets others decay.
        data: batches of inputs and classes to measure the accuracy before and after.
        state: state dict of a network distilled from one like ``net``, to rebuild it without fitting.

    Returns:
        The network, with a report on each layer.

    >>> import kernelfield as kf
    >>> net = kf.CKCNN(in_channels=1, out_channels=4, size=100, channels=3, blocks=1, norm="batch").eval()
    >>> result = kf.distil(net, tolerance=1e-2)
    >>> max(row.error for row in result.layers) < 1e-2
    True
    >>> x = torch.randn(1, 1, 100)
    >>> y = kf.stream(result.network).push(x)[..., -1]
    >>> torch.allclose(y, result.network(x), atol=1e-4)
    True
    """
    check_causal(net)
    network = separate(copy.deepcopy(net))
    rows = []
    for name, layer in convolutions(network).items():
        if isinstance(layer, RecurrentConv):
            continue
        if state is None:
            made, row = _distil_layer(name, layer, order, tolerance, max_order, refine, tail)
            rows.append(row)
        else:
            made = _rebuilt(name, layer, state)
        if made is not None:
            with_hooks_of(layer, made)
            if name == "":
                network = made
            else:
                network.set_submodule(name, made)
    if state is not None:
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"state must come from a network distilled from one like net: {error}") from error
    accuracy = None if data is None else _accuracies(net, network, data)
    return Distilled(network, tuple(rows), accuracy)


@torch.no_grad()
def _distil_layer(
    name: str, layer: ContinuousConv, order: int | None, tolerance: float, max_order: int, refine: int, tail: str
) -> tuple[RecurrentConv | None, LayerReport]:
    """Return a distilled layer, or None if the layer should be kept, and the report on it."""
    values = layer.kernel().detach().flatten(0, 1).double().cpu()
    points = int((values != 0).any(dim=0).nonzero().max()) + 1 if bool(values.any()) else 1
    values = values[:, :points]
    what: dict[str, Any] = {"layer": name, "points": points, "kernels": len(values)}
    kept: dict[str, Any] = {"order": 0, "mean_order": 0.0, "error": 0.0, "worst": 0.0}
    if order is None and points <= 4 * max_order:
        # The kernel takes no more products per sample than the oscillations would, and has no error.
        return None, LayerReport(**what, **kept, reason="a short kernel")
    options: dict[str, Any] = {"tolerance": tolerance, "refine": refine, "max_order": max_order}
    fit, orders, errors = fit_kernels(values, order=order, stop=order is None, **options)
    if order is None and float(errors.max()) > tolerance:
        found: dict[str, Any] = {
            "error": _relative(fit.values(points), values[: len(errors)]),
            "worst": float(errors.max()),
        }
        reason = f"{max_order} oscillations do not reach the tolerance"
        return None, LayerReport(**what, **{**kept, **found}, reason=reason)
    cut = tail == "cut" or (tail == "auto" and layer.mask is not None)
    made = RecurrentConv(
        layer.in_channels,
        layer.out_channels,
        order=fit.damping.shape[1],
        reach=float(points) if cut else None,
        depthwise=layer.groups > 1,
        bias=layer.bias is not None,
    ).to(layer.reach if layer.bias is None else layer.bias)  # kernels stay in float32 in half precision
    made.log_damping.copy_(fit.damping.log())
    for parameter, tensor in zip((made.frequency, made.cosine, made.sine), fit.tensors()[1:], strict=True):
        parameter.copy_(tensor)
    if layer.bias is not None and made.bias is not None:
        made.bias.copy_(layer.bias)
    mean = float(orders.double().mean())
    # The error of the layer as stored, including the rounding of its parameters.
    stored = made.kernel(points).flatten(0, 1).double().cpu()
    worst = float(((stored - values).norm(dim=1) / scales(values)).max())
    found = {"error": _relative(stored, values), "worst": worst}
    return made.train(layer.training), LayerReport(**what, order=int(orders.max()), mean_order=mean, **found)


def _relative(values: Tensor, wanted: Tensor) -> float:
    return float((values - wanted).norm() / wanted.norm().clamp(min=1e-300))


def _rebuilt(name: str, layer: ContinuousConv, state: Mapping[str, Tensor]) -> RecurrentConv | None:
    """Return a layer of the shapes in a state dict, or None if the layer was kept."""
    prefix = f"{name}." if name else ""
    damping = state.get(f"{prefix}log_damping")
    if damping is None:
        return None
    kernels = layer.out_channels * layer.in_channels // layer.groups
    if damping.dim() != 2 or damping.shape[0] != kernels:
        raise ValueError(
            f"state must come from a network distilled from one like net, got {prefix}log_damping of shape "
            f"{tuple(damping.shape)} for {kernels} kernels"
        )
    made = RecurrentConv(
        layer.in_channels,
        layer.out_channels,
        order=damping.shape[1],
        depthwise=layer.groups > 1,
        bias=layer.bias is not None,
    )
    return made.to(layer.reach if layer.bias is None else layer.bias).train(layer.training)


@torch.no_grad()
def _accuracies(net: nn.Module, distilled: nn.Module, data: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the shares of correct predictions of both networks."""
    modes = net.training, distilled.training
    correct, total = [0, 0], 0
    for inputs, classes in data:
        total += classes.numel()
        for i, network in enumerate((net, distilled)):
            correct[i] += int((network.eval()(inputs).argmax(dim=1) == classes).sum())
    net.train(modes[0])
    distilled.train(modes[1])
    if not total:
        raise ValueError("data must hold at least one sample, got none")
    return correct[0] / total, correct[1] / total

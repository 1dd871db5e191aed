"""Penalties that a recipe adds to the loss by name, and the parts of a network that each of them acts on."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._checks import check_choice
from ..groups import monotonicity
from ..layers import PartialGroupConv, aliasing_loss, kernel_l2, kernel_norm, wavelet_loss
from ..layers.group.wavelets import penalised_wavelets
from ..layers.penalties import OTHER_PARAMETERS, penalised_filters, penalised_layers
from ..models import Augerino, DNArch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

__all__ = ["PARTS", "REGULARIZERS", "Penalty", "missing_part", "read_penalties"]


def _monotonicity(network: nn.Module) -> Tensor:
    # One distribution per layer: the factors of a product do not count separately, and only learned ones count.
    learned = [m.distribution for m in network.modules() if isinstance(m, PartialGroupConv)]
    return monotonicity(learned) if learned else torch.zeros(())


def _augerino(network: nn.Module) -> Tensor:
    return network.regulariser() if isinstance(network, Augerino) else torch.zeros(())


def _complexity(network: nn.Module, target: float | None = None) -> Tensor:
    return network.complexity_loss(target) if isinstance(network, DNArch) else torch.zeros(())


#: penalties by name; each is a function of the network, and zero for a network without the part that it acts on
REGULARIZERS: dict[str, Callable[..., Tensor]] = {
    "kernel_l2": kernel_l2,
    "kernel_norm": kernel_norm,
    "aliasing": aliasing_loss,
    "augerino": _augerino,
    "monotonicity": _monotonicity,
    "complexity": _complexity,
    "wavelet": wavelet_loss,
}

#: the part of a network that each penalty acts on
PARTS = {
    "kernel_l2": "kernels that a field generates",
    "kernel_norm": "kernels that a field generates",
    "aliasing": "kernels of filter networks, such as MAGNet, whose highest frequency is known",
    "augerino": "learned distribution over transformed inputs, as in Augerino",
    "monotonicity": "two or more layers with a learned subset of a group",
    "complexity": "learned architecture, as in DNArch",
    "wavelet": "kernels on dilations with two or more points",
}


@dataclass(frozen=True)
class Penalty:
    """A penalty with its weight and arguments.

    Args:
        name: name in :data:`REGULARIZERS`.
        weight: factor on the penalty in the loss.
        arguments: further arguments of the penalty.
    """

    name: str
    weight: float
    arguments: dict[str, Any]

    def __call__(self, network: nn.Module) -> Tensor:
        """Return the weighted penalty."""
        return self.weight * REGULARIZERS[self.name](network, **self.arguments)


def read_penalties(regularizers: dict[str, Any]) -> list[Penalty]:
    """Return the penalties that section ``regularizers`` of a recipe describes.

    >>> read_penalties({"kernel_norm": {"weight": 1e-4, "parameters": "biases"}})
    [Penalty(name='kernel_norm', weight=0.0001, arguments={'parameters': 'biases'})]
    """
    return [_read(name, value) for name, value in regularizers.items()]


def missing_part(penalty: Penalty, network: nn.Module) -> str:
    """Return the part without which a penalty has no gradient, if the network lacks it; otherwise "".

    >>> from kernelfield import CCNN
    >>> network = CCNN(1, 10, size=8, channels=4, blocks=1)
    >>> [missing_part(p, network) for p in read_penalties({"kernel_l2": 1, "complexity": 1})]
    ['', 'learned architecture, as in DNArch']
    """
    if penalty.name in ("augerino", "monotonicity", "complexity"):
        acts = REGULARIZERS[penalty.name](network, **penalty.arguments).requires_grad
    elif penalty.name == "aliasing":
        acts = _learns(layer.field for layer in penalised_filters(network))
    elif penalty.name == "wavelet":
        acts = _learns(penalised_wavelets(network))
    elif penalty.name == "kernel_norm" and penalty.arguments.get("parameters", "all") == "all":
        acts = _learns([network])
    else:
        acts = _learns(penalised_layers(network))
    return "" if acts else PARTS[penalty.name]


def _learns(modules: Iterable[nn.Module]) -> bool:
    return any(p.requires_grad for module in modules for p in module.parameters())


def _read(name: str, value: Any) -> Penalty:
    check_choice("regularizers", name, REGULARIZERS)
    arguments = dict(value) if isinstance(value, dict) else {"weight": value}
    weight = arguments.pop("weight", None)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise TypeError(f"regularizers.{name} must be a weight or hold one as 'weight', got {value!r}")
    if not 0 <= weight < math.inf:
        raise ValueError(f"regularizers.{name} must have a finite weight of at least 0, got {weight}")
    taken = inspect.signature(REGULARIZERS[name]).parameters
    for argument, given in arguments.items():
        if argument not in taken:
            listed = ", ".join(list(taken)[1:]) or "nothing"
            raise ValueError(f"regularizers.{name} takes weight, {listed}; got {argument!r}")
        usual = taken[argument].default
        if isinstance(usual, str):
            check_choice(f"regularizers.{name}.{argument}", given, OTHER_PARAMETERS)
            continue
        if isinstance(usual, bool) != isinstance(given, bool) or not isinstance(given, (int, float, type(usual))):
            kind = "true or false" if isinstance(usual, bool) else "a number"
            raise TypeError(f"regularizers.{name}.{argument} must be {kind}, got {given!r}")
    return Penalty(name, float(weight), arguments)

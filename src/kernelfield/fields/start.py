r"""Published starting values of fields, by name.

Each publication initialised its kernel networks in its own way, and the results of short training runs depend on it. A
field takes the name of one of these starts:

========== ================================ ==========================================================================
start      fields                           values
========== ================================ ==========================================================================
"ccnn"     filter networks (chapter 3)      phases 0; hidden maps :math:`U(\pm\sqrt{3/n})` with biases 1; last map
                                            :math:`U(\pm\sqrt{3/n})` with bias 0, divided by √points in a layer
"flexconv" filter networks (chapter 5)      phases :math:`U(\pm\pi)`; hidden and last maps :math:`U(\pm 1/\sqrt n)`,
                                            biases too; not scaled by the layer
"siren"    SIREN, as intended               weights :math:`U(\pm 1/D)`, then :math:`U(\pm\sqrt{6/n}/\omega_0)`; one
                                            period of phases; last bias 0; unit gain measured in the layer
"ckconv"   SIREN, as chapter 2 trained it   weights :math:`U(\pm 1/\sqrt n)`; all biases :math:`U(\pm 1)`; weight norm
"flexconv" SIREN (chapter 5)                weights as intended; biases :math:`U(\pm 1/\sqrt n)`
"partial"  SIREN (chapter 11)               weights as intended; biases 0
========== ================================ ==========================================================================

with n inputs of a map and D coordinates. Where the authors' kernel spans :math:`[-1, 1]` over one input, the kernel of
a continuous layer here spans :math:`[0, 1]`: widths of masks are half of the published ones, the ω₀ of a SIREN's first
layer is twice the published one, and the ω₀ of filter networks is the published one. Chapter 3's phases are 0 in the
middle of :math:`[-1, 1]`, which for a causal kernel is ½ here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FILTER_STARTS", "SCALING", "SIREN_STARTS", "start_maps_", "start_sines_", "start_siren_"]

#: starts of filter networks
FILTER_STARTS = ("ccnn", "flexconv")
#: starts of a SIREN
SIREN_STARTS = ("siren", "ckconv", "flexconv", "partial")
#: How a layer scales a kernel with these starting values. "points": it divides the last map by √(inputs · points),
#: counting the points inside the initial mask. "measured": it measures the kernel's gain and divides by it. "none": it
#: does not scale.
SCALING = {"ccnn": "points", "flexconv": "none", "siren": "measured", "ckconv": "none", "partial": "none"}


@torch.no_grad()
def start_sines_(
    start: str,
    frequency: Tensor,
    phase: Tensor,
    gamma: Tensor,
    *,
    omega_0: float | None,
    bandwidth: float,
    origin: float = 0.0,
) -> None:
    r"""Draw the sines :math:`\sin(W x + b)` of a filter network, in place.

    .. math:: W \sim U(\pm 1/\sqrt D) \cdot 2\pi\omega_0\gamma \quad\text{or, without } \omega_0, \quad
        W \sim U(\pm 2\pi\, \mathrm{bandwidth})

    Args:
        start: "ccnn" or "flexconv".
        frequency: (filters, hidden, dim) angular frequencies W.
        phase: (filters, hidden) phases b.
        gamma: inverse widths of the envelopes, which broadcast to ``frequency``.
        omega_0: the published frequency scale.
        bandwidth: the highest frequency of a sine, in cycles per unit of coordinate, where there is no ω₀.
        origin: coordinate along each axis at which the phases of "ccnn" are 0.

    >>> frequency, phase = torch.empty(4, 32, 1), torch.empty(4, 32)
    >>> start_sines_("ccnn", frequency, phase, torch.ones(()), omega_0=None, bandwidth=16.0)
    >>> bool((frequency.abs() <= 2 * math.pi * 16).all()), bool((phase == 0).all())
    (True, True)
    """
    if omega_0 is None:
        frequency.uniform_(-2 * math.pi * bandwidth, 2 * math.pi * bandwidth)
    else:
        highest = 2 * math.pi * omega_0 / math.sqrt(frequency.shape[-1])
        frequency.uniform_(-highest, highest).mul_(gamma)
    if start == "ccnn":
        phase.copy_(-origin * frequency.sum(dim=-1))
    else:
        phase.uniform_(-math.pi, math.pi)


@torch.no_grad()
def start_maps_(start: str, hidden: Sequence[nn.Linear], last: nn.Linear) -> None:
    """Draw the linear maps of a filter network, in place.

    Args:
        start: "ccnn" or "flexconv".
        hidden: the hidden maps.
        last: the map to the field's values.

    >>> maps = [nn.Linear(32, 32), nn.Linear(32, 5)]
    >>> start_maps_("ccnn", maps[:1], maps[1])
    >>> bool((maps[0].bias == 1).all()), bool((maps[1].bias == 0).all())
    (True, True)
    """
    for linear in (*hidden, last):
        bound = 1 / math.sqrt(linear.in_features)
        if start == "ccnn":
            linear.weight.uniform_(-math.sqrt(3) * bound, math.sqrt(3) * bound)
            linear.bias.fill_(0.0 if linear is last else 1.0)
        else:
            linear.weight.uniform_(-bound, bound)
            linear.bias.uniform_(-bound, bound)


@torch.no_grad()
def start_siren_(start: str, linears: Sequence[nn.Linear], *, hidden_omega_0: float, omega_0: float) -> None:
    """Draw the linear maps of a SIREN, in place.

    Args:
        start: "siren", "ckconv", "flexconv" or "partial".
        linears: all linear maps, the last one without a sine.
        hidden_omega_0: factor inside the sines of the hidden layers.
        omega_0: factor inside the sines of the first layer.

    >>> maps = [nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 5)]
    >>> start_siren_("partial", maps, hidden_omega_0=10.0, omega_0=10.0)
    >>> all(bool((linear.bias == 0).all()) for linear in maps)
    True
    """
    for i, linear in enumerate(linears):
        n = linear.in_features
        default = 1 / math.sqrt(n)
        intended = 1 / n if i == 0 else math.sqrt(6 / n) / hidden_omega_0
        # One period of phases. (The thesis draws from U(±π/‖W‖), which repeats the same phases over many periods.)
        period = 0.0 if linear is linears[-1] else math.pi / (omega_0 if i == 0 else hidden_omega_0)
        _uniform_(linear.weight, default if start == "ckconv" else intended)
        _uniform_(linear.bias, {"siren": period, "ckconv": 1.0, "flexconv": default, "partial": 0.0}[start])


def _uniform_(tensor: Tensor, bound: float) -> Tensor:
    """Fill ``tensor`` with draws from U(±bound); a bound of 0 draws no random numbers."""
    return tensor.uniform_(-bound, bound) if bound else tensor.zero_()

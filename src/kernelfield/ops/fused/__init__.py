r"""Operations between convolutions: norms, linear maps of the channels, GELU, dropout, residual sums.

Each of these does little arithmetic but reads and writes a whole signal, so its cost is the number of passes over
memory. On a GPU the operators here take as few passes as their dependencies allow. Bias, GELU, dropout and residual sum
take one pass together, batch statistics one, and the norm one; likewise in the backward pass. Only inputs are saved for
the backward pass, which recomputes the dropout mask.

Layers call these functions and never choose a path; :mod:`kernelfield.ops.backend` does. The plain formulas of
``reference`` run on the CPU, in torch.compile (which fuses operations itself), in torch.export and torch.func, for
second derivatives, and if fast paths are turned off. Triton is imported by the first call that needs it.

This file has the operators. ``channel_map``, ``dropout``, ``synced_norm`` (statistics of all processes) and
``folded_norm`` (groups) are their torch parts; ``triton/`` has the kernels.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from ..backend import use_triton
from . import reference
from .channel_map import map_channels, map_with_bias
from .dropout import drop
from .reference import mapped_offset

__all__ = ["activate", "batch_norm", "drop", "linear", "map_channels", "mapped_offset", "norm_with_identity"]


def activate(
    x: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = "gelu",
    dropout: float = 0.0,
    dropout_channels: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`r + \mathrm{drop}(\sigma(x + b))`.

    Args:
        x: (batch, channels, \*space) signal.
        bias: (channels,) bias b.
        activation: "gelu", "relu" or None.
        dropout: probability p of a zero; other values are multiplied by 1/(1 - p). Pass 0 in evaluation.
        dropout_channels: whether to drop whole channels, with one draw per sample and channel, instead of single
            values.
        residual: signal r to add at the end.

    >>> x, b = torch.randn(2, 3, 8), torch.randn(3)
    >>> torch.equal(activate(x, b, residual=x), torch.nn.functional.gelu(x + b[:, None]) + x)
    True
    """
    fits = activation == "gelu" and dropout < 1 and (residual is None or residual.shape == x.shape)
    if fits and use_triton(x):
        return _kernels().FusedActivate.apply(x, bias, residual, dropout, dropout_channels)
    return reference.activate(x, bias, activation, dropout, dropout_channels, residual)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    offset: Tensor | None = None,
    activation: str | None = None,
    dropout: float = 0.0,
    dropout_channels: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`r + \mathrm{drop}(\sigma(W (x + o) + b))`, with W applied to the channels at every position.

    Args:
        x: (batch, in, \*space) signal.
        weight: (out, in) matrix W.
        bias: (out,) bias b.
        offset: (in,) vector o; W o is added to the bias, which is cheaper than adding o to the signal.
        activation: "gelu", "relu" or None.
        dropout: probability of a zero; pass 0 in evaluation.
        dropout_channels: whether to drop whole channels instead of single values.
        residual: (batch, out, \*space) signal r to add at the end.

    Returns:
        (batch, out, \*space) signal.

    >>> x, w, b = torch.randn(2, 3, 8), torch.randn(5, 3), torch.randn(5)
    >>> torch.allclose(linear(x, w, b), torch.einsum("oi,bit->bot", w, x) + b[:, None], atol=1e-5)
    True
    """
    if not use_triton(x):
        if offset is not None:
            bias = mapped_offset(offset, weight, bias)
        return reference.linear(x, weight, bias, activation, dropout, dropout_channels, residual)
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    fits = residual is None or residual.shape == (len(x), len(weight), *x.shape[2:])
    if activation == "gelu" and dropout < 1 and fits:
        return _kernels().FusedLinear.apply(x, weight, bias, offset, residual, dropout, dropout_channels)
    if offset is not None:
        bias = mapped_offset(offset, weight, bias)
    return reference.activate(map_with_bias(x, weight, bias), None, activation, dropout, dropout_channels, residual)


@functools.cache
def _kernels() -> Any:
    """Return the module of the Triton kernels, imported at the first call."""
    return importlib.import_module(".triton.launch", __name__)


def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Tensor:
    r"""Return :math:`\sigma\big(w (x - \mu)/\sqrt{s^2 + \epsilon} + b\big)`.

    The arguments are those of :func:`norm_with_identity`.

    >>> y = batch_norm(torch.randn(4, 3, 100))
    >>> bool(y.mean().abs() < 1e-6)
    True
    """
    return norm_with_identity(x, weight, bias, running, **options)[0]


def norm_with_identity(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running: tuple[Tensor, Tensor] | None = None,
    *,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return :func:`batch_norm` of ``x``, and ``x`` itself for an identity branch.

    Use the second result in place of ``x`` from then on. The pass that writes the gradient of the norm then also adds
    the gradient of the identity branch.

    Mean and variance are those of the batch in training, or if there are no running statistics.

    Args:
        x: (batch, channels, \*space) signal.
        weight: (channels,) factors w; None for ones.
        bias: (channels,) bias b.
        running: running mean and variance, (channels,) each; updated in place in training.
        training: whether to use the statistics of the batch.
        momentum: weight of the batch in the running averages.
        eps: added to the variance.
        activation: "gelu", "relu" or None.

    >>> x = torch.randn(4, 3, 100)
    >>> y, same = norm_with_identity(x)
    >>> torch.equal(same, x)
    True
    """
    fits = (training or running is None) and (weight is None) == (bias is None)
    if fits and x.numel() > x.shape[1] and use_triton(x):
        gelu = activation == "gelu"
        y, same = _kernels().FusedNorm.apply(x, weight, bias, running, momentum, eps, gelu)
        return (y if gelu else reference.activate(y, None, activation, 0.0, False, None)), same
    return reference.batch_norm(x, weight, bias, running, training, momentum, eps, activation), x

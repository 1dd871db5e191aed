"""Pointwise layers for streams: one sample at a time, with weights that do not change."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from .._hooks import has_hooks
from ..layers import BatchNorm, Pointwise, SeparableConv
from ..ops.fused import activate

__all__ = ["FixedNorm", "FixedPointwise", "fold_bias", "with_fixed_layers"]


class FixedPointwise(Pointwise):
    """A :class:`~kernelfield.layers.Pointwise` with little overhead per call.

    A network that reads single samples spends most of its time in call overhead. This layer skips the checks and the
    choice of a fused kernel, and maps one sample by a matrix-vector product.

    Args:
        layer: the layer; its tensors are shared.
    """

    def __init__(self, layer: Pointwise) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.weight, self.bias = layer.weight, layer.bias

    def forward(
        self,
        x: Tensor,
        *,
        offset: Tensor | None = None,
        active: Any = None,
        activation: str | None = None,
        residual: Tensor | None = None,
        **dropout: Any,
    ) -> Tensor:
        """Return (batch, out, n) for the next samples (batch, in, n); arguments as in ``Pointwise``."""
        if x.shape[-1] != 1 or offset is not None or active is not None or x.dim() != 3:
            epilogue = {"activation": activation, "residual": residual, **dropout}
            return super().forward(x, offset=offset, active=active, **epilogue)
        y = self._map(x.squeeze(-1)).unsqueeze(-1)
        if activation is not None:
            y = F.gelu(y) if activation == "gelu" else F.relu(y)
        return y if residual is None else y.add_(residual)

    def _map(self, x: Tensor) -> Tensor:
        if len(x) > 1 or not x.is_cuda or not torch.compiler.is_compiling():
            return F.linear(x, self.weight, self.bias)
        # The compiler fuses a sum with the operations around it, but not a library's matrix product.
        y = (self.weight * x).sum(dim=-1).unsqueeze(0)
        return y if self.bias is None else y + self.bias


class FixedNorm(BatchNorm):
    """A :class:`~kernelfield.layers.BatchNorm` in evaluation mode: one product and one sum per value.

    Args:
        norm: the norm, with running statistics.
    """

    def __init__(self, norm: BatchNorm) -> None:
        nn.Module.__init__(self)
        self.num_features = norm.num_features
        assert norm.running_mean is not None
        assert norm.running_var is not None
        dtype = torch.promote_types(norm.running_var.dtype, torch.float32)
        scale = torch.rsqrt(norm.running_var.to(dtype) + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean.to(dtype) * scale
        shift = shift if norm.bias is None else shift + norm.bias
        self.register_buffer("scale", scale.to(dtype).unsqueeze(-1), persistent=False)
        self.register_buffer("shift", shift.to(dtype).unsqueeze(-1), persistent=False)

    scale: Tensor
    shift: Tensor

    def forward(
        self,
        input: Tensor,  # noqa: A002
        *,
        active: Any = None,
        activation: str | None = None,
        with_identity: bool = False,
    ) -> Any:
        """Return the normalised values of the next samples; arguments as in ``BatchNorm``."""
        scale, shift = self.scale, self.shift
        if active is not None and active.channels is not None:
            scale, shift = scale[: active.channels[0]], shift[: active.channels[0]]
        y = torch.addcmul(shift, input, scale)
        y = y if y.dtype == input.dtype else y.to(input.dtype)
        y = y if activation is None else activate(y, activation=activation)
        return (y, input) if with_identity else y

    def extra_repr(self) -> str:
        return str(self.num_features)


def fold_bias(module: nn.Module) -> None:
    """Fold the depthwise bias of a separable convolution into its pointwise bias, once instead of at every sample."""
    if not isinstance(module, SeparableConv) or has_hooks(module.pointwise, module.depthwise):
        return
    first, last = module.depthwise, module.pointwise
    if any(map(is_parametrized, (first, last))) or first.bias is None or last.bias is None:
        return  # a bias that is computed at every call cannot be replaced
    _, bias = last.active_parameters(offset=first.bias)
    assert bias is not None
    # Not in place, since layers may share a bias.
    last.bias, first.bias = nn.Parameter(bias.detach(), requires_grad=False), None


def with_fixed_layers(network: nn.Module) -> nn.Module:
    """Replace the pointwise maps and batch norms of a network in evaluation mode by fixed ones, and return it."""
    for name, module in list(network.named_modules()):
        made: nn.Module | None = None
        if has_hooks(module):
            continue
        if type(module) is Pointwise:
            made = FixedPointwise(module)
        elif type(module) is BatchNorm and module.running_mean is not None:
            made = FixedNorm(module)
        if made is not None and name == "":
            return made.eval()
        if made is not None:
            network.set_submodule(name, made.eval())
    return network

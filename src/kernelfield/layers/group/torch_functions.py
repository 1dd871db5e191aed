"""Torch functions that accept a signal on a group, and the layers that take the place of some others."""

from __future__ import annotations

__all__ = ["POINTWISE", "replacement"]

#: names of torch functions that act on each value separately and therefore accept a signal
_ACTIVATIONS = ("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh")
_MORE_ACTIVATIONS = ("softplus", "softsign", "logsigmoid", "hardtanh", "hardswish", "hardsigmoid", "dropout", "prelu")
_RARE_ACTIVATIONS = ("softshrink", "hardshrink", "tanhshrink", "threshold", "_threshold", "rrelu")
_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "true_divide", "neg", "abs", "square", "sqrt", "exp", "log", "clamp")
_MORE_ARITHMETIC = ("pow", "sin", "cos", "maximum", "minimum")
_OPERATORS = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__")
POINTWISE = frozenset(
    (*_ACTIVATIONS, *_MORE_ACTIVATIONS, *_RARE_ACTIVATIONS, *_ARITHMETIC, *_MORE_ARITHMETIC, *_OPERATORS)
)

#: layers for signals in place of torch functions with these parts in their names; the first part that fits counts
_LAYERS = {
    "batch_norm": "GroupBatchNorm",
    "norm": "GroupLayerNorm",
    "dropout": "GroupDropout",
    "adaptive": "GroupPool",
    "pool": "SpatialPool",
    "interpolate": "SpatialUpsample",
    "conv": "GroupConv",
}


def replacement(name: str) -> str:
    """Return a hint at the layer to use in place of a torch function; "" if there is none.

    >>> replacement("max_pool2d"), replacement("softmax")
    ('; kernelfield.layers.SpatialPool takes one', '')
    """
    layer = next((layer for part, layer in _LAYERS.items() if part in name), "")
    return f"; kernelfield.layers.{layer} takes one" if layer else ""

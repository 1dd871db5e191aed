"""Layers and networks whose kernels are fields: continuous functions, sampled wherever the data lives."""

from . import fields, grids, layers, masks, models, ops, testing
from ._version import __version__
from .layers import CKConv, FlexConv, SeparableConv, aliasing_loss, kernel_l2
from .models import CCNN, CKCNN, FlexNet, FlexTCN, create_model, list_models

__all__ = [
    "CCNN",
    "CKCNN",
    "CKConv",
    "FlexConv",
    "FlexNet",
    "FlexTCN",
    "SeparableConv",
    "__version__",
    "aliasing_loss",
    "create_model",
    "fields",
    "grids",
    "kernel_l2",
    "layers",
    "list_models",
    "masks",
    "models",
    "ops",
    "testing",
]

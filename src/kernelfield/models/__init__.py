"""Networks, one file per family, and a registry of named configurations."""

from .ccnn import CCNN
from .ckcnn import CKCNN, FlexTCN
from .flexnet import FlexNet
from .registry import create_model, list_models, register

__all__ = ["CCNN", "CKCNN", "FlexNet", "FlexTCN", "create_model", "list_models", "register"]

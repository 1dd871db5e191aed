"""Pretrained weights: files, the catalogue of available weights, and networks built from them."""

from .catalog import find_weight, list_weights, weight_folders
from .hub import from_pretrained, save_pretrained
from .load import create_from_weight, describe_weight
from .weight_file import read_description, read_weight, write_weight

__all__ = [
    "create_from_weight",
    "describe_weight",
    "find_weight",
    "from_pretrained",
    "list_weights",
    "read_description",
    "read_weight",
    "save_pretrained",
    "weight_folders",
    "write_weight",
]

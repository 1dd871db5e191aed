"""DNArch: a CCNN whose kernel sizes, resolutions, widths and depth are learned (chapter 6)."""

from . import published  # noqa: F401 (registers the networks of chapter 6)
from .network import DNArch

__all__ = ["DNArch"]

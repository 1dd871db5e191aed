"""DNArch: a CCNN whose kernel sizes, resolutions, widths and depth are learned (chapter 6)."""

from .network import DNArch

__all__ = ["DNArch"]

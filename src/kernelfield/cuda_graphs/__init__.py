"""Steps and predictions as CUDA graphs: one launch in place of thousands."""

from .capture import capture
from .captured import CapturedFunction, CaptureWarning

__all__ = ["CaptureWarning", "CapturedFunction", "capture"]

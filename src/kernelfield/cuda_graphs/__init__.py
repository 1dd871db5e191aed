"""Steps and predictions as CUDA graphs: one launch in place of thousands."""

from .capture import capture
from .captured import CapturedFunction, CaptureWarning
from .prediction import CapturedPrediction, capture_prediction

__all__ = ["CaptureWarning", "CapturedFunction", "CapturedPrediction", "capture", "capture_prediction"]

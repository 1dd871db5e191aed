"""Training steps and predictions as CUDA graphs: one launch in place of thousands."""

from .captured import CapturedFunction, CaptureWarning
from .decorator import capture
from .prediction import CapturedPrediction, capture_prediction

__all__ = ["CaptureWarning", "CapturedFunction", "CapturedPrediction", "capture", "capture_prediction"]

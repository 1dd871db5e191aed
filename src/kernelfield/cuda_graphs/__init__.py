"""Training steps and predictions as CUDA graphs: one launch in place of thousands.

The files:

- entry points: ``decorator`` (training steps), ``prediction``;
- a captured function: ``captured`` (begin here), ``graph`` (one recording and its replay), ``tree`` (arguments and
  results);
- recording: ``recording``, ``backend`` (the device, which tests replace);
- what a function uses: ``watch`` (modules and optimisers), ``optimizers`` (learning rates and counters on the device),
  ``host_variables`` (constants of a graph), ``host_calls`` (schedules and averages, which run outside it).
"""

from .captured import CapturedFunction, CaptureWarning
from .decorator import capture
from .prediction import CapturedPrediction, capture_prediction

__all__ = ["CaptureWarning", "CapturedFunction", "CapturedPrediction", "capture", "capture_prediction"]

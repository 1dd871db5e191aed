"""Predictions of networks that read samples at any times, and answer at any coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .classifier import ReadoutClassifier
from .time_order import original_order

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PointClassifier"]


class PointClassifier(ReadoutClassifier):
    """Base class of networks on grids and points; a subclass defines ``_features``."""

    def forward_features(self, x: Tensor, **sampling: Any) -> Tensor:
        """Return features (batch, channels, *space) of ``x``, before pooling; arguments as of :meth:`forward`."""
        features, _, order = self._features(x, **sampling)
        return features if order is None else original_order(order, features)

    def _predict(self, x: Tensor, *, at: Tensor | None, **sampling: Any) -> Tensor:
        """Return predictions in the order of the samples, or those of a dense network at the coordinates ``at``."""
        features, mask, order = self._features(x, at=at, **sampling)
        if at is not None:
            return self.readout(features[..., -at.shape[-2] :])
        y = self.readout(features, mask)
        return original_order(order, y) if order is not None and self.readout.kind == "dense" else y

    def _features(self, x: Tensor, **sampling: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the input of the readout, its mask, and the order of the samples if they were sorted by time."""
        raise NotImplementedError

"""Base class of networks that read samples at any positions and predict at any coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._arguments import checked
from .._object_kinds import TensorOf
from .classifier import ReadoutClassifier
from .time_order import in_time_order, original_order

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PointClassifier"]


class PointClassifier(ReadoutClassifier):
    """Base class of networks on grids and points; a subclass defines ``_features``."""

    @checked(x=TensorOf(empty=False), mask=TensorOf("bool") | None, at=TensorOf("float") | None)
    def forward(self, x: Tensor, *, mask: Tensor | None = None, at: Tensor | None = None, **sampling: Any) -> Tensor:
        r"""Return predictions for ``x``, in the order of its samples.

        A dense network predicts ``at`` any coordinates, also between samples: (batch, out, queries). The input may be a
        grid or points.

        Args:
            x: (batch, in, \*space) values, or (batch, length) ids of tokens.
            mask: (batch, \*space) whether a sample was seen.
            at: (batch, queries, dim) or (queries, dim) coordinates in training steps.
            sampling: step, coords and density, as in the layers; for a :class:`~kernelfield.CCNN` also ``active``, the
                part of each block to compute. Blocks beyond the last part are skipped.
        """
        features, mask, order = self._features(x, mask=mask, at=at, **sampling)
        if at is not None:
            return self.readout(features[..., -at.shape[-2] :])
        if self.readout.kind == "last" and order is None:  # the last in time, wherever it is among the samples
            features, mask, _, _ = in_time_order(features, mask, sampling)
        y = self.readout(features, mask)
        return original_order(order, y) if order is not None and self.readout.kind == "dense" else y

    def forward_features(self, x: Tensor, **sampling: Any) -> Tensor:
        """Return features (batch, channels, *space) of ``x``, before pooling; arguments as in :meth:`forward`."""
        features, _, order = self._features(x, **sampling)
        return features if order is None else original_order(order, features)

    def _features(self, x: Tensor, **sampling: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the input of the readout, its mask, and the order of the samples if they were sorted by time."""
        raise NotImplementedError

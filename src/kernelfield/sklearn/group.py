"""A network on a group as a classifier of images."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.base import ClassifierMixin

from ._arrays import plain
from ._partial import NetworkClassifier

__all__ = ["GroupClassifier"]

#: width of the first stage of the default network
CHANNELS = 8


class GroupClassifier(ClassifierMixin, NetworkClassifier):
    r"""A network on a group as a classifier of images in any orientation: by default a small ResNet (chapters 7 and 8).

    The default network is invariant to rotations by 90 degrees: up to rounding, an image and its rotations get the same
    probabilities if height and width are equal and multiples of 4. It needs no rotated copies of the training images.
    Images are (n, channels, rows, columns).

    Args:
        model: name of a network on a group, such as "resnet44_p4m" or "p4cnn"; by default a ResNet on p4 with three
            stages.
        channels: width of the first stage of the default network; by default 8. Later stages have twice and four times
            as many channels.
        blocks: residual blocks per stage; by default 1.
        options: further arguments of the network, such as ``{"group": kernelfield.groups.Dihedral(4)}`` for reflections
            too, or ``{"attention": "full"}`` for attentive group convolutions.
        random_kernels: number of random kernels; by default none, since they are not equivariant.

    All other arguments and the attributes are those of :class:`CCNNClassifier`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(16, 1, 8, 8))
    >>> y = np.arange(16) % 2
    >>> X[y == 1, :, 3:5] += 3
    >>> clf = GroupClassifier(channels=2, epochs=4).fit(X, y)
    >>> turned = np.rot90(X, axes=(2, 3))
    >>> np.allclose(clf.predict_proba(turned), clf.predict_proba(X))
    True
    """

    _MODEL: ClassVar[str] = "resnet44_p4"
    _FEW_SAMPLES: ClassVar[int] = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        return tags

    def _architecture(self, size: tuple[int, ...]) -> dict[str, Any]:
        if len(size) != 2:
            raise ValueError(f"X must hold images (n, channels, rows, columns), got samples of shape {self._shape_}")
        if self.model is not None:
            return super()._architecture(size)
        width = plain(self.channels) or CHANNELS
        return {"channels": (width, 2 * width, 4 * width), "blocks": plain(self.blocks) or 1}

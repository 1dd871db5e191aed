"""A wavelet network as a classifier of sounds."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from sklearn.base import ClassifierMixin

from ..models.wavelet_net import levels
from ._arrays import plain
from ._partial import NetworkClassifier

__all__ = ["WaveletClassifier"]

#: width of the default network, and kernel size of its first convolution, which is smaller for short sounds
CHANNELS, FIRST = 16, 79


class WaveletClassifier(ClassifierMixin, NetworkClassifier):
    r"""A wavelet network as a classifier of sounds: by default a small :class:`kernelfield.WaveletNet` (chapter 10).

    The network convolves over time and over octaves. Another speed of a sound shifts its features without changing
    them, and the last layer takes the maximum over octaves. The network therefore distinguishes sounds by their form
    and not only by their pitch. Sounds are (n, channels, length) or (n, length), or a list of sounds of unequal length.

    Args:
        model: name of a wavelet network, such as "w5"; by default a small one that suits the length of the sounds.
        channels: width of the first convolution of the default network; by default 16.
        blocks: levels of the default network, each with twice the channels and a quarter of the time steps of the
            previous one; by default 1 to 3, depending on the length of the sounds.
        random_kernels: number of random kernels; by default none.

    All other arguments and the attributes are those of :class:`CCNNClassifier`.

    >>> import numpy as np
    >>> at = np.linspace(0, 1, 400)
    >>> pure = [np.sin(2 * np.pi * tone * at) for tone in range(20, 28)]
    >>> chords = [np.sin(2 * np.pi * tone * at) + np.sin(5 * np.pi * tone * at) for tone in range(20, 28)]
    >>> X = np.array(pure + chords)
    >>> clf = WaveletClassifier(channels=4, epochs=4).fit(X, ["pure"] * 8 + ["chord"] * 8)
    >>> clf.predict_proba(X).shape
    (16, 2)
    """

    _MODEL: ClassVar[str] = "w3"
    _FEW_SAMPLES: ClassVar[int] = 0

    def _architecture(self, size: tuple[int, ...]) -> dict[str, Any]:
        if len(size) != 1:
            raise ValueError(f"X must hold sounds (n, channels, length), got samples of shape {self._shape_}")
        if self.model is not None:
            return super()._architecture(size)
        length = size[0]
        # The first convolution and its pooling leave a sixteenth of the samples, and each level a quarter.
        deepest = max(1, min(3, math.floor(math.log(max(length, 16) / 16, 4)) - 1))
        counts = [1] * (plain(self.blocks) or deepest)
        first = min(FIRST, 2 * (length // 8) + 1)
        stages = levels(plain(self.channels) or CHANNELS, counts, first)
        return {"stages": stages, "scales": None} | ({} if self.field is None else {"field": self.field})

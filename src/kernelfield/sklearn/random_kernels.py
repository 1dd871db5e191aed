"""Estimators with random continuous kernels and a ridge regression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from torch.nn import functional as F

from ..models.random_kernels import RandomKernelNet
from ..models.registry import resolve_parts
from ._arguments import KernelArguments
from ._arrays import plain, seed_of
from ._base import Classifier, Estimator, Regressor
from ._ridge import best_temperature, fit_ridge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from ..data.base import Split
    from ..fields import Field

__all__ = ["RandomKernelClassifier", "RandomKernelRegressor", "fit_random_kernels"]

#: largest product of samples and kernels for the default of a thousand kernels
MOST_RESPONSES = 5_000_000


@torch.no_grad()
def fit_random_kernels(
    inputs: Tensor,
    mask: Tensor | None,
    target: Tensor,
    out: int,
    *,
    kernels: int,
    field: str | Callable[..., Field] | None = None,
) -> tuple[RandomKernelNet, dict[str, float], Tensor]:
    """Return a fitted :class:`~kernelfield.models.RandomKernelNet`, its selected settings, and leave-one-out outputs.

    Classes become targets of ±1. The logits are the fitted scores times the factor with the least cross-entropy on
    leave-one-out scores.

    Args:
        inputs: (n, channels, *space) normalised inputs.
        mask: (n, *space) observed positions, or None.
        target: (n,) classes or (n, out) values.
        out: number of outputs.
        kernels: number of kernels.
        field: field of the kernels.
    """
    given = {} if field is None else resolve_parts({"field": field})
    size = tuple(inputs.shape[2:])
    # In float64 like predictions, so that thresholds separate the same responses.
    network = RandomKernelNet(inputs.shape[1], out, dim=len(size), size=size, kernels=kernels, **given).double()
    inputs = inputs.double()
    network.features.draw_biases(inputs, mask)
    features = torch.cat(
        [
            network.raw_features(x, None if mask is None else m)
            for x, m in zip(inputs.split(256), (inputs if mask is None else mask).split(256), strict=True)
        ]
    )
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0)
    scale = torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 0.0)
    features.sub_(mean).mul_(scale)
    classes = target.dtype == torch.long
    wanted = 2 * F.one_hot(target, out).double() - 1 if classes else target.double()
    found = fit_ridge(features, network.parts, wanted)
    factor = best_temperature(found.held_out, target[found.rows]) if classes else 1.0
    network.shift.copy_(mean)
    network.scale.copy_(scale)
    network.linear.weight.copy_(factor * found.weight.T)
    network.linear.bias.copy_(factor * found.bias)
    if classes:
        error = float((found.held_out.argmax(dim=1) != target[found.rows]).double().mean())
    else:
        error = float((found.held_out - wanted[found.rows]).square().mean())
    chosen = {"strength": found.strength, "share": found.share, "temperature": factor, "leave_one_out_error": error}
    return network.eval().requires_grad_(False), chosen, factor * found.held_out


class _RandomKernels(KernelArguments, Estimator):
    def _fit_networks(self, split: Split, out: int) -> None:
        if split.coords is not None:
            raise ValueError(
                f"X must lie on a grid for {type(self).__name__}, got times, which only the CCNN estimators take"
            )
        # All features are in memory at once, so many samples get fewer kernels.
        kernels = max(100, min(1000, MOST_RESPONSES // len(split))) if self.kernels is None else plain(self.kernels)
        torch.manual_seed(seed_of(self.random_state))
        self.network_, self.chosen_, _ = fit_random_kernels(
            split.inputs, split.mask, split.target, out, kernels=kernels, field=self.field
        )

    def _networks(self) -> Sequence[nn.Module]:
        return [self.network_]


class RandomKernelClassifier(ClassifierMixin, Classifier, _RandomKernels):
    """A linear classifier on pooled responses to random continuous kernels, fitted in seconds without training.

    See :class:`~kernelfield.models.RandomKernels` for the features. A ridge regression reads the features and the input
    values; leave-one-out errors on the training samples select the strength of its penalty.

    Args:
        kernels: number of random kernels; by default 1,000, and fewer for more than 5,000 samples.
        field: field of the kernels, a class of :mod:`kernelfield.fields` or its name; by default random Fourier.
        random_state: seed.

    Attributes:
        network_: the fitted network, which takes the result of ``prepare(X)``.
        chosen_: the strength of the penalty, other selected settings, and the leave-one-out error.
        classes_: the classes.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> y = np.array(["up", "down"] * 10)
    >>> X[y == "up"] += np.linspace(0, 4, 16)
    >>> RandomKernelClassifier(kernels=50).fit(X, y).score(X, y) > 0.8
    True
    """


class RandomKernelRegressor(RegressorMixin, Regressor, _RandomKernels):
    """A linear regressor on pooled responses to random continuous kernels, like :class:`RandomKernelClassifier`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20, 1, 16))
    >>> RandomKernelRegressor(kernels=50).fit(X, X.mean(axis=(1, 2))).predict(X).shape
    (20,)
    """

"""Invariance by a learned distribution over transformed inputs (chapter 11, section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked, with_arguments_of
from .._object_kinds import TensorOf
from ..groups import O2, SO2, Distribution, Trivial, learned, warp
from ..layers.group import GroupBatchNorm
from .classifier import Classifier
from .partial_gcnn import PartialGCNN, PartialGCNN13
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..groups import Group
    from ..layers.group import GroupSignal

__all__ = ["Augerino"]


class Augerino(Classifier):
    r"""Any network, averaged over inputs transformed by elements of a learned distribution.

    .. math:: y(x) = \frac1n \sum_{i=1}^n f(g_i\, x), \qquad g_i \sim p(g)

    The gradient reaches p(g) through the interpolation of the transformed inputs. The loss of a task alone does not
    favour a wide p(g), so training adds :meth:`regulariser` to it.

    Args:
        net: the network f.
        group: the group of transformations.
        samples: number of elements of a continuous group, including reflected ones.

    >>> import torch
    >>> from kernelfield.groups import SO2
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    >>> Augerino(net, group=SO2(), samples=4)(torch.randn(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    @checked()
    def __init__(self, net: nn.Module, *, group: Group, samples: int | None = None) -> None:
        super().__init__()
        self.net, self.group = net, group
        norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001
        # Only GroupBatchNorm can exclude inputs from its statistics.
        can_leave_out = all(isinstance(norm, GroupBatchNorm) for norm in norms)
        self.distribution: Distribution = learned(group, samples).fix_size(can_leave_out)

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False))
    def forward(self, x: Tensor) -> Tensor:
        """Return the average of the network's outputs over the drawn elements."""
        return self._each(x, self.net).mean(dim=0)

    def _each(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the outputs of a function for each drawn element, (elements, batch, ...)."""
        # In half precision neighbouring angles would round to one number.
        like = x.new_empty((), dtype=torch.promote_types(x.dtype, torch.float32))
        elements, gates = self.distribution(like)
        moved = warp(x, self.group.matrix(elements))
        gated = gates is not None and self.distribution.gated
        if gated:
            present = gates.detach()
            # This factor turns the mean over all elements into the mean over those that are present.
            gates = gates * (len(gates) / present.sum())
            self._set_present(present[:, None].expand(moved.shape[:2]).flatten())
        y = function(moved.flatten(0, 1)).unflatten(0, moved.shape[:2])
        if gated:
            self._set_present(None)
        return y if gates is None else y * gates.view(-1, *[1] * (y.dim() - 1))

    def _set_present(self, samples: Tensor | None) -> None:
        """Set the samples that batch norms include in their statistics; None for all."""
        for module in self.net.modules():
            if isinstance(module, GroupBatchNorm):
                module.present_samples = samples

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        return self._classifier().head_hidden_size

    @property
    def num_classes(self) -> int:
        """Number of predictions; 0 if the classifier was removed."""
        return self._classifier().num_classes

    def forward_features(self, x: Tensor) -> Tensor:
        """Return pooled features of each transformed input, (batch, num_features, elements)."""
        net = self._classifier()
        pooled = self._each(x, lambda moved: net.forward_head(net.forward_features(moved), pre_logits=True))
        return pooled.movedim(0, -1)

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return the average of the predictions over the elements, or that of the features."""
        assert isinstance(features, Tensor)
        pooled = features.mean(dim=-1)
        return pooled if pre_logits else self._classifier().linear(pooled)

    def _replace_classifier(self, num_classes: int) -> None:
        self._classifier().reset_classifier(num_classes)

    def _classifier(self) -> PartialGCNN | PartialGCNN13:
        if not isinstance(self.net, (PartialGCNN, PartialGCNN13)):
            raise TypeError(f"net must be a PartialGCNN or PartialGCNN13 for features, got {type(self.net).__name__}")
        return self.net

    def regulariser(self) -> Tensor:
        """Return minus the fraction of the group in the support, summed over its factors."""
        return -self.distribution.limits().sum()


_OWN = ("in_channels", "out_channels", "group", "samples", "partial")


@with_arguments_of(PartialGCNN.__init__, without=(*_OWN, "self"))
def augerino_gcnn(
    in_channels: int = 1, out_channels: int = 10, *, group: Group, samples: int | None = None, **options: Any
) -> Augerino:
    """Return the T(2) network of chapter 11, averaged over transformed inputs.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: the group of transformations.
        samples: number of elements of a continuous group.
        options: further arguments of :class:`PartialGCNN`.

    >>> import torch
    >>> net = augerino_gcnn(group=SO2(), samples=2, channels=(2, 2, 3, 3), kernel_size=3)
    >>> net(torch.randn(2, 1, 14, 14)).shape
    torch.Size([2, 10])
    """
    net = PartialGCNN(in_channels, out_channels, group=Trivial(group.dim), partial=False, **options)
    return Augerino(net, group=group, samples=samples)


@with_arguments_of(PartialGCNN13.__init__, without=(*_OWN, "self"))
def augerino_gcnn13(
    in_channels: int = 1, out_channels: int = 10, *, group: Group, samples: int | None = None, **options: Any
) -> Augerino:
    """Return the 13-layer T(2) network of chapter 11, averaged over transformed inputs; see :func:`augerino_gcnn`."""
    net = PartialGCNN13(in_channels, out_channels, group=Trivial(group.dim), partial=False, **options)
    return Augerino(net, group=group, samples=samples)


register("augerino_se2", augerino_gcnn, "chapter 11: T(2) network with Augerino on SE(2)", group=SO2(), samples=8)
register("augerino_e2", augerino_gcnn, "chapter 11: T(2) network with Augerino on E(2)", group=O2(), samples=8)
register("augerino13_se2", augerino_gcnn13, "chapter 11: 13-layer CNN with Augerino on SE(2)", group=SO2(), samples=8)

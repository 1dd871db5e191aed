"""Dropout of values or of whole channels."""

from __future__ import annotations

from torch import Tensor, nn

from .._arguments import checked
from .._kinds import PROBABILITY, Choice
from .._object_kinds import TensorOf
from ..ops.fused import drop

__all__ = ["DROPOUT_KINDS", "Dropout"]

DROPOUT_KINDS = ("values", "channels")


class Dropout(nn.Dropout):
    r"""Set values or whole channels to zero with probability p and multiply the rest by 1/(1 - p), in training.

    See :func:`kernelfield.ops.fused.drop`.

    Args:
        p: probability of a zero.
        kind: "values" draws once for each value; "channels" draws once for each sample and channel of a
            (batch, channels, \*space) signal, like :class:`torch.nn.Dropout1d` to :class:`torch.nn.Dropout3d`.
        few_bits: whether to draw only 16 bits per value on a CPU, which is faster. The probability is then rounded to a
            multiple of 1/65,536, and compiled code draws different numbers. False draws as torch does.

    >>> import torch
    >>> y = Dropout(0.25)(torch.ones(1000))
    >>> sorted(set(y.tolist())), bool((y == 0).float().mean() < 0.4)
    ([0.0, 1.3333333730697632], True)
    >>> Dropout(0.5, kind="channels")(torch.ones(2, 3, 5)).std(dim=2).max()
    tensor(0.)
    """

    @checked(p=PROBABILITY, kind=Choice(*DROPOUT_KINDS))
    def __init__(self, p: float = 0.5, kind: str = "values", *, few_bits: bool = True) -> None:
        super().__init__(p)
        self.few_bits = few_bits
        self.kind = kind

    @checked(x=TensorOf("float"))
    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p):
            return x
        return drop(x, self.p, channels=self.kind == "channels", few_bits=self.few_bits)

    def fused(self) -> dict[str, float | bool]:
        """Return the arguments with which operators of :mod:`kernelfield.ops.fused` apply this dropout."""
        return {"dropout": self.p if self.training else 0.0, "dropout_channels": self.kind == "channels"}

    def extra_repr(self) -> str:
        return f"p={self.p}, kind={self.kind!r}"

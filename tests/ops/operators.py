"""One small call of every operator that has Triton kernels, for tests of the switch that turns them off.

``python -m tests.ops.operators`` runs all of them and lists the modules of Triton that this imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from kernelfield import CKConv
from kernelfield.groups import Cyclic
from kernelfield.layers.group import AttentiveGroupConv, GroupSelfAttention, InputAttention
from kernelfield.ops import conv, group_attention
from kernelfield.ops.attention.softmax import softmax_sum
from kernelfield.ops.fused import activate, batch_norm, linear

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHOSEN", "OPERATORS"]


def _attention() -> torch.Tensor:
    q, k, v = torch.randn(3, 1, 1, 2, 2, requires_grad=True)
    return group_attention(q, k, v, torch.randn(1, 1, 1), torch.randn(1, 1, 1), neighborhood=(1,))


def _softmax() -> torch.Tensor:
    return softmax_sum(*(torch.randn(1, 1, 2, 2, 2, requires_grad=True) for _ in range(3)))


def _attentive() -> torch.Tensor:
    layer = AttentiveGroupConv(1, 1, group=Cyclic(1), kernel_size=1, attention_size=1)
    return layer(torch.randn(1, 1, 1, 2, 2)).values


def _input_attention() -> torch.Tensor:
    return InputAttention(1, group=Cyclic(2), kernel_size=3)(torch.randn(1, 1, 2, 4, 4)).values


def _self_attention() -> torch.Tensor:
    layer = GroupSelfAttention(2, 2, group=Cyclic(1), heads=1, neighborhood=1)
    return layer(torch.randn(1, 2, 1, 2, 2)).values


def _signal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


#: those that choose between Triton kernels and torch operations by themselves, also in Triton's interpreter
OPERATORS: dict[str, Callable[[], torch.Tensor]] = {
    "group_attention": _attention,
    "softmax_sum": _softmax,
    "attentive convolution": _attentive,
    "input attention": _input_attention,
    "self-attention": _self_attention,
    "activate": lambda: activate(_signal(2, 3, 8), torch.randn(3)),
    "linear": lambda: linear(_signal(2, 3, 8), torch.randn(4, 3), activation="gelu"),
    "batch_norm": lambda: batch_norm(_signal(2, 3, 8)),
    "kernel networks": lambda: CKConv(2, 2, size=4).kernel(),
}
#: those that take Triton kernels in the interpreter only if they are told to
CHOSEN: dict[str, Callable[[], torch.Tensor]] = {
    "conv": lambda: conv(_signal(1, 2, 8), torch.randn(2, 1, 3), groups=2, method="triton"),
    "group_attention": lambda: group_attention(
        *torch.randn(3, 1, 1, 2, 2), torch.randn(1, 1, 1), torch.randn(1, 1, 1), neighborhood=(1,), method="triton"
    ),
}


def main() -> None:
    with torch.no_grad():
        for operator in OPERATORS.values():
            operator()
        conv(_signal(1, 2, 8), torch.randn(2, 1, 3), groups=2)
    sys.stdout.write(str(sorted(name for name in sys.modules if name.split(".")[0] == "triton")))


if __name__ == "__main__":
    main()

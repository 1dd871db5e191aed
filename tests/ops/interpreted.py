"""What tests of Triton's kernels share: where there is no GPU, kernels are made for its interpreter."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETER = {} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"}
with mock.patch.dict(os.environ, INTERPRETER):  # kernels are made for one or the other when they are imported
    triton = pytest.importorskip("triton")
    from triton.runtime.interpreter import InterpretedFunction

    from kernelfield.ops.channelwise import launch as channelwise_launch
    from kernelfield.ops.features import launch as features_launch
    from kernelfield.ops.tensorcore import launch, lines, outer, toeplitz, transform

    # Also those of Triton itself, which something else may have imported before.
    for name, function in vars(triton.language).items():
        if INTERPRETER and isinstance(function, triton.JITFunction):
            setattr(triton.language, name, InterpretedFunction(function.fn))

__all__ = [
    "DEVICE",
    "channelwise_launch",
    "features_launch",
    "interpreter",
    "launch",
    "lines",
    "outer",
    "poisoned",
    "toeplitz",
    "transform",
]


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    with mock.patch.dict(os.environ, INTERPRETER):
        yield


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill everything that is allocated for results with NaN, or -77, so that what is not written is seen."""

    def filled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate(*args: Any, **kwargs: Any) -> torch.Tensor:
            new = function(*args, **kwargs)
            return new.fill_(float("nan") if new.is_floating_point() or new.is_complex() else -77)

        return allocate

    with contextlib.ExitStack() as stack:
        for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like"), (torch, "empty")):
            stack.enter_context(mock.patch.object(owner, name, filled(getattr(owner, name))))
        yield

"""What tests of Triton's kernels share: where there is no GPU, kernels are made for its interpreter."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING
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

    from kernelfield.ops.tensorcore import launch, lines, outer, toeplitz, transform

    # Also those of Triton itself, which something else may have imported before.
    for name, function in vars(triton.language).items():
        if INTERPRETER and isinstance(function, triton.JITFunction):
            setattr(triton.language, name, InterpretedFunction(function.fn))

__all__ = ["DEVICE", "interpreter", "launch", "lines", "outer", "poisoned", "toeplitz", "transform"]


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    with mock.patch.dict(os.environ, INTERPRETER):
        yield


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill everything that is allocated for results with NaN, so that what is not written is seen."""
    originals = {owner: getattr(owner, name) for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like"))}

    def filled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args, **kwargs: function(*args, **kwargs).fill_(float("nan"))

    with (
        mock.patch.object(torch.Tensor, "new_empty", filled(originals[torch.Tensor])),
        mock.patch.object(torch, "empty_like", filled(originals[torch])),
    ):
        yield

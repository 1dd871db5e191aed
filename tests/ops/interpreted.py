"""Shared by the tests of Triton kernels: without a GPU, the kernels are compiled for Triton's interpreter."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from kernelfield.ops import conv
from tests.contracts.convolutions import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETER = {} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"}


def shorten_interpretation() -> None:
    """Leave out what takes most of the interpreter's time and changes no result.

    It patches ``triton.language`` again for every function that a kernel calls, makes a table of dtypes for every
    operation, and checks every sum and product of integers for overflow. Here each launch patches once, and dtypes are
    kept. With ``--slow`` integers are still checked.
    """
    from triton import language  # noqa: PLC0415
    from triton.runtime import interpreter  # noqa: PLC0415

    patch = interpreter._patch_lang
    modules = SimpleNamespace(__globals__={"language": language, "core": language.core})
    interpreter._patch_lang = lambda _: patch(modules)
    interpreter.InterpretedFunction.__call__ = lambda function, *args, **kwargs: function.rewrite()(*args, **kwargs)
    convert, dtypes = interpreter._get_np_dtype, {}

    def numpy_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = convert(dtype)
        return dtypes[name]

    interpreter._get_np_dtype = numpy_dtype
    if os.environ.get("KERNELFIELD_TEST_OVERFLOW") != "1":
        options = interpreter.interpreter_builder.options
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


with mock.patch.dict(os.environ, INTERPRETER):  # a kernel is bound to a GPU or the interpreter by its import
    triton = pytest.importorskip("triton")
    from triton.runtime.interpreter import InterpretedFunction

    from kernelfield.ops.attention.triton import launch as attention_launch
    from kernelfield.ops.attention.triton import softmax as softmax_launch
    from kernelfield.ops.attentive.triton import input_launch
    from kernelfield.ops.attentive.triton import launch as attentive_launch
    from kernelfield.ops.attentive.triton import planes as attentive_planes
    from kernelfield.ops.conv.triton import launch, outer, toeplitz, transform
    from kernelfield.ops.conv.triton import outer_launch as blocks
    from kernelfield.ops.conv.triton import toeplitz_launch as lines
    from kernelfield.ops.fieldnet.triton import launch as features_launch
    from kernelfield.ops.fieldnet.triton import windows
    from kernelfield.ops.fused.triton import launch as channelwise_launch

    if INTERPRETER:
        shorten_interpretation()
    # Also the functions of Triton itself, which may have been imported before.
    for name, function in vars(triton.language).items():
        if INTERPRETER and isinstance(function, triton.JITFunction):
            setattr(triton.language, name, InterpretedFunction(function.fn))

__all__ = [
    "DEVICE",
    "LAYOUTS",
    "assert_right",
    "attention_launch",
    "attentive_launch",
    "attentive_planes",
    "blocks",
    "channelwise_launch",
    "features_launch",
    "input_launch",
    "interpreter",
    "launch",
    "layouts",
    "lines",
    "outer",
    "poisoned",
    "results",
    "softmax_launch",
    "toeplitz",
    "transform",
    "windows",
]

#: rounding allowed, relative to the largest output; the interpreter cuts bfloat16 off where a GPU rounds
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}
#: one of each layout: upright lines, blocks of a line, rows of a plane, slices of a volume; their sides fill no tile
LAYOUTS = {
    "line": Case((2, 3, 255), (3, 1, 255), 3, causal=True),
    "longer line": Case((2, 1, 1000), (1, 1, 1999), 1),
    "still longer line": Case((1, 1, 1500), (1, 1, 700), 1, causal=True),
    "upright line": Case((1, 1, 2500), (1, 1, 4999), 1),
    "line of blocks": Case((1, 2, 4200), (2, 1, 4200), 2, causal=True),
    "circle": Case((2, 2, 48), (2, 1, 96), 2, "periodic"),
    "circle of blocks": Case((1, 1, 4500), (1, 1, 33), 1, "periodic"),
    "plane": Case((2, 3, 13, 17), (3, 1, 25, 30), 3),
    "tall plane": Case((1, 1, 64, 20), (1, 1, 127, 39), 1),
    "upright plane": Case((1, 1, 60, 40), (1, 1, 119, 79), 1),
    "cylinder": Case((1, 2, 12, 20), (2, 1, 5, 40), 2, ("zero", "periodic")),
    "torus": Case((1, 2, 12, 20), (2, 1, 24, 3), 2, "periodic"),
    "rows of a plane": Case((2, 1, 5, 70), (1, 1, 9, 139), 1),
    "longer rows of a plane": Case((1, 2, 2, 150), (2, 1, 3, 299), 2),
    "rows of a torus": Case((1, 2, 5, 130), (2, 1, 9, 9), 2, "periodic"),
    "slices": Case((2, 2, 3, 5, 6), (2, 1, 5, 9, 11), 2),
    "slices with kernels of more rows": Case((1, 1, 2, 10, 9), (1, 1, 3, 19, 17), 1),
    "slices of a torus": Case((1, 1, 4, 5, 6), (1, 1, 5, 9, 4), 1, ("periodic", "zero", "periodic")),
}
#: layouts that take seconds, each like a smaller one: "plane", "circle of blocks"
LARGE = ("upright plane", "tall plane", "line of blocks")
layouts = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow if n in LARGE else ()) for n, c in LAYOUTS.items()],
    ids=LAYOUTS,
)


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


def results(case: Case, x: torch.Tensor, kernel: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return output and both gradients, made in poisoned memory, and the same in float64."""
    tensors = [t.to(DEVICE).requires_grad_() for t in (x, kernel)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    with poisoned():
        y = conv(*tensors, **case.how, method="triton")
        weights = torch.randn(y.shape).to(y)
        got = [y, *torch.autograd.grad(y, tensors, weights)]
    reference = conv(*exact, **case.how, method="fft")
    return got, [reference, *torch.autograd.grad(reference, exact, weights.double())]


def assert_right(case: Case, dtype: torch.dtype = torch.float32) -> None:
    """Compare output and both gradients with float64."""
    for a, b in zip(*results(case, *case.tensors(dtype)), strict=True):
        assert a.shape == b.shape
        assert a.dtype == dtype
        assert (a - b).abs().max() <= ROUNDING[dtype] * b.abs().max().clamp(min=1e-6)

"""Convolution on tensor cores under autocast, torch.compile and torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelfield.ops import conv
from kernelfield.ops.conv import cost
from kernelfield.testing import assert_exports
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, LAYOUTS, interpreter, launch

__all__ = ["interpreter"]

#: lines, circles that the kernel is wound around, planes
OPERATORS = {
    "line": Case((1, 2, 20), (2, 1, 9), 2, causal=True),
    "circle": Case((2, 1, 9), (1, 1, 18), 1, "periodic"),
    "plane": Case((1, 2, 5, 6), (2, 1, 9, 11), 2),
}


def test_compiles_without_graph_breaks() -> None:
    x, kernel = (t.to(DEVICE).requires_grad_() for t in LAYOUTS["plane"].tensors(torch.float32))

    def loss(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return conv(x, kernel, groups=3, method="triton").square().mean()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for got, expected in zip(
        torch.autograd.grad(compiled(x, kernel), (x, kernel)),
        torch.autograd.grad(loss(x, kernel), (x, kernel)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_lengths_without_a_tile_layout_fall_back_to_the_fft_at_run_time() -> None:
    def loss(x: torch.Tensor, kernel: torch.Tensor, method: str) -> torch.Tensor:
        return conv(x, kernel, causal=True, method=method).square().mean()

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    kernel = torch.randn(1, 1, 9, device=DEVICE, requires_grad=True)
    for length in (40, 66_000):
        x = torch.randn(2, 1, length, device=DEVICE)
        (got,) = torch.autograd.grad(compiled(x, kernel, "triton"), kernel)
        (expected,) = torch.autograd.grad(loss(x, kernel, "fft"), kernel)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="tile layout"):
        loss(x, kernel, "triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_choice_for_a_gpu_compiles(dtype: torch.dtype) -> None:
    work = cost.Work.of((64, 140, 1024), (140, 1, 1024), (0,), [False])

    def times(x: torch.Tensor) -> torch.Tensor:
        return x * cost.seconds(cost.tensor_core_costs(x.dtype), work, "cuda", training=True)

    assert 0 < torch.compile(times, fullgraph=True, backend="eager")(torch.ones((), dtype=dtype)) < 0.1


def operands(case: Case) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """Return gradient, signal, kernel and the other arguments of the operators."""
    tensors = [t.to(DEVICE).requires_grad_() for t in (torch.randn(case.x), *case.tensors(torch.float32))]
    return tensors, (case.causal, [case.boundary == "periodic"] * (len(case.x) - 2), case.groups)


def test_operators_pass_opcheck() -> None:
    (grad, x, kernel), how = operands(OPERATORS["line"])
    torch.library.opcheck(torch.ops.kernelfield.triton_conv.default, (x, kernel, *how))
    torch.library.opcheck(torch.ops.kernelfield.triton_conv_grads.default, (grad, x, kernel, True, True, *how))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("need", [(True, True), (True, False), (False, True)], ids=["both", "x", "kernel"])
def test_operators_return_the_declared_shapes(name: str, need: tuple[bool, bool]) -> None:
    (grad, x, kernel), how = operands(OPERATORS[name])
    promises = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.kernelfield.triton_conv.default, (x, kernel, *how), test_utils=promises)
    gradients = torch.ops.kernelfield.triton_conv_grads.default
    torch.library.opcheck(gradients, (grad, x, kernel, *need, *how), test_utils=promises)


def test_exports_with_any_length_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    usual = launch.spectral_conv
    monkeypatch.setattr(launch, "spectral_conv", lambda x, *args: lengths.append(x.shape[2]) or usual(x, *args))
    kernel = torch.randn(2, 1, 9, device=DEVICE)

    def signal(batch: int, length: int) -> torch.Tensor:
        return torch.randn(batch, 2, length, device=DEVICE)

    assert_exports(
        lambda x: conv(x, kernel, groups=2, causal=True, method="triton"),
        (signal(3, 16),),
        ({0: torch.export.Dim("b"), 2: torch.export.Dim("n", min=9)},),
        [(signal(2, 9),), (signal(5, 300),), (signal(2, 1500),)],
        atol=1e-5,
    )
    assert lengths == [16, 16, 9, 9, 300, 300, 1500, 1500]


def test_exports_with_a_kernel_as_long_as_the_input() -> None:
    def signals(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch, 2, length, device=DEVICE), torch.randn(2, 1, length, device=DEVICE)

    batch, length = torch.export.Dim("b"), torch.export.Dim("n", min=9)
    assert_exports(
        lambda x, k: conv(x, k, groups=2, causal=True, method="triton"),
        signals(3, 16),
        ({0: batch, 2: length}, {2: length}),
        [signals(2, 40)],
        atol=1e-5,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_sets_the_output_dtype_and_keeps_gradient_dtypes(dtype: torch.dtype) -> None:
    case = OPERATORS["line"]
    tensors = [t.to(DEVICE).requires_grad_() for t in case.tensors(torch.float32)]
    weights = torch.randn(case.x, device=DEVICE)

    def results(method: str) -> list[torch.Tensor]:
        y = conv(*tensors, **case.how, method=method)
        return [y, *torch.autograd.grad(y, tensors, weights.to(y.dtype))]

    with torch.autocast(DEVICE, dtype):
        got = results("triton")
        mixed = conv(tensors[0], tensors[1].to(dtype), **case.how, method="triton")
    assert got[0].dtype == mixed.dtype == dtype
    assert [g.dtype for g in got[1:]] == [torch.float32, torch.float32]
    for a, b in zip([*got, mixed], [*(wanted := results("fft")), wanted[0]], strict=True):
        assert (a - b).abs().max() <= 3e-2 * b.abs().max()

"""Triton kernels in compiled code: custom operators with the values and gradients of eager mode."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from kernelfield import CKConv
from kernelfield.fields import SIREN, FourierFilter, MAGNet
from kernelfield.groups import Cyclic, Mirror
from kernelfield.layers import AttentiveGroupConv, GroupSelfAttention, sample_kernels
from kernelfield.ops import use_fast_paths
from tests.ops.interpreted import DEVICE, attentive_planes, interpreter
from tests.ops.test_backend import counted_launches

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["interpreter"]

on_cpu = pytest.mark.skipif(DEVICE == "cuda", reason="counts launches of the interpreter")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()


def attentive(kind: str, batch: int = 1) -> tuple[nn.Module, Tensor]:
    layer = AttentiveGroupConv(2, 1, group=Mirror(), kernel_size=1, attention=kind, attention_size=3)
    return layer.to(DEVICE), torch.randn(batch, 2, 2, 3, 2, device=DEVICE, requires_grad=True)


def self_attention(neighborhood: int | None) -> tuple[nn.Module, Tensor]:
    layer = GroupSelfAttention(2, 2, group=Cyclic(2), heads=1, neighborhood=neighborhood, size=3)
    return layer.to(DEVICE), torch.randn(2, 2, 2, 3, 2, device=DEVICE, requires_grad=True)


#: kernels of both kinds of attention; the others, such as projections, are left to the compiler
KERNELS = {"forward", "queries", "keys", "places", "peaks", "peaks_grad", "sums", "taps", "sources"}
KERNELS |= {"attend", "gate_grad", "filters", "spread"}
LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "full": lambda: attentive("full"),
    "channel": lambda: attentive("channel"),
    "spatial": lambda: attentive("spatial"),
    "self-attention": lambda: self_attention(3),
    "global self-attention": lambda: self_attention(None),
}


def results(run: Any, layer: nn.Module, x: Tensor) -> list[Tensor]:
    y = run(x).values
    slope = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)
    found = torch.autograd.grad((y * slope).sum(), [x, *layer.parameters()], allow_unused=True)
    return [y.detach(), *(t for t in found if t is not None)]


@pytest.mark.parametrize(
    "name", [n if n in ("full", "self-attention") else pytest.param(n, marks=pytest.mark.slow) for n in LAYERS]
)
def test_compiled_layers_launch_the_same_kernels(name: str) -> None:
    layer, x = LAYERS[name]()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    launches = []
    found = []
    for run in (layer, compiled):
        if DEVICE == "cuda":
            # In another memory format cuDNN takes other algorithms; with tf32 their products would have 10 bits.
            with torch.backends.cudnn.flags(allow_tf32=False):
                found.append(results(run, layer, x))
        else:
            with counted_launches() as names:
                found.append(results(run, layer, x))
            launches.append(sorted(name for name in names if name in KERNELS))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    if launches:
        assert launches[0]
        assert launches[1] == launches[0]


class TwoKernels(nn.Module):
    """Two convolutions whose kernels are sampled together."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([CKConv(2, 2, **options) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        kernels = sample_kernels(list(self.layers), x)
        for layer, kernel in zip(self.layers, kernels, strict=True):
            x = layer(x, kernel=kernel)
        return x


def field_results(run: Any, net: nn.Module, x: Tensor) -> list[Tensor]:
    y = run(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])]


@pytest.mark.parametrize(("field", "kernels"), [(SIREN, "sine"), (MAGNet, "filter"), (FourierFilter, "filter")])
@pytest.mark.parametrize("dim", [1, 2])
def test_kernel_networks_in_compiled_code(field: type, kernels: str, dim: int) -> None:
    net = TwoKernels(size=5, dim=dim, field=field).to(DEVICE)
    x = torch.randn(2, 2, *[5, 4][:dim], device=DEVICE, requires_grad=True)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    found = []
    with torch.backends.cudnn.flags(allow_tf32=False):
        for run in (net, compiled):
            with counted_launches() as names:
                found.append(field_results(run, net, x))
            if DEVICE == "cpu":
                wanted = [f"{kernels}_grads_kernel", f"{kernels}_kernel"]
                assert sorted(n for n in names if n.startswith(("sine", "filter"))) == wanted
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_exported_kernel_networks_run_without_triton() -> None:
    net = TwoKernels(size=5).to(DEVICE).eval()
    x = torch.randn(2, 2, 5, device=DEVICE)
    program = torch.export.export(net, (x,))
    operators = {str(node.target) for node in program.graph.nodes}
    assert not any("field_features" in name for name in operators)
    torch.testing.assert_close(program.module()(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["channel", pytest.param("self-attention", marks=pytest.mark.slow)])
def test_compiled_transforms_take_the_torch_path(name: str) -> None:
    layer, x = LAYERS[name]()
    states = dict(layer.named_parameters())

    def loss(states: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, states, (x,)).values.square().sum()

    found = torch.compile(torch.func.grad(loss), backend="aot_eager", fullgraph=True)(states, x)
    wanted = torch.autograd.grad(loss(states, x), list(states.values()))
    torch.testing.assert_close(list(found.values()), list(wanted), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "self-attention"])
def test_inductor_and_other_batches(name: str) -> None:
    layer, x = LAYERS[name]()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for batch in (2, 3):
        some = torch.randn(batch, *x.shape[1:], device=DEVICE, requires_grad=True)
        torch.testing.assert_close(results(compiled, layer, some), results(layer, layer, some), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_samples_that_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = attentive("full", batch=2)
    wanted = results(layer, layer, x)
    monkeypatch.setattr(attentive_planes, "SAVED_BYTES", 1)
    found = results(torch.compile(layer, backend="aot_eager", fullgraph=True), layer, x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@on_cpu
def test_the_switch_compiles_again() -> None:
    layer, x = attentive("channel")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for enabled in (True, False, True):
        with use_fast_paths(enabled), counted_launches() as names, torch.no_grad():
            compiled(x)
        assert bool(names) is enabled


@on_cpu
@pytest.mark.parametrize("name", ["channel", "self-attention"])
def test_exported_programs_contain_the_operator_and_say_where_it_does_not_run(name: str) -> None:
    layer, x = LAYERS[name]()
    dynamic = ({0: torch.export.Dim("batch", min=1, max=8)},)
    example = torch.randn(2, *x.shape[1:])  # a batch of one would be taken for a constant
    program = torch.export.export(layer, (example,), dynamic_shapes=dynamic)
    modules = program.graph_module.modules()  # one for each block under autocast
    operators = {str(node.target) for m in modules if isinstance(m, torch.fx.GraphModule) for node in m.graph.nodes}
    assert any("response_peaks" in o or "group_attention" in o for o in operators)
    other = torch.randn(3, *x.shape[1:])
    with torch.no_grad():
        torch.testing.assert_close(program.module()(other).values, layer(other).values, rtol=1e-4, atol=1e-5)
    with mock.patch.dict(os.environ):
        del os.environ["TRITON_INTERPRET"]
        with pytest.raises(RuntimeError, match="Triton kernels and needs a CUDA device"):
            program.module()(other)

"""Norms, activations and maps in few passes: against float64, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from kernelfield import CCNN
from kernelfield.layers import ActiveSlice, BatchNorm, Pointwise
from kernelfield.ops import use_fast_paths
from kernelfield.ops.backend import use_triton
from kernelfield.ops.fused import activate, batch_norm, linear, map_channels, norm_with_identity
from tests.ops.interpreted import DEVICE, interpreter, poisoned
from tests.ops.interpreted import channelwise_launch as launch

__all__ = ["interpreter"]

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def assert_close(got: Any, expected: Any, dtype: torch.dtype) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).abs().max() <= ROUNDING[dtype] * b.abs().max().clamp(min=1.0)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    dim = draw(st.integers(1, 3))
    lengths = [draw(st.integers(1, (1100, 30, 8)[dim - 1])) for _ in range(dim)]
    return draw(st.integers(1, 5)), draw(st.integers(1, 4)), *lengths


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return a signal, a residual, a weight and a bias, and the same in float64."""
    signals = [(2 * torch.randn(shape) + 1).to(dtype) for _ in range(2)]
    single = [*(t.to(DEVICE) for t in signals), *(torch.randn(shape[1], device=DEVICE) for _ in range(2))]
    return [t.requires_grad_() for t in single], [t.detach().double().requires_grad_() for t in single]


def along(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return bias.view(-1, *(1,) * (x.dim() - 2))


@settings(max_examples=10)
@given(shape=shapes(), dtype=st.sampled_from(list(ROUNDING)), residual=st.booleans(), biased=st.booleans())
def test_activation(shape: tuple[int, ...], dtype: torch.dtype, residual: bool, biased: bool) -> None:
    (x, r, _, b), (x64, r64, _, b64) = tensors(shape, dtype)
    wanted, wanted64 = [x, r, b], [x64, r64, b64]
    grad = torch.randn(shape).to(x)
    with poisoned():
        y = activate(x, b if biased else None, residual=r if residual else None)
        got = [y, *torch.autograd.grad(y, wanted, grad, allow_unused=True)]
    exact = F.gelu(x64 + along(b64, x64) if biased else x64) + (r64 if residual else 0)
    expected = [exact, *torch.autograd.grad(exact, wanted64, grad.double(), allow_unused=True)]
    assert y.dtype == dtype
    assert [t is None for t in got] == [t is None for t in expected]
    pairs = [(a, b) for a, b in zip(got, expected, strict=True) if b is not None]
    assert_close([a for a, _ in pairs], [b for _, b in pairs], dtype)


@settings(max_examples=10)
@given(shape=shapes(), dtype=st.sampled_from(list(ROUNDING)), gelu=st.booleans(), passed=st.booleans())
def test_norm(shape: tuple[int, ...], dtype: torch.dtype, gelu: bool, passed: bool) -> None:
    if torch.Size(shape).numel() <= 3 * shape[1]:
        shape = (4, *shape[1:])  # the deviation of two or three numbers may be nothing
    (x, _, w, b), (x64, _, w64, b64) = tensors(shape, dtype)
    held, held64 = ([torch.full((shape[1],), 0.5, dtype=t.dtype, device=DEVICE) for _ in range(2)] for t in (w, w64))
    grads = [torch.randn(shape).to(x) for _ in range(2 if passed else 1)]
    with poisoned():
        y, same = norm_with_identity(x, w, b, (held[0], held[1]), momentum=0.3, activation="gelu" if gelu else None)
        got = [y, *torch.autograd.grad([y, same][: len(grads)], [x, w, b], grads)]
    exact = F.batch_norm(x64, *held64, w64, b64, True, 0.3, 1e-5)
    exact = F.gelu(exact) if gelu else exact
    weights = [g.double() for g in grads]
    expected = [exact, *torch.autograd.grad([exact, x64][: len(grads)], [x64, w64, b64], weights)]
    assert_close([*got, *held], [*expected, *held64], dtype)


def test_norm_of_a_signal_far_from_zero() -> None:
    x = torch.randn(4, 3, 50, device=DEVICE) + 1e4
    y = batch_norm(x)
    exact = F.batch_norm(x.double(), None, None, training=True)
    assert (y - exact).abs().max() < 1e-2  # what is left of the variance in float32
    constant = batch_norm(torch.full((2, 3, 50), 7.0, device=DEVICE))
    assert constant.abs().max() == 0


def test_dropout_is_computed_again_and_follows_the_seed() -> None:
    x = torch.randn(3, 4, 900, device=DEVICE, requires_grad=True)
    torch.manual_seed(3)
    y = activate(x, dropout=0.3)
    (grad,) = torch.autograd.grad(y.sum(), x)
    kept = y != 0
    assert 0.65 < kept.float().mean() < 0.75
    assert torch.equal(grad != 0, kept)
    torch.testing.assert_close(y[kept], (F.gelu(x) / 0.7)[kept], rtol=1e-5, atol=3e-6)
    torch.manual_seed(3)
    assert torch.equal(activate(x, dropout=0.3), y)
    assert not torch.equal(activate(x, dropout=0.3), y)
    # Neighbours along every axis are dropped independently of each other.
    for axis in range(3):
        pairs = kept.narrow(axis, 1, kept.shape[axis] - 1) & kept.narrow(axis, 0, kept.shape[axis] - 1)
        assert 0.46 < pairs.float().mean() < 0.52


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("space", [(7,), (3, 4)])
def test_dropout_of_whole_channels(fused: bool, space: tuple[int, ...]) -> None:
    x = torch.randn(30, 5, *space, device=DEVICE, requires_grad=True)
    w, b = torch.randn(16, 5, device=DEVICE), torch.randn(16, device=DEVICE)
    with use_fast_paths(fused):
        y = linear(x, w, b, activation="gelu", dropout=0.3, dropout_channels=True)
    kept = (y != 0).flatten(2).any(dim=2)
    assert 0.61 < kept.float().mean() < 0.79  # 480 draws
    assert len({tuple(row) for row in kept.tolist()}) > 25  # samples have draws of their own
    mask = kept.view(30, 16, *(1,) * len(space)) / 0.7
    plain = linear(x, w, b, activation="gelu")
    torch.testing.assert_close(y, plain * mask, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, weights)
    (expected,) = torch.autograd.grad(plain, x, weights * mask)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_seeds_decide_about_dropped_channels() -> None:
    x, found = torch.randn(4, 16, 5, device=DEVICE), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(activate(x, dropout=0.5, dropout_channels=True))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_second_derivatives_agree_with_the_torch_path() -> None:
    x = torch.randn(2, 3, 5, device=DEVICE, requires_grad=True)
    w = torch.rand(3, device=DEVICE, requires_grad=True)
    b = torch.rand(3, device=DEVICE, requires_grad=True)

    def second(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grads = torch.autograd.grad(y.pow(3).sum(), [x, w, b], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), [x, w, b])

    def fused() -> torch.Tensor:
        n, same = norm_with_identity(x, w, b, activation="gelu")
        return linear(activate(n, b, residual=same), w.outer(b), b, activation="gelu", residual=same)

    def plain() -> torch.Tensor:
        y = F.gelu(F.gelu(F.batch_norm(x, None, None, w, b, True)) + along(b, x)) + x
        return F.gelu(torch.einsum("oi,bin->bon", w.outer(b), y) + along(b, x)) + x

    torch.testing.assert_close(second(fused()), second(plain()), rtol=1e-4, atol=1e-4)
    torch.manual_seed(0)
    y = activate(x, b, dropout=0.5)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), x)
    assert torch.equal(again != 0, y.detach() != 0)


@settings(max_examples=10)
@given(
    shape=shapes(),
    outputs=st.integers(1, 9),
    dtype=st.sampled_from(list(ROUNDING)),
    residual=st.booleans(),
    biased=st.booleans(),
)
def test_map_and_activation(
    shape: tuple[int, ...], outputs: int, dtype: torch.dtype, residual: bool, biased: bool
) -> None:
    (x, _, _, _), (x64, _, _, _) = tensors(shape, dtype)
    (_, r, _, b), (_, r64, _, b64) = tensors((shape[0], outputs, *shape[2:]), dtype)
    w = torch.randn(outputs, shape[1], device=DEVICE, requires_grad=True)
    w64 = w.detach().to(dtype).double().requires_grad_()
    wanted, wanted64 = [x, r, w, b], [x64, r64, w64, b64]
    grad = torch.randn(r.shape).to(x)
    with poisoned():
        y = linear(x, w, b if biased else None, activation="gelu", residual=r if residual else None)
        got = [y, *torch.autograd.grad(y, wanted, grad, allow_unused=True)]
    mapped = torch.einsum("oi,bin->bon", w64, x64.flatten(2)).view(y.shape)
    # What is kept of the map is rounded to the dtype of the signal.
    mapped = mapped + (mapped.to(dtype).double() - mapped).detach()
    exact = F.gelu(mapped + along(b64, mapped) if biased else mapped) + (r64 if residual else 0)
    expected = [exact, *torch.autograd.grad(exact, wanted64, grad.double(), allow_unused=True)]
    pairs = [(a, b) for a, b in zip(got, expected, strict=True) if b is not None]
    assert_close([a for a, _ in pairs], [b for _, b in pairs], dtype)


@settings(max_examples=10)
@given(b=st.integers(1, 3), i=st.integers(1, 9), o=st.integers(1, 9), n=st.integers(1, 20))
def test_maps_of_channels_equal_an_einsum(b: int, i: int, o: int, n: int) -> None:
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((b, i, n), (o, i)))
    torch.testing.assert_close(map_channels(x, w), torch.einsum("oi,bin->bon", w, x))
    torch.autograd.gradcheck(map_channels, (x, w))
    torch.autograd.gradgradcheck(map_channels, (x, w))


def test_signals_without_space() -> None:
    x, w, b = (torch.randn(s, device=DEVICE) for s in ((6, 3), (3,), (3,)))
    torch.testing.assert_close(batch_norm(x, w, b), F.batch_norm(x, None, None, w, b, True))
    torch.testing.assert_close(activate(x, b, residual=x), F.gelu(x + b) + x)


def test_strided_and_expanded_tensors() -> None:
    x = torch.randn(2, 7, 5, device=DEVICE).mT.requires_grad_()
    y = activate(x, residual=torch.ones(1, 1, 1, device=DEVICE).expand(2, 5, 7))
    torch.testing.assert_close(y, F.gelu(x) + 1)
    (grad,) = torch.autograd.grad(y.sum(), x)  # by an expanded gradient
    (expected,) = torch.autograd.grad(F.gelu(x).sum(), x)
    torch.testing.assert_close(grad, expected)


NETWORKS = {
    "line": {"dim": 1, "size": 20, "sigma": None},
    "plane": {"dim": 2, "size": 6, "sigma": 0.3},
    "postnorm": {"dim": 1, "size": 10, "sigma": 0.3, "prenorm": False},
    "s4": {"dim": 1, "size": 10, "sigma": 0.3, "block": "s4"},
    "layer norm": {"dim": 1, "size": 10, "sigma": 0.3, "norm": "layer"},
    "statistics of the batch": {"dim": 1, "size": 10, "sigma": 0.3, "norm": "batch-statistics"},
}


@pytest.mark.parametrize(
    "options",
    [pytest.param(o, id=name, marks=pytest.mark.slow if name == "s4" else ()) for name, o in NETWORKS.items()],
)
def test_networks_agree_with_the_torch_path(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU, convolutions without fast paths would round their inputs to 10 bits.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    net = CCNN(2, 4, channels=3, blocks=1, **options).to(DEVICE)
    x = torch.randn(3, 2, *(options["size"],) * options["dim"], device=DEVICE)
    begin = {name: t.clone() for name, t in net.state_dict().items()}

    def results(fused: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return outputs and buffers, and the gradients of all parameters."""
        with use_fast_paths(fused):
            net.load_state_dict(begin)
            y = net.train()(x)
            loss = F.cross_entropy(y, torch.tensor([0, 1, 2], device=DEVICE))
            grads = torch.autograd.grad(loss, list(net.parameters()))
            return [y, *net.buffers(), net.eval()(x)], list(grads)

    with mock.patch.object(launch.FusedNorm, "apply", wraps=launch.FusedNorm.apply) as norm:
        outputs, grads = results(True)
        assert bool(norm.call_count) == ("batch" in options.get("norm", "batch"))
    plain_outputs, plain_grads = results(False)
    for a, b in zip(outputs, plain_outputs, strict=True):
        assert (a - b).abs().max() <= 2e-4 * b.abs().max() + 1e-5
    # A few gradients are sums of large terms that cancel, so that rounding is relative to all of them together. Fast
    # convolutions multiply in scaled float16 on a GPU; the interpreter's differences are those of float32.
    rounding = 2e-3 if DEVICE == "cuda" else 1e-4
    norm_of_all = torch.stack([b.norm() for b in plain_grads]).norm()
    for a, b in zip(grads, plain_grads, strict=True):
        assert (a - b).norm() <= rounding * norm_of_all
        if DEVICE == "cpu":
            assert (a - b).abs().max() <= 2e-4 * b.abs().max() + 1e-5


def test_half_precision_networks() -> None:
    net = CCNN(1, 4, channels=4, blocks=1, size=16).to(DEVICE)
    x = torch.randn(4, 1, 16, device=DEVICE)
    outputs = {}
    for fused in (True, False):
        with use_fast_paths(fused), torch.autocast(DEVICE, torch.bfloat16):
            outputs[fused] = net(x)
        torch.autograd.grad(outputs[fused].float().sum(), list(net.parameters()))
    assert outputs[True].dtype == outputs[False].dtype
    torch.testing.assert_close(outputs[True].float(), outputs[False].float(), rtol=0.1, atol=0.1)


def test_active_channels_are_the_first() -> None:
    norm, pointwise = BatchNorm(5).to(DEVICE), Pointwise(5, 4).to(DEVICE)
    x = torch.randn(3, 2, 9, device=DEVICE)
    y = norm(x, active=ActiveSlice((2,)))
    torch.testing.assert_close(y, F.batch_norm(x, None, None, training=True))
    assert (norm.running_mean[2:] == 0).all()
    assert (norm.running_mean[:2] != 0).all()
    rows, columns = torch.rand(3, device=DEVICE), torch.rand(2, device=DEVICE)
    active = ActiveSlice((2, 3), (columns, rows))
    offset = torch.randn(5, device=DEVICE)
    expected = pointwise(x + along(offset[:2], x), active=active)
    torch.testing.assert_close(pointwise(x, active=active, offset=offset), expected)
    with torch.no_grad():
        weight = pointwise.weight[:3, :2] * columns * rows[:, None]
    torch.testing.assert_close(pointwise(x, active=active), torch.einsum("oi,bin->bon", weight, x))


def test_other_inputs_take_the_torch_path() -> None:
    x = torch.randn(2, 3, 4, device=DEVICE)
    assert use_triton(x)
    assert not use_triton(x.double())
    assert not use_triton(x[:0])
    assert not torch.func.vmap(lambda row: torch.tensor(use_triton(row)))(x).any()
    with use_fast_paths(False):
        assert not use_triton(x)
        assert torch.equal(activate(x, residual=x), F.gelu(x) + x)

"""Spectra of frozen kernels are computed once, follow changes in place, and change no result."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CKConv
from kernelfield.ops import conv
from kernelfield.ops.conv import fft, frozen_spectra
from kernelfield.ops.conv.frozen_spectra import KEPT, keep_spectra, refresh_spectra
from tests.contracts.convolutions import Case
from tests.ops.interpreted import DEVICE, interpreter

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["interpreter"]

CASES = {
    "causal line": Case((2, 4, 40), (4, 1, 40), 4, causal=True),
    "line": Case((3, 2, 30), (2, 1, 59), 2),
    "circle": Case((3, 2, 30), (2, 1, 45), 2, "periodic"),
    "cylinder": Case((2, 3, 8, 9), (3, 1, 15, 17), 3, ("zero", "periodic")),
    "two kernels a channel": Case((2, 3, 20), (6, 1, 39), 3),
    "dense": Case((2, 3, 9, 8), (5, 3, 17, 15), 1),
    "groups": Case((2, 4, 9), (6, 2, 17), 2),
    "valid": Case((2, 4, 20), (4, 1, 7), 4, "valid"),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def convolve(case: Case, x: Tensor, kernel: Tensor, method: str = "fft") -> Tensor:
    return conv(x, kernel, causal=case.causal, boundary=case.boundary, groups=case.groups, method=method)


@every
@pytest.mark.parametrize("chunk", [1 << 22, 1 << 10], ids=["whole", "chunks"])
def test_kept_spectra_change_no_output(case: Case, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fft.CHUNK_BYTES, "cpu", chunk)
    kernel = torch.randn(case.kernel)
    frozen = keep_spectra(kernel.clone())
    for _ in range(3):
        x = torch.randn(case.x)
        assert torch.equal(convolve(case, x, frozen), convolve(case, x, kernel))
    found = KEPT[frozen]
    assert found is not None
    assert len(found.entries) <= 1  # one transform, or none where columns are transformed in blocks
    if chunk > 1 << 20:
        assert len(found.entries) == 1


@every
def test_a_kernel_changed_in_place_has_new_spectra(case: Case) -> None:
    x, frozen = torch.randn(case.x), keep_spectra(torch.randn(case.kernel))
    convolve(case, x, frozen)
    ((_, (spectrum, *_)),) = KEPT[frozen].entries.values()
    frozen.mul_(2)
    assert torch.equal(convolve(case, x, frozen), convolve(case, x, frozen.clone()))
    ((_, (same, *_)),) = KEPT[frozen].entries.values()
    assert same.data_ptr() == spectrum.data_ptr()  # where a CUDA graph reads it


def test_a_graph_reads_refreshed_spectra() -> None:
    frozen = keep_spectra(torch.randn(2, 1, 16))
    conv(torch.randn(1, 2, 16), frozen, groups=2, causal=True, method="fft")
    ((_, (spectrum,)),) = KEPT[frozen].entries.values()
    before = spectrum.clone()
    frozen.mul_(3)
    assert torch.equal(spectrum, before)  # nothing looked yet
    refresh_spectra(frozen)
    torch.testing.assert_close(spectrum, 3 * before)


def test_a_kernel_of_inference_mode_is_never_stale() -> None:
    x = torch.randn(1, 2, 16)
    with torch.inference_mode():
        kernel = keep_spectra(torch.randn(2, 1, 16))
        for _ in range(2):
            got = conv(x, kernel, groups=2, causal=True, method="fft")
            torch.testing.assert_close(got, conv(x, kernel, groups=2, causal=True, method="direct"))
            kernel.mul_(2)


def test_large_spectra_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_spectra, "MOST_BYTES", 1000)
    frozen = keep_spectra(torch.randn(2, 1, 16))
    for length in (16, 100):
        x = torch.randn(1, 2, length)
        got = conv(x, frozen, groups=2, causal=True, method="fft")
        assert torch.equal(got, conv(x, frozen.clone(), groups=2, causal=True, method="fft"))
    assert len(KEPT[frozen].entries) == 1


def test_gradients_of_the_signal_pass_through_frozen_kernels() -> None:
    x, kernel = torch.randn(2, 3, 16, requires_grad=True), torch.randn(3, 1, 16)

    def gradient(kernel: Tensor) -> Tensor:
        return torch.autograd.grad(conv(x, kernel, groups=3, causal=True, method="fft").square().sum(), x)[0]

    torch.testing.assert_close(gradient(keep_spectra(kernel.clone())), gradient(kernel))


def test_spectra_are_neither_copied_nor_saved_nor_kept_alive() -> None:
    frozen = keep_spectra(torch.randn(2, 1, 16))
    conv(torch.randn(1, 2, 16), frozen, groups=2, causal=True, method="fft")
    for other in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert torch.equal(other, frozen)
        assert other not in KEPT
    gone = weakref.ref(KEPT[frozen])
    del frozen, other
    gc.collect()
    assert gone() is None


def test_copies_of_frozen_layers_keep_spectra_of_their_own() -> None:
    layer = CKConv(2, 2, size=16, depthwise=True, method="fft").eval().freeze()
    x = torch.randn(1, 2, 16)
    with torch.no_grad():
        wanted = layer(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(other(x), wanted)
            kernel, own = (each.frozen((1.0,), (16,)) for each in (layer, other))
            assert len(KEPT[own].entries) == 1
            assert KEPT[own] is not KEPT[kernel]


@pytest.mark.parametrize("inference", [False, True])
def test_layers_frozen_in_inference_mode_keep_spectra(inference: bool) -> None:
    layer = CKConv(2, 2, size=16, depthwise=True, method="fft").eval()
    x = torch.randn(1, 2, 16)
    wanted = layer(x).detach()
    with torch.inference_mode(inference), torch.no_grad():
        layer.freeze()
        torch.testing.assert_close(layer(x), wanted)
    kernel = layer.frozen((1.0,), (16,))
    assert len(KEPT[kernel].entries) == 1
    assert layer.frozen((1.0,), (16,)) is kernel
    assert not kernel.is_inference()
    y = layer(x.requires_grad_())  # with a gradient for the signal, outside of inference mode
    torch.testing.assert_close(y.detach(), wanted)
    y.sum().backward()
    assert x.grad is not None


def test_layers_keep_no_more_than_some_lengths() -> None:
    layer = CKConv(1, 1, size=64, method="fft", bias=False).eval().freeze()
    for length in range(2, 60):
        x = torch.randn(1, 1, length)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), conv(x, layer.frozen((1.0,), (length,)), method="direct"))
    (frozen,) = layer._frozen.values()
    assert len(frozen._cuts) == 16


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("case", [CASES["causal line"], CASES["cylinder"], Case((1, 2, 600), (2, 1, 600), 2)])
def test_tensor_core_convolutions_keep_spectra(case: Case) -> None:
    x, kernel = torch.randn(case.x, device=DEVICE), torch.randn(case.kernel, device=DEVICE)
    frozen = keep_spectra(kernel.clone())
    for _ in range(2):
        assert torch.equal(convolve(case, x, frozen, "triton"), convolve(case, x, kernel, "triton"))
    frozen.mul_(2)
    assert torch.equal(convolve(case, x, frozen, "triton"), convolve(case, x, 2 * kernel, "triton"))

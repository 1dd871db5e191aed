"""Resampling in the frequency domain."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelfield.ops import resample, resample_reference
from kernelfield.ops.resample import apply_along, resample_matrix
from kernelfield.testing import assert_compiles

lengths = st.integers(1, 12)


def wave(frequency: int, size: int, phase: float = 0.3) -> torch.Tensor:
    return torch.cos(2 * torch.pi * frequency * torch.arange(size, dtype=torch.float64) / size + phase)


@given(data=st.data(), dim=st.integers(1, 3))
def test_equals_the_reference(data: st.DataObject, dim: int) -> None:
    old = [data.draw(lengths) for _ in range(dim)]
    new = [data.draw(lengths) for _ in range(dim)]
    x = torch.randn(2, 3, *old, dtype=torch.float64)
    expected = resample_reference(x, new)
    assert expected.shape == (2, 3, *new)
    torch.testing.assert_close(resample(x, new), expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(resample(x.float(), new), expected.float(), atol=1e-5, rtol=0)


@given(old=st.integers(3, 40), new=st.integers(3, 40), data=st.data())
def test_exact_for_frequencies_of_both_grids(old: int, new: int, data: st.DataObject) -> None:
    frequency = data.draw(st.integers(0, (min(old, new) - 1) // 2))
    torch.testing.assert_close(resample(wave(frequency, old), new), wave(frequency, new), atol=1e-10, rtol=0)


@given(old=st.integers(5, 40), new=st.integers(3, 40), data=st.data())
def test_higher_frequencies_are_removed_not_aliased(old: int, new: int, data: st.DataObject) -> None:
    new = min(new, old - 2)
    frequency = data.draw(st.integers(new // 2 + 1, max(new // 2 + 1, (old - 1) // 2)))
    assume(2 * frequency < old)  # else no whole frequency lies between what the two grids hold
    assert resample(wave(frequency, old), new).abs().max() < 1e-10


@given(old=st.integers(2, 20), more=st.integers(0, 20))
def test_up_and_down_again_is_the_identity_for_band_limited_signals(old: int, more: int) -> None:
    x = sum((wave(f, old, phase=float(f)) for f in range((old - 1) // 2 + 1)), torch.zeros(old))
    torch.testing.assert_close(resample(resample(x, old + more), old), x, atol=1e-10, rtol=0)


def test_upsampling_interpolates_the_old_samples() -> None:
    x = torch.randn(3, 7, dtype=torch.float64)
    torch.testing.assert_close(resample(x, 21)[:, ::3], x)


def test_the_mean_is_kept() -> None:
    x = torch.randn(3, 8, 9, dtype=torch.float64)
    for size in ((5, 4), (16, 20), (4, 30)):
        torch.testing.assert_close(resample(x, size).mean(dim=(1, 2)), x.mean(dim=(1, 2)))


# The last frequency of an even grid stands for itself and its negative. Sampled up, it is shared by the two,
# which makes a cosine of it; sampled down, they are joined again. The values are scipy.signal.resample's.
@pytest.mark.parametrize(
    ("x", "size", "expected"),
    [
        ([1.0, -1.0], 4, [1.0, 0.0, -1.0, 0.0]),
        ([1.0, -1.0], 3, [1.0, -0.5, -0.5]),
        ([1.0, 0.0, -1.0, 0.0], 2, [1.0, -1.0]),
        ([0.0, 1.0, 0.0, -1.0], 2, [0.0, 0.0]),
        ([1.0, 2.0, 3.0, 4.0], 2, [1.5, 3.5]),
        ([1.0, -1.0, 1.0, -1.0], 8, [1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0]),
    ],
)
def test_the_frequency_at_the_edge(x: list[float], size: int, expected: list[float]) -> None:
    assert resample(torch.tensor(x), size).tolist() == pytest.approx(expected, abs=1e-6)
    assert resample_reference(torch.tensor(x), size).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [1, 3, 4, 6, 9])
def test_gradcheck(size: int) -> None:
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resample(x, size), x)
    assert torch.autograd.gradgradcheck(lambda x: resample(x, size), x)


def test_gradcheck_of_several_axes() -> None:
    x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resample(x, (6, 3)), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6).to(dtype)
    y = resample(x, 9)
    assert y.dtype == dtype
    assert (y.double() - resample_reference(x.double(), 9)).abs().max() < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("size", [100, 400])
def test_an_empty_batch(size: int) -> None:
    x = torch.randn(0, 3, 200, requires_grad=True)
    y = resample(x, size, window=[torch.ones(201)])
    assert y.shape == (0, 3, size)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


def test_same_size_is_the_identity() -> None:
    x = torch.randn(2, 6, 7)
    assert resample(x, (6, 7)).equal(x)


@pytest.mark.parametrize("size", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_compiles(size: int) -> None:
    assert_compiles(lambda x: resample(x, (size, 4)), torch.randn(2, 8, 6, requires_grad=True))


@pytest.mark.parametrize(
    ("x", "size", "error", "says"),
    [
        (torch.ones(2, 3).long(), 4, TypeError, r"x .*got .*int64"),
        ([1.0, 2.0], 4, TypeError, "x .*got .*list"),
        (torch.ones(2, 3), 0, ValueError, "size .*got 0"),
        (torch.ones(2, 3), -2, ValueError, "size .*got -2"),
        (torch.ones(2, 3), 2.5, TypeError, r"size .*got 2\.5"),
        (
            torch.ones(2, 3),
            (1, 2, 3),
            ValueError,
            r"size .*got \(1, 2, 3\)",
        ),
        (torch.ones(2, 3), (), ValueError, r"size .*got \(\)"),
        (torch.ones(2, 0), 4, ValueError, "x must"),
    ],
)
def test_bad_arguments(x: Any, size: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=rf"\b{says}"):
        resample(x, size)


@pytest.mark.parametrize(("old", "new"), [(12, 12), (12, 7), (9, 9), (9, 4), (6, 10)])
def test_window_multiplies_the_spectrum(old: int, new: int) -> None:
    x = torch.randn(2, old, dtype=torch.float64)
    window = torch.rand(old // 2 + 1, dtype=torch.float64)
    filtered = torch.fft.irfft(torch.fft.rfft(x) * window, n=old)
    torch.testing.assert_close(resample(x, new, window=[window]), resample(filtered, new), rtol=0, atol=1e-12)
    x.requires_grad_()
    window.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: resample(x, new, window=[w]), (x, window))


@pytest.mark.parametrize(("old", "new"), [(160, 160), (160, 91), (150, 180), (9, 200)])
def test_matrices_and_transforms_agree(old: int, new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, old, dtype=torch.float64)
    window = torch.rand(min(old, new) // 2 + 1, dtype=torch.float64)
    by_transform = resample(x, new, window=[window])
    monkeypatch.setattr(sys.modules["kernelfield.ops.resample"], "MATRIX_UP_TO", 1000)
    torch.testing.assert_close(resample(x, new, window=[window]), by_transform, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("old", "new"), [(12, 7), (12, 12), (7, 12)])
def test_lengths_that_are_tensors(old: int, new: int) -> None:
    like = torch.zeros((), dtype=torch.float64)
    wanted = torch.zeros(12, 12, dtype=torch.float64)
    wanted[:new, :old] = resample_matrix(old, new, new, old, like=like)
    found = resample_matrix(torch.tensor(old), torch.tensor(new), 12, 12, like=like)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_a_window_is_for_every_axis() -> None:
    with pytest.raises(ValueError, match=r"\bwindow must"):
        resample(torch.randn(4, 4), (2, 2), window=[None])


@pytest.mark.parametrize(
    ("old", "new", "axis"),
    [
        *((6, 6, 1), (7, 4, 2), (5, 8, 1), (8, 6, 2)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((6, 6, 2), (7, 4, 1), (5, 8, 2), (8, 6, 1))),
    ],
)
def test_gradients_through_spectra(monkeypatch: pytest.MonkeyPatch, old: int, new: int, axis: int) -> None:
    monkeypatch.setattr(sys.modules["kernelfield.ops.resample"], "MATRIX_UP_TO", 0)
    x = torch.randn(2, *((old, 3) if axis == 1 else (3, old)), dtype=torch.float64, requires_grad=True)
    window = torch.rand(min(old, new) // 2 + 2, dtype=torch.float64, requires_grad=True)  # one more than is used

    def run(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        if axis == 1:
            return resample(x, (new, 3), window=[window, None])
        return resample(x, new, window=[window])

    assert torch.autograd.gradcheck(run, (x, window))
    assert torch.autograd.gradgradcheck(run, (x, window))
    assert torch.autograd.gradcheck(lambda x: run(x, window.detach()), (x,))


def test_planes_are_multiplied_from_the_left() -> None:
    x, matrix = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    y = apply_along(x, matrix, 2)
    torch.testing.assert_close(y, torch.einsum("mn,bcnk->bcmk", matrix, x))
    assert y.is_contiguous()


@pytest.mark.parametrize(("old", "new"), [(27, 9), (27, 27), (405, 135)])
def test_a_masked_spectrum_is_a_convolution_in_space_and_every_nth_sample(old: int, new: int) -> None:
    """Chapter 6, appendix "Learning downsampling in the spatial domain", on both sides of the matrix path's limit."""
    torch.manual_seed(0)
    x = torch.randn(2, 1, old, dtype=torch.float64)
    mask = torch.rand(new // 2 + 1, dtype=torch.float64, requires_grad=True)
    whole = torch.cat([mask, mask.new_zeros(old // 2 - new // 2)])
    kernel = torch.fft.irfft(whole, n=old)  # the inverse transform of the mask
    offsets = (torch.arange(old)[:, None] - torch.arange(old)) % old
    filtered = torch.einsum("ij,bcj->bci", kernel[offsets], x)
    found, expected = resample(x, new, window=[mask]), filtered[..., :: old // new]
    torch.testing.assert_close(found, expected)
    (ours,), (theirs,) = (torch.autograd.grad((y * x[..., :new]).sum(), mask) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_window_used_twice_has_the_same_gradient_for_a_second_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["kernelfield.ops.resample"], "MATRIX_UP_TO", 0)
    x = torch.randn(2, 9, dtype=torch.float64)
    window = torch.rand(5, dtype=torch.float64, requires_grad=True)
    found = [
        torch.autograd.grad(
            resample(resample(x, 8, window=[window]), 9, window=[window]).square().sum(), window, create_graph=again
        )
        for again in (False, True)
    ]
    torch.testing.assert_close(found[0], found[1])

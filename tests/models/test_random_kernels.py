"""Random continuous kernels and the linear map of their pooled responses."""

from __future__ import annotations

import pickle

import pytest
import torch

from kernelfield.fields import SIREN
from kernelfield.models import RandomKernelNet, RandomKernels, random_kernels


def fitted(*shape: int, **options: int) -> tuple[RandomKernels, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, *shape)
    features = RandomKernels(shape[0], dim=len(shape) - 1, size=shape[1:], kernels=15, **options)
    features.draw_biases(x)
    return features, x


@pytest.mark.parametrize("shape", [(1, 40), (3, 40), (12, 9), (2, 10, 14), (1, 6, 6, 6), (1, 1), (1, 2)], ids=str)
def test_kernels_have_zero_mean_and_unit_norm_and_features_are_bounded(shape: tuple[int, ...]) -> None:
    features, x = fitted(*shape)
    for level in range(features.levels):
        kernel = features.get_buffer(f"kernel_{level}").flatten(2)
        used = kernel.norm(dim=2) > 0
        assert used.any(dim=1).all()
        torch.testing.assert_close(kernel.norm(dim=2)[used], torch.ones(int(used.sum())))
        if kernel.shape[2] > 1:
            assert kernel.sum(dim=2).abs().max() < 1e-4
    found = features(x)
    assert found.shape == (6, 15 * 7)
    assert torch.isfinite(found).all()


def test_shares_are_those_of_the_thresholds() -> None:
    features, x = fitted(1, 30)
    (first, *_) = features.responses(x)
    shares = features(x)[:, : first.shape[1]]
    torch.testing.assert_close(shares, (first > features.biases[: first.shape[1], :1] + 1e-6).float().mean(dim=2))


def test_padding_under_a_mask_changes_nothing() -> None:
    features, x = fitted(2, 24)
    padded = torch.nn.functional.pad(x, (0, 10))
    mask = (torch.arange(34) < 24).expand(6, 34)
    torch.testing.assert_close(features(padded, mask), features(x), atol=1e-5, rtol=1e-5)
    net = RandomKernelNet(2, 3, size=24, kernels=5)
    torch.testing.assert_close(net(padded, mask), net(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("most", [2048, 10])
def test_predictions_do_not_depend_on_the_padding_of_the_batch(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_kernels.MAX_VALUES, 1, most)
    torch.manual_seed(0)
    net = RandomKernelNet(2, 3, size=30, kernels=10).double().eval()
    x = torch.randn(2, 2, 40, dtype=torch.float64)
    for length in (7, 10, 23, 30, 40):
        mask = torch.arange(40) < torch.tensor([[length], [40]])
        alone, among = net(x[:1, :, :length]), net(x.masked_fill(~mask.unsqueeze(1), 0.0), mask)
        torch.testing.assert_close(alone[0], among[0])


def test_batches_in_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features, x = fitted(1, 20)
    whole = features(x)
    monkeypatch.setattr(random_kernels, "CHUNK", 100)
    torch.testing.assert_close(features(x), whole)


def test_a_seed_decides_and_fields_may_be_others() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(RandomKernelNet(1, 2, size=16, kernels=8, field=SIREN))
    x = torch.randn(2, 1, 16)
    torch.testing.assert_close(nets[0](x), nets[1](x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(nets[0]))(x), nets[0](x))


@pytest.mark.parametrize("options", [{"kernels": 0}, {"biases": 0}, {"size": 0}], ids=str)
def test_wrong_arguments_are_named(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"\b{next(iter(options))} must"):
        RandomKernels(1, **{"size": 8, **options})


def test_a_constant_signal_is_above_no_threshold_of_its_own() -> None:
    features, _ = fitted(1, 64)
    flat = torch.full((2, 1, 64), 0.3, dtype=torch.float64)
    features.double().draw_biases(flat)
    # Beyond its ends there are zeros, which wide kernels see from anywhere.
    narrow = features.get_buffer("kernel_0").shape[0]
    torch.testing.assert_close(features(flat)[:1], features(flat[:1] + 1e-12))
    assert features(flat)[:, :narrow].max() < 0.2


def test_samples_without_observed_positions_have_finite_features_and_give_no_thresholds() -> None:
    features, x = fitted(1, 20)
    mask = torch.ones(6, 20, dtype=torch.bool)
    mask[1:] = False
    found = features(x, mask)
    assert found.isfinite().all()
    assert not found[1:].any()
    features.draw_biases(x, mask)
    first = next(features.responses_of_random_samples(x, mask))
    assert all(len(responses) == 20 for responses in first)
    with pytest.raises(ValueError, match="mask must"):
        features.draw_biases(x, torch.zeros_like(mask))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_thresholds_are_drawn_on_a_gpu() -> None:
    features = RandomKernels(2, size=24, kernels=20).cuda()
    x = torch.randn(6, 2, 24, device="cuda")
    features.draw_biases(x, torch.rand(6, 24, device="cuda") < 0.7)
    assert features(x).is_cuda
    assert features.biases.abs().sum() > 0

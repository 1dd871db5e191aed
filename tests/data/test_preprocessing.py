"""The transform of a pretrained network: what it converts, and what it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

import kernelfield as kf
from kernelfield.data import Data, Preprocessing, Split, preprocessing
from kernelfield.data.metadata import metadata
from kernelfield.data.transforms.batch import Chain, Standardize
from kernelfield.experiments.run import make_task
from kernelfield.experiments.weight import weight_recipe

pytest.importorskip("safetensors")


def transform(*shape: int, dtype: torch.dtype = torch.uint8, masked: bool = False, **config: Any) -> Preprocessing:
    """Return the preprocessing of a network on samples of a shape."""
    scale = {torch.uint8: 1 / 255, torch.int16: 1 / 32768, torch.float32: 1.0}[dtype]
    mask = torch.ones(2, *shape[1:], dtype=torch.bool) if masked else None
    channels = (0.5,) * shape[0]
    prepare = Chain((Standardize(channels, channels, scale=scale),))
    split = Split(torch.zeros(2, *shape, dtype=dtype), torch.zeros(2, dtype=torch.long), mask=mask, prepare=prepare)
    data = Data.from_splits("drawn", [split, None, split], classes=("a", "b"))
    return Preprocessing({"name": "net.tag", "preprocessing": metadata(data), **config})


class TestImages:
    def test_bytes_and_shares_give_the_same(self) -> None:
        x = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
        prepare = transform(1, 8, 8)
        torch.testing.assert_close(prepare(x), (x / 255 - 0.5) / 0.5)
        torch.testing.assert_close(prepare(x / 255), prepare(x))
        torch.testing.assert_close(prepare(x.numpy()), prepare(x))
        torch.testing.assert_close(prepare(x[:, 0]), prepare(x))

    def test_other_sizes_are_resized(self) -> None:
        assert transform(1, 8, 8)(torch.rand(2, 1, 20, 30)).shape == (2, 1, 8, 8)
        flat = torch.full((1, 1, 20, 20), 0.7)
        torch.testing.assert_close(transform(1, 8, 8)(flat), torch.full((1, 1, 8, 8), 0.4))

    def test_colours_become_grey_and_grey_three_channels(self) -> None:
        grey = torch.rand(2, 1, 8, 8)
        torch.testing.assert_close(transform(1, 8, 8)(grey.expand(-1, 3, -1, -1)), transform(1, 8, 8)(grey))
        assert transform(3, 8, 8)(grey).shape == (2, 3, 8, 8)

    def test_floats_beyond_the_scale_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"x must be uint8 or floats in \[0, 1\] for net\.tag"):
            transform(1, 8, 8)(torch.full((1, 1, 8, 8), 200.5))
        with pytest.raises(ValueError, match=r"x must be uint8 or floats in \[0, 1\] for net\.tag"):
            transform(1, 8, 8)(torch.full((1, 1, 8, 8), 300))
        stored = torch.randint(2, 256, (1, 1, 8, 8))  # bytes of any type
        torch.testing.assert_close(transform(1, 8, 8)(stored.double()), transform(1, 8, 8)(stored.to(torch.uint8)))

    @pytest.mark.parametrize("shape", [(2, 2, 8, 8), (8,), (2, 1, 8, 8, 8), (2, 1, 64), (2, 3, 64)])
    def test_other_shapes_are_refused_by_name(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"x must have .*net\.tag"):
            transform(1, 8, 8)(torch.rand(shape))

    @pytest.mark.parametrize("shape", [(2, 1, 36), (2, 3, 16), (2, 3, 36)])
    def test_series_are_no_images_of_few_rows(self, shape: tuple[int, ...]) -> None:
        prepare = transform(1, 16, layout={"image": [4, 4], "permute": None})
        with pytest.raises(ValueError, match=r"x must have .*net\.tag"):
            prepare(torch.rand(shape))

    def test_channels_of_physics_are_no_colours(self) -> None:
        split = Split(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
        data = Data.from_splits("flow", [split, None, split], task="regression", out_channels=1)
        prepare = Preprocessing({"name": "net.tag", "preprocessing": metadata(data)})
        assert prepare(torch.rand(2, 1, 8, 8)).shape == (2, 1, 8, 8)
        with pytest.raises(ValueError, match=r"x must have 1 channels for net\.tag, got 3"):
            prepare(torch.rand(2, 3, 8, 8))

    def test_values_of_another_range_are_reported(self) -> None:
        """Images stored as floats have no scale of their own: bytes would be 16 times as bright as these digits."""
        prepare = preprocessing(kf.create_model("dren.rotdigits_small", pretrained=True))
        digits = torch.from_numpy(load_digits().images[:20]).unsqueeze(1)
        prepare(digits)
        for factor in (16, 1 / 16):
            with pytest.warns(UserWarning, match="channel 0 of x .*same unit"):
                prepare(factor * digits)

    def test_masks_for_bytes_are_reported(self) -> None:
        """Zeros and ones as bytes are black images, for weights and runs, also those that read pixels in a sequence."""
        for name in ("flextcn_2.smnist", "z2cnn.rotmnist"):
            prepare = preprocessing(kf.create_model(name, pretrained=True))
            digits = (torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)) < 0.2).byte()
            prepare(255 * digits)
            with pytest.warns(UserWarning, match="channel 0 of x .*same unit"):
                prepare(digits)

    def test_gaps_of_samples_that_are_converted_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"mask must be None .*net\.tag"):
            transform(1, 8, 8).batch(torch.rand(2, 1, 9, 9), mask=torch.ones(2, 9, 9, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"mask must have shape \(2, 8, 8\)"):
            transform(1, 8, 8).batch(torch.rand(2, 1, 8, 8), mask=torch.ones(2, 9, 9, dtype=torch.bool))

    def test_pixels_in_a_permuted_order(self) -> None:
        layout = {"image": [4, 4], "permute": 3}
        x = torch.rand(2, 1, 4, 4)
        order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
        found = transform(1, 16, layout=layout)(x)
        torch.testing.assert_close(found, (x.flatten(2)[..., order] - 0.5) / 0.5)
        torch.testing.assert_close(transform(1, 16, layout=layout)(x.flatten(2)[..., order]), found)


class TestSeries:
    def test_another_rate_is_resampled(self) -> None:
        prepare = transform(1, 100, dtype=torch.int16, rate=8000.0)
        slow = torch.sin(2 * torch.pi * torch.arange(100) / 50).view(1, 1, -1)
        fast = torch.sin(2 * torch.pi * torch.arange(200) / 100).view(1, 1, -1)
        torch.testing.assert_close(prepare(0.5 * fast, rate=16000), prepare(0.5 * slow), rtol=1e-3, atol=1e-3)

    def test_a_rate_without_one_to_convert_to_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"rate must be None for net\.tag"):
            transform(1, 100, dtype=torch.float32)(torch.randn(1, 1, 100), rate=16000)

    def test_another_length_is_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match=r"x must have size \(100,\) for net\.tag, got \(90,\)"):
            transform(1, 100, dtype=torch.float32)(torch.randn(1, 1, 90))

    def test_short_series_are_padded_where_the_network_takes_a_mask(self) -> None:
        prepare = transform(1, 100, dtype=torch.float32, masked=True)
        batch = prepare.batch(torch.randn(2, 1, 60))
        assert batch.inputs.shape == (2, 1, 100)
        assert batch.mask is not None
        assert batch.mask.sum(dim=1).tolist() == [60, 60]
        with pytest.raises(ValueError, match="x must have no gaps"):
            prepare(torch.randn(2, 1, 60))
        assert prepare(torch.randn(2, 1, 100)).shape == (2, 1, 100)

    def test_missing_values_are_masked(self) -> None:
        x = torch.randn(1, 1, 100)
        x[..., 5] = torch.nan
        batch = transform(1, 100, dtype=torch.float32).batch(x)
        assert batch.inputs.isfinite().all()
        assert batch.mask is not None
        assert not batch.mask[0, 5]

    def test_a_sample_without_values_is_refused_and_one_with_gaps_is_not_resampled(self) -> None:
        x = torch.rand(2, 1, 100)
        x[1] = torch.nan
        with pytest.raises(ValueError, match="x must hold at least one value in each sample, got none in sample 1"):
            transform(1, 100, dtype=torch.int16).batch(x)
        with pytest.raises(ValueError, match=r"x must have no missing values to be resampled .*net\.tag"):
            transform(1, 50, dtype=torch.int16, rate=8000.0).batch(x, rate=16000)


def test_bytes_are_no_16_bit_sounds() -> None:
    prepare = preprocessing(kf.create_model("ccnn_4_140.fsdd", pretrained=True))
    with pytest.raises(ValueError, match="x must be int16"):
        prepare(torch.full((1, 1, 8000), 128, dtype=torch.uint8))


class TestNetworks:
    @pytest.mark.parametrize("name", kf.list_models(pretrained=True))
    def test_every_weight_has_one(self, name: str) -> None:
        net = kf.create_model(name, pretrained=True).eval()
        prepare, stored = preprocessing(net), preprocessing(net).data.test
        coords = None if stored.coords is None else torch.rand(1, *stored.coords.shape[1:])
        batch = prepare.batch(torch.zeros(1, *prepare.input_shape, dtype=stored.inputs.dtype), coords=coords)
        task = make_task(weight_recipe(name), net).eval()
        with torch.no_grad():
            torch.manual_seed(0)  # some networks draw elements of their group
            y = net(batch.inputs, **batch.sampling)
            torch.manual_seed(0)
            torch.testing.assert_close(task(batch), y)
        assert y.isfinite().all()

    def test_points_need_coordinates(self) -> None:
        net = kf.create_model("gridified_modelnet40.chair_monitor_small", pretrained=True)
        with pytest.raises(ValueError, match="coords must hold"):
            preprocessing(net)(torch.rand(2, 3, 256))

    def test_a_network_without_weights_is_refused_by_name(self) -> None:
        with pytest.raises(TypeError, match="model must be a network with pretrained weights, got GCNN"):
            preprocessing(kf.create_model("p4cnn"))
        with pytest.raises(ValueError, match=r"model .*net\.tag"):
            Preprocessing({"name": "net.tag", "preprocessing": None})

    def test_complex_numbers_are_refused(self) -> None:
        with pytest.raises(TypeError, match="x must hold"):
            transform(1, 100)(torch.zeros(1, 1, 100, dtype=torch.complex64))

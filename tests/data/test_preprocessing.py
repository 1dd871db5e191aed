"""The transform of a pretrained network: what it converts, and what it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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

    @pytest.mark.parametrize("shape", [(2, 2, 8, 8), (8,), (2, 1, 8, 8, 8)])
    def test_other_shapes_are_refused_by_name(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"x must have .*net\.tag"):
            transform(1, 8, 8)(torch.rand(shape))

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


class TestNetworks:
    @pytest.mark.parametrize("name", kf.list_models(pretrained=True))
    def test_every_weight_has_one(self, name: str) -> None:
        net = kf.create_model(name, pretrained=True).eval()
        prepare, stored = preprocessing(net), preprocessing(net).data.test
        coords = None if stored.coords is None else torch.rand(1, *stored.coords.shape[1:])
        batch = prepare.batch(torch.zeros(1, *prepare.input_shape, dtype=stored.inputs.dtype), coords=coords)
        with torch.no_grad():
            assert make_task(weight_recipe(name), net)(batch).isfinite().all()

    def test_a_network_without_weights_is_refused_by_name(self) -> None:
        with pytest.raises(TypeError, match="model must be a network with pretrained weights, got GCNN"):
            preprocessing(kf.create_model("p4cnn"))
        with pytest.raises(ValueError, match=r"model .*net\.tag"):
            Preprocessing({"name": "net.tag", "preprocessing": None})

    def test_complex_numbers_are_refused(self) -> None:
        with pytest.raises(TypeError, match="x must hold"):
            transform(1, 100)(torch.zeros(1, 1, 100, dtype=torch.complex64))

"""Fine-tuning on own images and sounds: the data are converted to the input that the weight reads."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import kernelfield as kf
from kernelfield.cli.common import recipe_and_data
from kernelfield.data import preprocessing
from kernelfield.data.base import Batch
from kernelfield.data.sets.images.image_folder import read_image
from kernelfield.experiments.custom_data import load_path
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import with_settings
from kernelfield.experiments.run import make_network
from kernelfield.experiments.start_from import Start, load_weights, source_lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Colour images of 20², in a folder for each of two classes."""
    pillow = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(8):
            pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            pillow.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    return tmp_path / "images"


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """Sounds of a tenth of a second at 16 kHz, in a folder for each of two classes."""
    random = np.random.default_rng(0)
    for name in ("high", "low"):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for i in range(8):
            with wave.open(str(tmp_path / "sounds" / name / f"{i}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16_000)
                file.writeframes(random.integers(-9000, 9000, 1600, dtype=np.int16).tobytes())
    return tmp_path / "sounds"


class TestImages:
    @pytest.mark.parametrize(
        ("weight", "channels", "size"),
        [
            ("z2cnn.rotmnist", 1, [28, 28]),
            ("flextcn_2.smnist", 1, [784]),
            ("ccnn_4_140.scifar10", 3, [1024]),
        ],
    )
    def test_only_the_classifier_starts_afresh(self, images: Path, weight: str, channels: int, size: list[int]) -> None:
        recipe, data = load_path(images, start_from=weight)
        assert (recipe.shape.in_channels, recipe.shape.size) == (channels, size)
        assert data.train.batch(slice(0, 2)).inputs.shape == (2, channels, *size)
        network = make_network(recipe, data)
        network.reset_classifier(10)  # type: ignore[operator]
        assert len(load_weights(network, weight)) == 1

    def test_the_permuted_order_is_that_of_the_weight(self, images: Path) -> None:
        plain, _ = load_path(images, {"resolution": 28, "gray": True, "sequence": True})
        recipe, data = load_path(images, start_from="ccnn_4_140.pmnist")
        assert (plain.data.get("permute"), recipe.data["permute"]) == (None, 0)
        rows = load_path(images, {"resolution": 28, "gray": True})[1].test.batch(slice(0, 2)).inputs.flatten(2)
        order = torch.randperm(784, generator=torch.Generator().manual_seed(0))
        assert torch.equal(data.test.batch(slice(0, 2)).inputs, rows[..., order])

    def test_given_options_come_first_and_the_log_names_the_others(self, images: Path) -> None:
        recipe, data = load_path(images, {"resolution": 32}, start_from="z2cnn.rotmnist")
        assert (recipe.data["resolution"], data.in_channels) == (32, 1)
        assert source_lines(Start("z2cnn.rotmnist"), recipe.data) == ["  input as for z2cnn.rotmnist: data.gray=true"]

    def test_named_data_are_converted_too(self) -> None:
        recipe, _ = recipe_and_data("rotated_digits", "", ["data.validation=0"], "z2cnn.rotmnist")
        assert (recipe.shape.size, recipe.data["resolution"]) == ([28, 28], 28)

    def test_a_run_on_sequences_predicts_image_files(self, images: Path, tmp_path: Path) -> None:
        recipe, data = load_path(images, {"resolution": 8, "sequence": True, "augment": True}, model="ccnn_4_140")
        small = ["training.epochs=1", "model.channels=4", "model.blocks=1", "model.hidden=4", "test={}"]
        run = fit(with_settings(recipe, small), tmp_path / "run", data=data, report=False)
        loaded = kf.load_run(run.folder)
        (row,) = loaded.predict([images / "cat" / "0.png"])
        pixels = torch.tensor(read_image(images / "cat" / "0.png", 8)).movedim(2, 0)[None].float()
        assert data.test.prepare is not None
        inputs = data.test.prepare(Batch(pixels), False).inputs
        assert inputs.shape == (1, 3, 64)
        with torch.no_grad():
            expected = loaded.network(inputs).softmax(dim=1)[0]
        assert list(row["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)

    def test_the_network_of_a_run_is_saved_with_its_preprocessing(self, images: Path, tmp_path: Path) -> None:
        pytest.importorskip("safetensors")
        recipe, data = load_path(images, {"resolution": 8, "sequence": True}, model="ccnn_4_140")
        small = ["training.epochs=1", "model.channels=4", "model.blocks=1", "model.hidden=4", "test={}"]
        run = fit(with_settings(recipe, small), tmp_path / "run", data=data, report=False)
        saved = kf.from_pretrained(kf.save_pretrained(kf.load_run(run.folder).network, tmp_path / "saved")).eval()
        transform = preprocessing(saved)
        assert transform.classes == ("cat", "dog")
        pixels = torch.tensor(read_image(images / "cat" / "0.png", 8)).movedim(2, 0)[None]
        with torch.no_grad():
            found = saved(transform(pixels)).softmax(dim=1)[0]
        (row,) = kf.load_run(run.folder).predict([images / "cat" / "0.png"])
        assert list(row["probabilities"].values()) == pytest.approx(found.tolist(), abs=1e-5)
        assert transform(pixels.repeat_interleave(3, dim=2)).shape == (1, 3, 64)  # of another size


class TestSounds:
    def test_a_weight_on_samples_reads_samples_at_its_rate(self, sounds: Path) -> None:
        recipe, data = load_path(sounds, start_from="ccnn_4_140.fsdd")
        assert (data.in_channels, data.size, recipe.data["rate"], recipe.data["features"]) == (1, (8000,), 8000, "raw")
        assert "augment" not in recipe.data

    def test_a_wavelet_network_reads_samples(self, sounds: Path) -> None:
        _, data = load_path(sounds, start_from="w5.transients_small")
        assert (data.in_channels, data.size) == (1, (1600,))

    def test_the_length_follows_a_given_rate(self, sounds: Path) -> None:
        """Sounds of a tenth of a second at 4 kHz, not at their own rate."""
        assert load_path(sounds, {"rate": 4000, "features": "raw"})[1].size == (400,)

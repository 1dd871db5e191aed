"""CIFAR, read from its public layout: valid, truncated, corrupt and malicious files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.registry import load
from kernelfield.data.sets.images.cifar import cifar10, cifar100
from kernelfield.data.transforms.batch import Chain, CropFlip
from kernelfield.data.transforms.to_sequence import NoisePadding

RNG = np.random.default_rng(0)


def cifar_batch(n: int, key: bytes, classes: int, protocol: int = 2) -> bytes:
    data = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": data, key: [i % classes for i in range(n)], b"filenames": [b"a"]}, protocol=protocol)


@pytest.fixture(params=[2, 4, 5])
def cifar_root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(cifar_batch(20, b"labels", 10, request.param))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"c{i}" for i in range(10)]}))
    return tmp_path


def test_cifar10(cifar_root: Path) -> None:
    data = cifar10(cifar_root, validation=10)
    assert (len(data.train), len(data.validation), len(data.test)) == (90, 10, 20)
    assert data.classes[3] == "c3"
    assert data.train.batch(slice(0, 5)).inputs.shape == (5, 3, 32, 32)
    sequence = cifar10(cifar_root, form="sequence", validation=10)
    assert torch.equal(sequence.train.inputs, data.train.inputs.flatten(2))
    gray = cifar10(cifar_root, form="gray-sequence", validation=10)
    assert gray.train.batch(slice(0, 5)).inputs.shape == (5, 1, 1024)
    assert cifar10(cifar_root, resolution=16, validation=10).size == (16, 16)
    with pytest.raises(ValueError, match=r"\bform must"):
        cifar10(cifar_root, form="rows")
    with pytest.raises(ValueError, match=r"\bpadding must"):
        cifar10(cifar_root, augment=True, padding="edge")


@pytest.mark.parametrize(("form", "channels"), [("sequence", 3), ("gray-sequence", 1)])
def test_images_are_augmented_before_they_become_sequences(cifar_root: Path, form: str, channels: int) -> None:
    images = cifar10(cifar_root, form=form.replace("sequence", "").strip("-") or "image", augment=True, validation=10)
    data = cifar10(cifar_root, form=form, augment=True, validation=10)
    assert (data.in_channels, data.size) == (channels, (1024,))
    for training in (False, True):
        torch.manual_seed(0)
        wanted = images.train.batch(slice(0, 6), training).inputs.flatten(2)
        torch.manual_seed(0)
        assert torch.equal(data.train.batch(slice(0, 6), training).inputs, wanted)
    plain = cifar10(cifar_root, form=form, validation=10)
    for ours, theirs in ((data.validation, plain.validation), (data.test, plain.test)):
        assert torch.equal(ours.batch(slice(0, 6)).inputs, theirs.batch(slice(0, 6)).inputs)


def test_images_are_normalised_one_by_one_and_clipped(cifar_root: Path) -> None:
    each = cifar10(cifar_root, normalize="image", validation=10).test.batch(slice(0, 5)).inputs
    torch.testing.assert_close(each.mean(dim=(2, 3)), torch.zeros(5, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(each.std(dim=(2, 3), correction=0), torch.ones(5, 3))
    data = cifar10(cifar_root, normalize="image", limit=1.5, augment=True, validation=10)
    torch.testing.assert_close(data.test.batch(slice(0, 5)).inputs, each.clamp(-1.5, 1.5))
    assert data.train.batch(slice(0, 5), training=True).inputs.abs().max() == 1.5
    again = from_metadata(json.loads(json.dumps(metadata(data))))
    assert again.test.prepare == data.test.prepare
    with pytest.raises(ValueError, match=r"\blimit must"):
        cifar10(cifar_root, limit=0.0)
    with pytest.raises(ValueError, match=r"\bnormalize must"):
        cifar10(cifar_root, normalize="batch")


def test_noise_padded_images_can_be_augmented(cifar_root: Path) -> None:
    data = cifar10(cifar_root, form="noise-padded", noise="shared", augment=True, validation=10)
    x, y = (data.train.batch(slice(0, 8), training).inputs for training in (False, True))
    assert torch.equal(x[:, :, 32:], y[:, :, 32:])
    assert not torch.equal(x[:, :, :32], y[:, :, :32])


def test_shared_noise_does_not_depend_on_the_device() -> None:
    padding = NoisePadding(None, 10, "shared", seed=3)
    here = padding.draw(torch.empty(2, 3, 4), True)
    assert torch.equal(here[1:], torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(padding.draw(torch.empty(2, 3, 4), False), here)
    # Another device has another generator of random numbers, which must not be used.
    assert padding.draw(torch.empty(2, 3, 4, device="meta"), True).device.type == "meta"


def test_noise_padded_cifar10(cifar_root: Path) -> None:
    data = cifar10(cifar_root, form="noise-padded", validation=10)
    plain = cifar10(cifar_root, validation=10)
    assert (data.in_channels, data.size) == (96, (1000,))
    x, images = data.test.batch(slice(0, 4)).inputs, plain.test.batch(slice(0, 4)).inputs
    assert x.shape == (4, 96, 1000)
    # Step t is row t: the channels are colour by colour, column by column.
    torch.testing.assert_close(x[:, :, 7], images[:, :, 7].flatten(1))
    assert x[:, :, 32:].std() == pytest.approx(1, abs=0.02)
    assert torch.equal(x, data.test.batch(slice(0, 4)).inputs)
    assert not torch.equal(data.train.batch(slice(0, 4), True).inputs, data.train.batch(slice(0, 4), True).inputs)
    shared = cifar10(cifar_root, form="noise-padded", noise="shared", validation=10)
    x = shared.train.batch(slice(0, 4), True).inputs[:, :, 32:]
    assert torch.equal(x[0], x[3])


@pytest.mark.parametrize(("resolution", "pad"), [(32, 4), (16, 2)])
def test_images_of_any_resolution_are_shifted_by_an_eighth_of_their_side(
    cifar_root: Path, resolution: int, pad: int
) -> None:
    data = cifar10(cifar_root, augment=True, resolution=resolution, validation=10)
    assert isinstance(data.train.prepare, Chain)
    assert data.train.prepare.steps[0] == CropFlip(pad)


@pytest.mark.parametrize("padding", ["zero", "symmetric"])
def test_augmentation_shifts_images(cifar_root: Path, padding: str) -> None:
    data = cifar10(cifar_root, augment=True, padding=padding, validation=10)
    assert torch.equal(
        data.train.batch(slice(0, 4)).inputs, cifar10(cifar_root, validation=10).train.batch(slice(0, 4)).inputs
    )
    plain, moved = (data.train.batch(slice(0, 8), training).inputs for training in (False, True))
    mode = {"zero": "constant", "symmetric": "symmetric"}[padding]
    padded = torch.from_numpy(np.pad(data.train.inputs[:8].numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode=mode))
    normal = cifar10(cifar_root, validation=10).train.prepare
    for i in range(8):
        found = False
        for flip in (False, True):
            for dy in range(9):
                for dx in range(9):
                    crop = padded[i : i + 1, :, dy : dy + 32, dx : dx + 32]
                    crop = crop.flip(-1) if flip else crop
                    found |= torch.equal(normal(type(data.train.batch(slice(0, 1)))(crop), False).inputs[0], moved[i])
        assert found
    assert not torch.equal(plain, moved)


class Evil:
    def __reduce__(self):
        return (Path("/tmp/kernelfield-was-here").touch, ())


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused(cifar_root: Path, protocol: int) -> None:
    path = cifar_root / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(pickle.dumps({b"data": Evil()}, protocol=protocol))
    with pytest.raises(ValueError, match=r"\bdata_batch_3 must"):
        cifar10(cifar_root)
    assert not Path("/tmp/kernelfield-was-here").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must"),
        (b"\x80\x04garbage", "must"),
        (cifar_batch(20, b"labels", 10)[:-2000], "must"),
        (pickle.dumps([1, 2]), ".*found list"),
        (pickle.dumps({b"data": 1, b"labels": []}), ".*found int"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]}), "found float32"),
        (cifar_batch(20, b"fine_labels", 10), ".*found NoneType"),
        (cifar_batch(20, b"labels", 11), "must"),
        (pickle.dumps({b"data": np.array([object()])}), "must"),
        (pickle.dumps({b"data": np.zeros(2, dtype="M8[s]")}), "an array of dtype datetime64|a broken one"),
        (pickle.dumps({b"data": {1, 2}}), "must"),
    ],
)
def test_broken_cifar(cifar_root: Path, content: bytes, message: str) -> None:
    (cifar_root / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(ValueError, match=f"data_batch_2 .*({message})"):
        cifar10(cifar_root)


def test_cifar100(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(cifar_batch(200, b"fine_labels", 100))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"x%d" % i for i in range(100)]}))
    data = cifar100(tmp_path, validation=100)
    assert data.out_channels == 100
    assert sorted(data.train.target.tolist()) == list(range(100))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"x"]}))
    with pytest.raises(ValueError, match=r"\bmeta must"):
        cifar100(tmp_path)


def test_gray_images_flatten_to_the_gray_sequence(cifar_root: Path) -> None:
    images, sequence = (load(name, cifar_root, validation=4) for name in ("lra_image_2d", "lra_image"))
    assert images.train.inputs.shape[1:] == (1, 32, 32)
    assert torch.equal(images.train.inputs.flatten(2), sequence.train.inputs)

"""Images read from public layouts: MNIST, CIFAR, STL-10, folders; whole, truncated and corrupt."""

from __future__ import annotations

import gzip
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kernelfield.data.base import Batch
from kernelfield.data.registry import load
from kernelfield.data.sets.images.cifar import cifar10, cifar100
from kernelfield.data.sets.images.image_folder import image_folder
from kernelfield.data.sets.images.mnist import mnist
from kernelfield.data.sets.images.rotated_mnist import mnist6_180, mnist6_m, rotated_mnist
from kernelfield.data.sets.images.stl10 import stl10
from kernelfield.data.transforms.batch import ResizeRotateCrop

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist_root(tmp_path: Path) -> Path:
    for part, n in (("train", 60), ("t10k", 20)):
        images = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        labels = (np.arange(n) % 10).astype(np.uint8)
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels), mtime=0))
    return tmp_path


def test_mnist(mnist_root: Path) -> None:
    data = mnist(mnist_root, validation=10)
    assert (len(data.train), len(data.validation), len(data.test)) == (50, 10, 20)
    assert sorted(data.validation.target.tolist()) == list(range(10))
    x = torch.cat([s.batch(slice(None)).inputs for s in (data.train, data.validation)])
    assert x.shape == (60, 1, 28, 28)
    assert x.mean().abs() < 1e-4
    assert x.std() == pytest.approx(1, abs=1e-3)


def test_mnist_as_sequences(mnist_root: Path) -> None:
    plain = mnist(mnist_root, validation=0)
    row = mnist(mnist_root, validation=0, sequence=True)
    assert torch.equal(row.train.inputs, plain.train.inputs.flatten(2))
    one, same, other = (mnist(mnist_root, validation=0, permute=seed) for seed in (0, 0, 1))
    assert torch.equal(one.test.inputs, same.test.inputs)
    assert not torch.equal(one.test.inputs, other.test.inputs)
    assert torch.equal(one.train.inputs.sort().values, row.train.inputs.sort().values)
    assert one.size == (784,)
    assert mnist(mnist_root, validation=0, resolution=14).size == (14, 14)


def test_mnist_in_the_folders_of_other_tools(mnist_root: Path, tmp_path: Path) -> None:
    inner = tmp_path / "other" / "MNIST" / "raw"
    inner.mkdir(parents=True)
    for path in mnist_root.glob("*ubyte*"):
        path.rename(inner / path.name)
    assert len(mnist(tmp_path / "other", validation=0).train) == 60


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "must"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x01aaaaaaaaaaaaaaaaaaaaaa", "must"),
        (
            "train-images-idx3-ubyte",
            idx(np.zeros((60, 28, 28), np.uint8))[:-5],
            ".*found 47051",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.zeros(60, np.uint8)), mtime=0)[:-9],
            "must",
        ),
        ("train-labels-idx1-ubyte.gz", b"no gzip", "must"),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.zeros(59, np.uint8)), mtime=0),
            ".*found 59",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            gzip.compress(idx(np.full(60, 11, np.uint8)), mtime=0),
            ".*found 11",
        ),
    ],
)
def test_broken_mnist(mnist_root: Path, name: str, content: bytes, message: str) -> None:
    (mnist_root / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        mnist(mnist_root)


def test_missing_mnist(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(ValueError, match=r"found other.txt"):
        mnist(tmp_path)
    with pytest.raises(ValueError, match=r"\broot must"):
        mnist(None)
    with pytest.raises(ValueError, match="which is no folder"):
        mnist(tmp_path / "nowhere")


def test_too_much_validation(mnist_root: Path) -> None:
    with pytest.raises(ValueError, match=r"\bvalidation must"):
        mnist(mnist_root, validation=60)


def test_turned_mnist(mnist_root: Path) -> None:
    data = rotated_mnist(mnist_root)
    assert (len(data.train), len(data.validation), len(data.test)) == (11, 2, 57)  # of 80, as 10, 2 and 50 of 70
    assert data.train.inputs.dtype == torch.uint8
    assert torch.equal(data.train.inputs, rotated_mnist(mnist_root).train.inputs)
    (mnist_root / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        rotated_mnist(mnist_root)


def test_rotated_mnist_without_validation(mnist_root: Path) -> None:
    data = rotated_mnist(mnist_root, validation=0)
    assert data.validation is None
    assert (len(data.train), len(data.test)) == (14, 57)  # of 80, as 12 and 50 of 70
    with pytest.raises(ValueError, match=r"\bvalidation must"):
        rotated_mnist(mnist_root, validation=12_000)


def write_amat(path: Path, n: int) -> np.ndarray:
    rows = np.concatenate([RNG.integers(0, 256, (n, 784)) / 255, (np.arange(n) % 10)[:, None]], axis=1)
    np.savetxt(path, rows, fmt="%.6f")
    return rows


def test_rotated_mnist_from_its_published_files(tmp_path: Path) -> None:
    names = [f"mnist_all_rotation_normalized_float_{part}.amat" for part in ("train_valid", "test")]
    rows = write_amat(tmp_path / names[0], 12)
    write_amat(tmp_path / names[1], 5)
    data = rotated_mnist(tmp_path, published=True)
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 2, 5)
    assert np.array_equal(data.validation.inputs.flatten(1).numpy(), np.rint(rows[10:, :784] * 255))
    assert data.train.target.tolist() == list(range(10))
    assert len(rotated_mnist(tmp_path, published=True, validation=0).train) == 12
    for content, message in (("1 2 3\n", ".*found 1 lines of 3"), ("x\n", "785 numbers")):
        (tmp_path / names[1]).write_text(content)
        with pytest.raises(ValueError, match=message):
            rotated_mnist(tmp_path, published=True)
    (tmp_path / names[1]).write_text(" ".join(["nan"] * 785))
    with pytest.raises(ValueError, match=r"rotation_normalized_float_test.amat must"):
        rotated_mnist(tmp_path, published=True)


def test_sixes(tmp_path: Path) -> None:
    for part, n in (("train", 40), ("t10k", 8)):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx((6 - np.arange(n) % 2).astype(np.uint8)))
    for make in (mnist6_180, mnist6_m):
        data = make(tmp_path)
        assert [len(s) for s in (data.train, data.validation, data.test)] == [36, 4, 8]
        assert data.train.target.float().mean() == 0.5
    data = mnist6_180(tmp_path, turns="half")
    six, nine = (data.test.inputs[data.test.target == label] for label in (0, 1))
    assert torch.equal(nine, six.flip((-2, -1)))
    images = mnist(tmp_path, validation=0).test
    assert torch.equal(six, images.inputs[images.target == 6])
    with pytest.raises(ValueError, match=r"\bmargin must"):
        mnist6_180(tmp_path, turns="half", margin=5)
    with pytest.raises(ValueError, match=r"\bturns must"):
        mnist6_180(tmp_path, turns="whole")


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


def test_noise_padded_images_can_be_augmented(cifar_root: Path) -> None:
    data = cifar10(cifar_root, form="noise-padded", noise="shared", augment=True, validation=10)
    x, y = (data.train.batch(slice(0, 8), training).inputs for training in (False, True))
    assert torch.equal(x[:, :, 32:], y[:, :, 32:])
    assert not torch.equal(x[:, :, :32], y[:, :, :32])


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


@pytest.mark.parametrize("padding", ["zero", "symmetric"])
def test_augmented_images_are_shifted_ones(cifar_root: Path, padding: str) -> None:
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


def test_stl10(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    images = RNG.integers(0, 256, (20, 3, 96, 96), dtype=np.uint8)
    for part in ("train", "test"):
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes((np.arange(20) % 10 + 1).astype(np.uint8).tobytes())
    data = stl10(tmp_path, validation=10, augment=True)
    assert torch.equal(data.test.inputs, torch.from_numpy(images))
    assert data.test.target.tolist() == [i % 10 for i in range(20)]
    assert data.train.batch(slice(0, 2), True).inputs.shape == (2, 3, 96, 96)
    large = stl10(tmp_path, validation=10, augment=True, resolution=128)
    assert large.size == (128, 128)
    x, y = large.train.batch(slice(0, 4), True).inputs, large.test.batch(slice(0, 4)).inputs
    assert x.shape == y.shape == (4, 3, 128, 128)
    assert torch.equal(y, large.test.batch(slice(0, 4), True).inputs)
    assert not torch.equal(x, large.train.batch(slice(0, 4), True).inputs)
    (folder / "test_y.bin").write_bytes(bytes(20))
    with pytest.raises(ValueError, match=r"test_y.bin .*found 0 to 0"):
        stl10(tmp_path)
    (folder / "test_y.bin").write_bytes(bytes(19))
    with pytest.raises(ValueError, match="one label for each of 20 images, found 19"):
        stl10(tmp_path)
    (folder / "train_X.bin").write_bytes(bytes(27_649))
    with pytest.raises(ValueError, match=r"train_X.bin .*found 27649 bytes"):
        stl10(tmp_path)


def test_resizing_rotating_and_cropping_keep_what_an_image_shows() -> None:
    """A smooth image moves by at most the crop's offset and the angle; without either it is only resized."""
    axis = torch.linspace(-1, 1, 96)
    disc = (axis[:, None].square() + axis.square() < 0.25).float().expand(16, 1, -1, -1)
    still = ResizeRotateCrop(64, 64, degrees=0.0)
    x = still(Batch(disc), True).inputs
    torch.testing.assert_close(x, ResizeRotateCrop(64, 64, augment=False)(Batch(disc), False).inputs, atol=0.3, rtol=0)
    moved = ResizeRotateCrop(64, 72)(Batch(disc), True).inputs
    areas = moved.mean(dim=(1, 2, 3)) * (64 / 72) ** 2
    torch.testing.assert_close(areas, disc.mean(dim=(1, 2, 3)), rtol=0.05, atol=0)
    places = (moved * torch.arange(64.0)).sum(dim=(1, 2, 3)) / moved.sum(dim=(1, 2, 3))
    assert places.std() > 0.5
    assert bool(((places - 31.5).abs() < 5).all())


def paint(path: Path, shape: tuple[int, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)).save(path)


def test_folder_of_images(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        for i in range(10):
            paint(tmp_path / name / f"{i}.png", (12, 16, 3))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    data = image_folder(tmp_path, shares=(0.6, 0.2, 0.2))
    assert data.classes == ("cat", "dog")
    assert (data.in_channels, data.size) == (3, (12, 16))
    assert [len(s) for s in (data.train, data.validation, data.test)] == [12, 4, 4]
    assert data.test.target.sum() == 2
    assert torch.equal(data.train.inputs, image_folder(tmp_path, shares=(0.6, 0.2, 0.2)).train.inputs)
    assert image_folder(tmp_path, resolution=8, gray=True).train.inputs.shape[1:] == (1, 8, 8)
    assert image_folder(tmp_path, augment=True).train.batch(slice(0, 2), True).inputs.shape == (2, 3, 12, 16)


def test_folder_of_gray_images_of_many_kinds(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i, ending in enumerate(("png", "pgm", "bmp", "png")):
            paint(tmp_path / name / f"{i}.{ending}", (8, 8))
    Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)).save(tmp_path / "a" / "deep.png")
    data = image_folder(tmp_path, shares=(0.8, 0.0, 0.2))
    assert data.in_channels == 1
    assert data.validation is None
    every = torch.cat([data.train.inputs, data.test.inputs])
    assert (every == 255).all(dim=(1, 2, 3)).sum() == 1


def test_folders_that_say_the_split(tmp_path: Path) -> None:
    for part, n in (("train", 10), ("val", 2), ("test", 4)):
        for name in ("a", "b"):
            for i in range(n):
                paint(tmp_path / part / name / f"{i}.png", (8, 8))
    data = image_folder(tmp_path)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [20, 4, 8]
    (tmp_path / "val").rename(tmp_path / "train" / "a" / "more")  # deeper folders belong to their class
    data = image_folder(tmp_path)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [20, 4, 8]


def test_broken_folders_of_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        image_folder(tmp_path)
    paint(tmp_path / "a" / "1.png", (8, 8))
    with pytest.raises(ValueError, match="two or more classes, found 1"):
        image_folder(tmp_path)
    paint(tmp_path / "b" / "1.png", (8, 9))
    with pytest.raises(
        ValueError, match=r"of one size unless resolution is given, found \(8, 8\) .* \(8, 9\) for .*1.png"
    ):
        image_folder(tmp_path)
    whole = (tmp_path / "b" / "1.png").read_bytes()
    (tmp_path / "b" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"b/1.png must"):
        image_folder(tmp_path)
    (tmp_path / "b" / "1.png").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"b/1.png must"):
        image_folder(tmp_path)


def test_a_photograph_is_a_function_of_position(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(pixels if name == "b" else pixels[::-1]).save(tmp_path / f"{name}.png")
    data = load("photograph", tmp_path, image=1, repeat=5)
    assert (len(data.train), data.size, data.task) == (5, (6, 9), "dense-regression")
    batch = data.train.batch(slice(0, 2))
    assert batch.inputs.abs().sum() == 0
    expected = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    assert batch.target is not None
    torch.testing.assert_close(batch.target[1], expected)
    with pytest.raises(ValueError, match=r"\bimage must"):
        load("photograph", tmp_path, image=2)


def test_gray_images_are_the_gray_sequence(cifar_root: Path) -> None:
    images, sequence = (load(name, cifar_root, validation=4) for name in ("lra_image_2d", "lra_image"))
    assert images.train.inputs.shape[1:] == (1, 32, 32)
    assert torch.equal(images.train.inputs.flatten(2), sequence.train.inputs)

"""STL-10, photographs and folders of images: valid, truncated and corrupt files."""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from kernelfield.data.base import Batch
from kernelfield.data.labelled import labelled_split
from kernelfield.data.metadata import from_metadata, metadata
from kernelfield.data.registry import load
from kernelfield.data.sets.images.image_folder import image_folder, read_image
from kernelfield.data.sets.images.stl10 import stl10
from kernelfield.data.transforms.batch import ResizeRotateCrop
from kernelfield.experiments.custom_data import own_data
from kernelfield.experiments.predict import find_files

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(0)


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
    with pytest.raises(ValueError, match=r"test_y\.bin must .*found 19"):
        stl10(tmp_path)
    (folder / "train_X.bin").write_bytes(bytes(27_649))
    with pytest.raises(ValueError, match=r"train_X.bin .*found 27649 bytes"):
        stl10(tmp_path)


def test_resizing_rotating_and_cropping_keep_the_content() -> None:
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
    with pytest.warns(UserWarning, match=r"1 of 21 files are not read, such as cat/notes\.txt"):
        data = image_folder(tmp_path, shares=(0.6, 0.2, 0.2))
    (tmp_path / "cat" / "notes.txt").unlink()
    assert data.classes == ("cat", "dog")
    assert (data.in_channels, data.size) == (3, (12, 16))
    assert [len(s) for s in (data.train, data.validation, data.test)] == [12, 4, 4]
    assert data.test.target.sum() == 2
    assert torch.equal(data.train.inputs, image_folder(tmp_path, shares=(0.6, 0.2, 0.2)).train.inputs)
    assert image_folder(tmp_path, resolution=8, gray=True).train.inputs.shape[1:] == (1, 8, 8)
    assert image_folder(tmp_path, augment=True).train.batch(slice(0, 2), True).inputs.shape == (2, 3, 12, 16)


def test_folder_of_gray_images_of_many_formats(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i, ending in enumerate(("png", "pgm", "bmp", "png")):
            paint(tmp_path / name / f"{i}.{ending}", (8, 8))
    Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)).save(tmp_path / "a" / "deep.png")
    data = image_folder(tmp_path, shares=(0.8, 0.0, 0.2))
    assert data.in_channels == 1
    assert data.validation is None
    every = torch.cat([data.train.inputs, data.test.inputs])
    assert (every == 255).all(dim=(1, 2, 3)).sum() == 1


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    top_red = np.zeros((16, 8, 3), dtype=np.uint8)
    top_red[:8, :, 0] = 255
    # A camera held upright stores the picture on its side, and the tag 6: turn it by 90 degrees clockwise.
    on_its_side, tag = Image.fromarray(np.rot90(top_red).copy()), Image.Exif()
    tag[0x0112] = 6
    for ending in ("png", "jpg", "tif", "webp"):
        on_its_side.save(tmp_path / f"a.{ending}", exif=tag, **({"lossless": True} if ending == "webp" else {}))
        found = read_image(tmp_path / f"a.{ending}")
        assert found.shape == (16, 8, 3), ending
        assert np.abs(found.astype(int) - top_red).mean() < 8, ending
    on_its_side.save(tmp_path / "damaged.jpg", exif=b"Exif\0\0 no metadata at all")
    assert read_image(tmp_path / "damaged.jpg").shape == (8, 16, 3)


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    drawing = np.zeros((8, 8, 4), dtype=np.uint8)  # black on transparent black
    drawing[2:6, 2:6, 3] = 255
    wanted = np.where(drawing[..., 3:] > 0, 0, 255).repeat(3, axis=2)
    Image.fromarray(drawing).save(tmp_path / "rgba.png")
    Image.fromarray(drawing[..., ::3].copy(), mode="LA").save(tmp_path / "la.png")
    palette = Image.fromarray((drawing[..., 3] > 0).astype(np.uint8), mode="P")
    palette.putpalette([9, 9, 9, 0, 0, 0])
    palette.save(tmp_path / "palette.png", transparency=0)
    palette.save(tmp_path / "palette.gif", transparency=0)
    for name in ("rgba.png", "la.png", "palette.png", "palette.gif"):
        np.testing.assert_array_equal(read_image(tmp_path / name), wanted, err_msg=name)


def test_pixels_of_more_than_8_bits_have_one_scale(tmp_path: Path) -> None:
    path = tmp_path / "deep.tif"
    for level in (0.2, 0.8):
        Image.fromarray(np.full((8, 8), level, dtype=np.float32)).save(path)
        assert np.abs(read_image(path) - 255 * level).max() < 1
    for wrong in (np.float32(-1), np.float32(200), np.float32("nan"), np.int32(-5), np.int32(100_000)):
        Image.fromarray(np.full((8, 8), wrong)).save(path)
        with pytest.raises(
            ValueError, match=r"deep.tif must hold (floats from 0 to 1|integers from 0 to 65535), found"
        ):
            read_image(path)


def deep_images(folder: Path, most: int, count: int = 8) -> Path:
    """Write images of two classes with 16-bit pixels from 0 to ``most``."""
    for k, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.linspace(0, most * (k + 1) / 2 - i, 64).reshape(8, 8)
            Image.fromarray(pixels.astype(np.uint16)).save(folder / name / f"{i}.{('png', 'tif')[i % 2]}")
    return folder


@pytest.mark.parametrize(
    ("most", "white"), [(255, 255), (256, 1023), (3871, 4095), (4095, 4095), (9000, 16383), (60_000, 65535)]
)
def test_white_is_that_of_the_bits_in_use(most: int, white: int, tmp_path: Path) -> None:
    data = image_folder(deep_images(tmp_path, most))
    assert data.levels == (0, most, white)
    every = torch.cat([data.train.inputs, data.validation.inputs, data.test.inputs])
    assert int(every.max()) == int(most / white * 255)
    assert from_metadata(metadata(data)).levels == data.levels


def test_new_images_have_the_white_of_the_training(tmp_path: Path) -> None:
    data = from_metadata(metadata(image_folder(deep_images(tmp_path / "train", 3871))))
    new = deep_images(tmp_path / "new", 1900)
    found = labelled_split(data, new, {"name": "image_folder"})
    assert int(found.inputs.max()) == int(1900 / 4095 * 255)
    path = tmp_path / "other.png"
    Image.fromarray(np.full((8, 8), 4096, dtype=np.uint16)).save(path)
    with pytest.raises(ValueError, match=r"other.png must hold integers from 0 to 4095, like the images of the train"):
        read_image(path, None, data.levels)
    Image.fromarray(np.full((8, 8), 255, dtype=np.uint16)).save(path)
    with pytest.warns(UserWarning, match=r"other.png is almost black: .* 255, and 4095 is white; .* reach 3871"):
        read_image(path, None, data.levels)
    with pytest.warns(UserWarning, match=r"almost black: its pixels reach 255, and 65535 is white"):
        read_image(path)
    with pytest.raises(ValueError, match="white must be at least the largest pixel, 3871, got 1000"):
        image_folder(tmp_path / "train", white=1000)


def test_images_with_other_numbers_of_bits_are_announced(tmp_path: Path) -> None:
    deep_images(tmp_path, 3871)
    Image.fromarray(np.full((8, 8), 60_000, dtype=np.uint16)).save(tmp_path / "dark" / "other.png")
    with pytest.warns(UserWarning, match=r"16 of 17 images .* almost black: .*0.png reaches 1935 of 65535"):
        image_folder(tmp_path)


@pytest.mark.parametrize(("kind", "channels"), [(2, 3), (6, 4)])
def test_colours_of_16_bits_that_hold_fewer_are_refused(kind: int, channels: int, tmp_path: Path) -> None:
    path = tmp_path / "colours.png"
    for most, refused in ((4095, True), (65535, False)):
        pixels = np.linspace(0, most, 64 * channels).reshape(8, 8, channels).astype(">u2")
        pixels[..., 3:] = 65535
        lines = b"".join(b"\0" + row.tobytes() for row in pixels)
        chunks = (
            (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)),
            (b"IDAT", zlib.compress(lines)),
            (b"IEND", b""),
        )
        body = b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
        if refused:
            with pytest.raises(ValueError, match=r"colours.png must use all bits of its colours"):
                read_image(path)
        else:
            np.testing.assert_array_equal(read_image(path), (pixels[..., :3] // 256).astype(np.uint8))


def test_deep_images_in_which_zero_is_white_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "negative.tif"
    Image.fromarray(np.full((8, 8), 60_000, dtype=np.uint16)).save(path, tiffinfo={262: 0})
    with pytest.raises(ValueError, match=r"negative.tif must be an image in which 0 is black"):
        read_image(path)


def test_only_the_first_of_several_pages_is_not_silently_read(tmp_path: Path) -> None:
    path = tmp_path / "stack.tif"
    pages = [Image.fromarray(np.full((8, 8), value, dtype=np.uint8)) for value in (0, 100, 200)]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    with pytest.raises(ValueError, match=r"stack.tif must hold one image, found 3 pages"):
        read_image(path)
    pages[1].save(path, save_all=True, append_images=[pages[0].resize((4, 4))])  # with a thumbnail
    assert (read_image(path) == 100).all()


def test_split_by_folder_names(tmp_path: Path) -> None:
    for part, n in (("train", 10), ("val", 2), ("test", 4)):
        for name in ("a", "b"):
            for i in range(n):
                paint(tmp_path / part / name / f"{i}.png", (8, 8))
    data = image_folder(tmp_path)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [20, 4, 8]
    (tmp_path / "val").rename(tmp_path / "train" / "a" / "more")  # deeper folders belong to their class
    data = image_folder(tmp_path)
    assert [len(s) for s in (data.train, data.validation, data.test)] == [20, 4, 8]


def test_names_of_part_folders_in_any_case(tmp_path: Path) -> None:
    for part in ("Train", "Test"):
        for name in ("a", "b"):
            for i in range(4):
                paint(tmp_path / part / name / f"{i}.png", (8, 8))
    data = image_folder(tmp_path)
    assert data.classes == ("a", "b")
    assert len(data.test) == 8
    assert len(labelled_split(data, tmp_path, {"name": "image_folder"})) == 8
    (tmp_path / "Test" / "b").rename(tmp_path / "Test" / "B")
    with pytest.raises(ValueError, match=r"Test must hold only the classes of Train, a, b, found 'B'"):
        image_folder(tmp_path)


def test_parts_of_a_data_set_are_not_classes(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("a", "b"):
            for i in range(4):
                paint(tmp_path / part / name / f"{i}.png", (8, 8))
    with pytest.raises(ValueError, match=rf"{tmp_path} must .*found only train, val"):
        image_folder(tmp_path)
    paint(tmp_path / "bus" / "1.png", (8, 8))  # a train is a vehicle too
    assert image_folder(tmp_path).classes == ("bus", "train", "val")


def test_hidden_files_are_no_samples(tmp_path: Path) -> None:
    for name in ("a", "b", ".ipynb_checkpoints", "__MACOSX", "a/.ipynb_checkpoints"):
        for i in range(4):
            paint(tmp_path / name / f"{i}.png", (8, 8))
    (tmp_path / "a" / "._1.png").write_bytes(b"resources of macOS")
    data = image_folder(tmp_path)
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.validation) + len(data.test) == 8
    assert len(find_files(tmp_path)) == 8


def test_the_kind_of_a_folder_is_that_of_most_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        paint(tmp_path / name / "cover.png", (8, 8))
        for i in range(2):
            (tmp_path / name / f"{i}.wav").write_bytes(b"")
    assert own_data(tmp_path)[0] == "wav_folder"


def test_broken_folders_of_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        image_folder(tmp_path)
    paint(tmp_path / "a" / "1.png", (8, 8))
    with pytest.raises(ValueError, match=rf"{tmp_path} must .*found 1"):
        image_folder(tmp_path)
    paint(tmp_path / "b" / "1.png", (8, 9))
    with pytest.raises(ValueError, match=r"\bresolution\b.*found \(8, 8\) .* \(8, 9\) for .*1.png"):
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
    for axis, n in enumerate((6, 9)):
        expected = 2 * torch.arange(n).view(-1, *(1,) * (1 - axis)) / (n - 1) - 1
        torch.testing.assert_close(batch.inputs[1, axis], expected.expand(6, 9))
    expected = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    assert batch.target is not None
    torch.testing.assert_close(batch.target[1], expected)
    with pytest.raises(ValueError, match=r"\bimage must"):
        load("photograph", tmp_path, image=2)


def test_a_tall_photograph_is_turned(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    target = load("photograph", tmp_path).test.batch(slice(0, 1)).target
    assert target is not None
    torch.testing.assert_close(target[0], torch.from_numpy(np.rot90(pixels).copy()).permute(2, 0, 1) / 255)


def test_pixels_of_a_photograph_are_drawn_in_training(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    data = load("photograph", tmp_path, pixels=200)
    torch.manual_seed(0)
    first, second = (data.train.batch(slice(0, 1), training=True) for _ in range(2))
    assert first.inputs.shape == (1, 2, 200)
    assert not torch.equal(first.inputs, second.inputs)
    rows, columns = ((first.inputs[0] + 1) / 2 * torch.tensor([[5.0], [8.0]])).round().long()
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) > 45  # of 54 pixels
    assert first.target is not None
    torch.testing.assert_close(first.target[0], torch.from_numpy(pixels)[rows, columns].T / 255)
    assert data.test.batch(slice(0, 1)).inputs.shape == data.train.batch(slice(0, 1)).inputs.shape == (1, 2, 6, 9)
    with pytest.raises(ValueError, match=r"\bpixels must"):
        load("photograph", tmp_path, pixels=0)

"""Custom images: one folder of images per class."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...._arguments import checked
from ...._kinds import SEED, TEXT
from ...base import Data, Split
from ...io.cells import compare_names
from ...io.files import VARIABLE, check_size, decoding, find_visible, folder, is_hidden, max_bytes, open_file
from ...transforms.batch import Chain, CropFlip, Standardize
from ...transforms.group_split import divide_parts, groups_of_files
from ...transforms.to_sequence import Flatten, pixel_order
from .deep_pixels import check_black, check_upper_bytes, is_deep, pixel_levels, to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["grayed", "image_folder", "list_classes", "list_files", "part_folder", "read_image", "stack_images"]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
#: formats that Pillow may read
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: tag of the orientation in the metadata of a photograph, and the transposition for each of its values but 1
_ORIENTATION = 0x0112
_TURNS = dict(
    zip(
        range(2, 9),
        ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"),
        strict=True,
    )
)
PARTS = (("train", "training"), ("val", "valid", "validation"), ("test", "testing"))


@checked(permute=SEED | None, group=TEXT | None)
def image_folder(
    root: str | os.PathLike[str] | None,
    *,
    resolution: int | None = None,
    gray: bool | None = None,
    augment: bool = False,
    white: int | None = None,
    sequence: bool = False,
    permute: int | None = None,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
    seed: int = 0,
    group: str | None = None,
) -> Data:
    """Return the images of a folder with one folder per class: ``root/cat/1.png``, ``root/dog/7.jpg``, ….

    Source: your own files. Licence: that of your files. Split: the folders ``train``, ``test`` and ``val``, as in
    ``root/train/cat/1.png`` (without ``val``, 15 percent of the training images are held out); otherwise at random,
    stratified by class. Normalisation: zero mean and unit variance of each colour over the training images. Reading
    images needs pillow, which comes with the extra ``train``.

    Args:
        root: the folder.
        resolution: pixels per side; images are resized and cropped to a central square. Not needed if all images have
            the same size.
        gray: whether to convert images to gray; by default only if all of them are gray.
        augment: whether to shift training images by up to an eighth of their side and to mirror them.
        white: value of white in images with integer pixels of more than 8 bits; by default the largest value of the
            fewest of 8, 10, 12, 14 or 16 bits that hold the pixels of all images. New images have the same white.
        sequence: whether networks read the pixels row by row, (n, channels, rows · columns).
        permute: seed of one random order of the pixels, in which networks read them; row by row if not given.
        shares: shares of training, validation and test data, if ``root`` has no folders for them.
        seed: seed of the split.
        group: regular expression for the part of a file's path that names its group, such as a patient; a group stays
            in one part of the data.

    Returns:
        Inputs (n, 1 or 3, rows, columns), stored as bytes; classes (n,), the names of the folders, sorted.
    """
    where = folder(root, "a folder of images for each class")
    paths, labels, classes, index = list_classes(where, ENDINGS, "images", shares, seed, group)
    levels = pixel_levels(_deep_ranges(paths), white)
    images = stack_images(paths, resolution, gray, levels, announce=False)
    seen = [images[index[0], c].float() / 255 for c in range(images.shape[1])]
    deviation = tuple(float(s.std()) or 1.0 for s in seen)
    normal = Standardize(tuple(float(s.mean()) for s in seen), deviation)
    shift = CropFlip(max(1, min(images.shape[2:]) // 8))
    prepare: Any = normal
    training: Any = Chain((shift, normal)) if augment else normal
    size = tuple(images.shape[2:])
    if sequence or permute is not None:
        size = (math.prod(size),)
        order = None if permute is None else pixel_order(size[0], permute)
        prepare, training = Flatten(prepare, order), Flatten(training, order)
    splits = [Split(images[i], labels[i], prepare=prepare if part else training) for part, i in enumerate(index)]
    return Data.from_splits(where.name, splits, size=size, classes=classes, levels=levels)


def list_classes(
    where: Path,
    endings: Sequence[str],
    what: str,
    shares: tuple[float, float, float],
    seed: int,
    group: str | None = None,
) -> tuple[list[Path], Tensor, tuple[str, ...], tuple[Tensor, ...]]:
    """Return the files of a folder with one folder per class, perhaps inside folders of training and test data.

    Args:
        where: the folder.
        endings: accepted endings of file names.
        what: description of the files, for errors.
        shares: shares of training, validation and test data, if there are no folders for them.
        seed: seed of the split.
        group: regular expression for the group of a file; see :func:`~.group_split.groups_of_files`.

    Returns:
        The paths of all files, their classes (n,), the names of the classes, and the indices of the three splits.
    """
    given = [part_folder(where, names) for names in PARTS]
    named = given[0] is not None and given[2] is not None
    paths = [path for path in (given if named else [where]) if path is not None]
    found = [list_files(path, endings, what) for path in paths]
    classes = tuple(sorted({name for name, _ in found[0]}))
    known = [name for names in PARTS for name in names]
    if not named and all(name.lower() in known for name in classes):
        raise ValueError(
            f"{where} must hold a folder of {what} for each class, or folders train and test of such folders, found "
            f"only {', '.join(classes)}"
        )
    for path, part in zip(paths[1:], found[1:], strict=True):
        unknown = sorted({name for name, _ in part} - set(classes))
        if unknown:
            raise ValueError(
                f"{path} must hold only the classes of {paths[0].name}, {', '.join(classes[:12])}, found {unknown[0]!r}"
            )
    if len(classes) < 2:
        raise ValueError(f"{where} must hold a folder of {what} for each of two or more classes, found {len(classes)}")
    compare_names(classes, f"{where} has classes")
    _compare_files(where, paths, [path for part in found for _, path in part])
    labels = torch.tensor([classes.index(name) for part in found for name, _ in part])
    every = [path for part in found for _, path in part]
    groups = None if group is None else groups_of_files(every, where, group)
    return every, labels, classes, divide_parts(labels, [len(part) for part in found], shares, seed, groups=groups)


def _compare_files(where: Path, parts: Sequence[Path], read: Sequence[Path]) -> None:
    """Warn of files that are no samples: of another format, or outside the folders of the classes."""
    known, every = set(read), [path for part in parts for path in find_visible(part)]
    others = [path for path in every if path not in known]
    if others:
        warnings.warn(
            f"{where}: {len(others)} of {len(every)} files are not read, such as {others[0].relative_to(where)}",
            stacklevel=4,
        )


def part_folder(where: Path, names: Sequence[str]) -> Path | None:
    """Return the folder of training, validation or test data: the first of ``names``, in any case, that exists."""
    there = {p.name.lower(): p for p in sorted(where.iterdir()) if p.is_dir()}
    return next((there[name] for name in names if name in there), None)


def list_files(where: Path, endings: Sequence[str], what: str) -> list[tuple[str, Path]]:
    """Return the class and the path of each file with one of ``endings``; each folder is a class."""
    found = [
        (inner.name, path)
        for inner in sorted(p for p in where.iterdir() if p.is_dir() and not is_hidden(p.name))
        for path in find_visible(inner, endings)
    ]
    if not found:
        raise ValueError(f"{where} must hold a folder of {what} ({', '.join(endings)}) for each class, found none")
    return found


def stack_images(
    paths: Sequence[Path],
    resolution: int | tuple[int, int] | None,
    gray: bool | None,
    levels: Sequence[int] = (),
    *,
    announce: bool = True,
) -> Tensor:
    """Return (n, 1 or 3, rows, columns) bytes of all images; see :func:`read_image`."""
    arrays = [read_image(path, resolution, levels, announce=announce) for path in paths]
    shapes = {a.shape[:2] for a in arrays}
    if len(shapes) > 1:
        other = next(i for i, a in enumerate(arrays) if a.shape[:2] != arrays[0].shape[:2])
        raise ValueError(
            f"images must have the same size unless resolution is given, found {arrays[0].shape[:2]} for {paths[0]} "
            f"and {arrays[other].shape[:2]} for {paths[other]}; data.resolution=64 makes them 64×64"
        )
    if gray is None:
        gray = all((a[..., :1] == a).all() for a in arrays)
    if gray:
        arrays = [grayed(a) for a in arrays]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def grayed(image: np.ndarray) -> np.ndarray:
    """Return a (rows, columns, 3) image in gray: (rows, columns, 1) bytes."""
    return (image @ np.array([0.299, 0.587, 0.114])).round().astype(np.uint8)[..., None]


def read_image(
    path: Path,
    resolution: int | tuple[int, int] | None = None,
    levels: Sequence[int] = (),
    *,
    announce: bool = True,
) -> np.ndarray:
    """Return an image as (rows, columns, 3) bytes, upright as viewers show it.

    PNG, JPEG, BMP, GIF, WebP, TIFF and PPM are read. The orientation in the metadata of a photograph is applied, and
    transparent pixels are white. Pixels of more than 8 bits are scaled to bytes: integers from 0 to white, which is
    65,535 or that of ``levels``, or floats from 0 to 1. An animation gives its first frame; a TIFF file of several
    pages is refused. So is an image with more pixels than Pillow allows (179 million), unless ``KERNELFIELD_MAX_BYTES``
    allows it, at three bytes per pixel.

    Args:
        path: the file.
        resolution: pixels per side, or rows and columns, of the result, which is resized and cropped around its centre;
            by default the size of the image.
        levels: ``levels`` of the data set, for images with integer pixels of more than 8 bits.
        announce: whether to warn of an image of more than 8 bits that is almost black.
    """
    with _opened(path) as image:
        from PIL import Image, ImageOps  # noqa: PLC0415

        stored = str(image.tile[0].args) if image.tile else ""  # such as "RGB;16B", while the mode is "RGB"
        image.load()
        turn = getattr(Image.Transpose, _orientation(image), None)
        upright = image if turn is None else image.transpose(turn)
        if is_deep(image):
            rgb = Image.fromarray(to_bytes(np.asarray(upright), path, levels, announce=announce)).convert("RGB")
        elif image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
            white = Image.new("RGBA", upright.size, "white")
            rgb = Image.alpha_composite(white, upright.convert("RGBA")).convert("RGB")
        else:
            rgb = upright.convert("RGB")
        if ";16" in stored and not is_deep(image):
            check_upper_bytes(np.asarray(image.convert("RGB")), path)
    if resolution is not None:
        rows, columns = (resolution, resolution) if isinstance(resolution, int) else resolution
        if rgb.size != (columns, rows):
            rgb = ImageOps.fit(rgb, (columns, rows), method=Image.Resampling.BICUBIC)
    return np.asarray(rgb)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an image, whose pixels are not read yet; errors within name the file."""
    try:
        from PIL import Image  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading images needs pillow: pip install 'kernelfield[data]'", name="PIL") from error
    _raise_pixel_limit(Image)
    # Pillow would start another program for some formats, such as PostScript, so the list excludes them.
    with open_file(path) as file, decoding(path, "a complete image"), Image.open(file, formats=FORMATS) as image:
        check_size(path, 3 * image.width * image.height, os.fstat(file.fileno()).st_size)
        if image.format == "TIFF":
            _check_pages(image, path)
            check_black(image, path)
        yield image


def _deep_ranges(paths: Sequence[Path]) -> list[tuple[Path, int, int]]:
    """Return the path, the least and the largest pixel of each image with integer pixels of more than 8 bits."""
    found = []
    for path in paths:
        with _opened(path) as image:
            if is_deep(image) and image.mode != "F":
                pixels = np.asarray(image)
                found.append((path, int(pixels.min()), int(pixels.max())))
    return found


def _check_pages(image: Any, path: Path) -> None:
    """Raise a ValueError for a TIFF file of several images; a smaller second page is a thumbnail."""
    pages, size = getattr(image, "n_frames", 1), image.size
    if pages > 1:
        image.seek(1)
        same = image.size == size
        image.seek(0)
        if same:
            raise ValueError(f"{path} must hold one image, found {pages} pages; store volumes in an .npz file")


def _orientation(image: Any) -> str:
    """Return the name of the transposition that turns an image upright; "" if it is, or if its metadata are damaged."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1), "")
    except (SyntaxError, LookupError, TypeError, ValueError, OSError, struct.error):
        return ""


def _raise_pixel_limit(pillow: Any) -> None:
    """Raise Pillow's own limit of pixels to that of KERNELFIELD_MAX_BYTES, if the variable is set."""
    allowed = max_bytes() // 3
    if VARIABLE in os.environ and pillow.MAX_IMAGE_PIXELS is not None and allowed > pillow.MAX_IMAGE_PIXELS:
        pillow.MAX_IMAGE_PIXELS = allowed

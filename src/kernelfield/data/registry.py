"""Data sets by name."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from .._arguments import argument_texts, checked
from .._checks import closest
from .._kinds import TEXT
from . import shape as shapes_of
from .sets import arrays
from .sets.audio import fsdd
from .sets.audio import sound_folder as sound
from .sets.audio import speech_commands as speech
from .sets.clouds import cloud_folder as clouds
from .sets.clouds import furniture, modelnet, shapenet_part
from .sets.images import cifar, digit_masks, digits, imagenet_k, mnist, pcam, stl10
from .sets.images import image_folder as image_folders
from .sets.images import photograph as photographs
from .sets.images import rotated_mnist as rotated
from .sets.physics import cosmic, darcy
from .sets.series import bearings, physionet2012, physionet2019
from .sets.series import csv_series as csv
from .sets.series import ts_archive as ts
from .sets.synthetic import chirps, memory, oscillators, pathfinder, shapes, solids, transients
from .sets.text import characters as text
from .sets.text import listops, retrieval, reviews

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from .base import Data
    from .shape import DataShape

__all__ = ["Description", "data_shape", "describe", "list_data", "load", "register"]


@dataclass(frozen=True)
class Description:
    """Description of a data set, known without loading it.

    Args:
        name: name of the data set, for :func:`load`.
        summary: one line.
        source: where it comes from.
        licence: its licence.
        split: how it is split.
        normalisation: how its values are normalised.
        root: the argument ``root`` of :func:`load`: "nothing", "a folder or file", or "a folder or file, or nothing".
        download: whether it can be downloaded.
        options: further arguments of :func:`load`, with defaults.
        explanations: description of each option, from its docstring.
        shape: channels, size and task with these options; None if they depend on the files.
    """

    name: str
    summary: str
    source: str
    licence: str
    split: str
    normalisation: str
    root: str
    download: bool
    options: dict[str, Any]
    explanations: dict[str, str]
    shape: DataShape | None


@dataclass(frozen=True)
class _Entry:
    make: Callable[..., Data]
    summary: str
    shape: Callable[[dict[str, Any]], DataShape] | None
    preset: dict[str, Any] = field(default_factory=dict)

    @property
    def takes(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.make).parameters)


_ENTRIES: dict[str, _Entry] = {}


@checked(name=TEXT, summary=TEXT)
def register(
    name: str,
    make: Callable[..., Data],
    summary: str,
    shape: Callable[[dict[str, Any]], DataShape] | None = None,
    **preset: Any,
) -> None:
    """Register ``make`` with ``preset`` options under a name; a data set that reads files has a parameter ``root``.

    ``shape`` maps all options, defaults included, to the :class:`~kernelfield.data.shape.DataShape` of the data set.
    :func:`describe` reads "Source: …", "Licence: …", "Split: …" and "Normalisation: …" from the docstring of ``make``.
    """
    if name in _ENTRIES:
        raise ValueError(f"name must not be registered yet, got {name!r}")
    _ENTRIES[name] = _Entry(make, summary, shape, preset)


@checked(name=TEXT)
def load(name: str, root: str | os.PathLike[str] | None = None, download: bool = False, **options: Any) -> Data:
    """Return a data set by name.

    Args:
        name: one of :func:`list_data`.
        root: folder or file to read, for data sets in files.
        download: whether to download missing files into ``root``; :func:`describe` tells whether that is possible.
        options: options of the data set; :func:`describe` lists them.

    >>> load("digits", resolution=16, sequence=True).size
    (256,)
    >>> load("digit")
    Traceback (most recent call last):
    ValueError: name must be one of list_data(), got 'digit'; the closest is 'digits'
    >>> load("digits", resolutoin=16)
    Traceback (most recent call last):
    TypeError: 'digits' takes no option 'resolutoin'; the closest is 'resolution'
    """
    entry = _entry(name)
    takes = entry.takes
    for option in options:
        if option not in takes:
            raise TypeError(f"{name!r} takes no option {option!r}{closest(option, takes)}")
    given = {**entry.preset, **options}
    if "root" in takes:
        given["root"] = root
    elif root is not None:
        raise ValueError(f"root must be None for {name!r}, which is generated, got {root}")
    if download:
        if "download" not in takes:
            raise ValueError(
                f"download must be False for {name!r}, which cannot be downloaded; describe({name!r}) names its source"
            )
        given["download"] = True
    return entry.make(**given)


@checked(pattern=TEXT)
def list_data(pattern: str = "*") -> list[str]:
    """Return the names that match ``pattern``, sorted.

    >>> list_data("*cifar10")
    ['cifar10', 'npcifar10', 'scifar10']
    """
    return sorted(name for name in _ENTRIES if fnmatch(name, pattern))


@checked(name=TEXT)
def describe(name: str) -> Description:
    """Return the source, licence, split, normalisation and options of a data set.

    >>> describe("mnist").licence
    'CC BY-SA 3.0.'
    >>> describe("copy_memory").options["T"]
    100
    """
    entry = _entry(name)
    takes = entry.takes
    sections = _sections(inspect.getdoc(entry.make) or "")
    root = "nothing"
    if "root" in takes:
        optional = takes["root"].default is not inspect.Parameter.empty
        root = "a folder or file, or nothing" if optional else "a folder or file"
    options = {
        option: entry.preset.get(option, parameter.default)
        for option, parameter in takes.items()
        if option not in ("root", "download")
    }
    return Description(
        name=name,
        summary=entry.summary,
        source=sections.get("Source", ""),
        licence=sections.get("Licence", ""),
        split=sections.get("Split", ""),
        normalisation=sections.get("Normalisation", ""),
        root=root,
        download="download" in takes,
        options=options,
        explanations=argument_texts(entry.make),
        shape=None if entry.shape is None else entry.shape(options),
    )


@checked(name=TEXT)
def data_shape(name: str, **options: Any) -> DataShape | None:
    """Return the channels, size and task of a data set with these options; None if they depend on the files.

    >>> data_shape("scifar10").size, data_shape("copy_memory", T=200).size, data_shape("csv_series")
    ([1024], [220], None)
    """
    entry = _entry(name)
    if entry.shape is None:
        return None
    defaults = {option: parameter.default for option, parameter in entry.takes.items()}
    return entry.shape({**defaults, **entry.preset, **options})


def _sections(doc: str) -> dict[str, str]:
    words = "Source|Licence|Split|Normalisation"
    plain = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", doc).replace("``", "")
    paragraphs = (" ".join(part.split()) for part in plain.split("\n\n"))
    return dict(pair for part in paragraphs for pair in re.findall(rf"\b({words}): (.*?)(?= (?:{words}): |$)", part))


def _entry(name: str) -> _Entry:
    if name not in _ENTRIES:
        raise ValueError(f"name must be one of list_data(), got {name!r}{closest(str(name), _ENTRIES)}")
    return _ENTRIES[name]


register(
    "adding", memory.adding, "the sum of two marked numbers among T", shapes_of.series(2, 1, "T", task="regression")
)
register(
    "copy_memory",
    memory.copy_memory,
    "ten digits to repeat after T steps",
    shapes_of.series(1, 10, "T", more=20, task="segmentation"),
)
register("chirps", chirps.chirps, "tones that rise or fall, in noise", shapes_of.series(1, len(chirps.RATES), "length"))
register(
    "transients",
    transients.transients,
    "chirps and transients, at any position and scale",
    shapes_of.series(1, 5, "length"),
)
register(
    "digits", digits.digits, "the digits bundled with scikit-learn, as images or sequences", shapes_of.images(1, 10)
)
register(
    "rotated_digits", rotated.rotated_digits, "bundled digits, each rotated by a random angle", shapes_of.images(1, 10)
)
register(
    "digit_masks",
    digit_masks.digit_masks,
    "rotated digits on a noisy canvas: to which digit does each pixel belong?",
    shapes_of.images(1, 10, "segmentation"),
)
register(
    "six_or_nine",
    rotated.six_or_nine,
    "sixes and nines, upright and upside down: which digit is shown?",
    shapes_of.images(1, 2),
)
register(
    "shapes",
    shapes.shapes,
    "circles, squares, triangles and others, at any resolution",
    shapes_of.images(1, len(shapes.CLASSES)),
)
register(
    "listops",
    listops.listops,
    "the value of nested lists of digits (Long Range Arena)",
    shapes_of.tokens(10, "max_length", 16),
)
register("pathfinder", pathfinder.pathfinder, "are two dots joined by a dashed path?", shapes_of.images(1, 2))
register("mnist", mnist.mnist, "handwritten digits, 28×28", shapes_of.images(1, 10))
register("smnist", mnist.mnist, "MNIST read pixel by pixel", shapes_of.images(1, 10), sequence=True)
register("pmnist", mnist.mnist, "MNIST read pixel by pixel in a fixed random order", shapes_of.images(1, 10), permute=0)
register(
    "rotated_mnist",
    rotated.rotated_mnist,
    "MNIST, each digit rotated by a random angle",
    shapes_of.fixed(1, 10, 28, 28),
)
register("mnist6_180", rotated.mnist6_180, "MNIST's sixes, rotated: six or nine?", shapes_of.fixed(1, 2, 28, 28))
register("mnist6_m", rotated.mnist6_m, "MNIST's sixes and their mirror images", shapes_of.fixed(1, 2, 28, 28))
register("cifar10", cifar.cifar10, "photographs of ten classes, 32×32", shapes_of.cifar(10))
register("scifar10", cifar.cifar10, "CIFAR-10 read pixel by pixel", shapes_of.cifar(10), form="sequence")
register("npcifar10", cifar.cifar10, "CIFAR-10 read row by row, then noise", shapes_of.cifar(10), form="noise-padded")
register("lra_image", cifar.cifar10, "CIFAR-10 in gray, read pixel by pixel", shapes_of.cifar(10), form="gray-sequence")
register("lra_image_2d", cifar.cifar10, "CIFAR-10 in gray, as images", shapes_of.cifar(10), form="gray")
register("cifar100", cifar.cifar100, "photographs of a hundred classes, 32×32", shapes_of.cifar(100))
register("imagenet_k", imagenet_k.imagenet_k, "ImageNet at 8, 16, 32 or 64 pixels", shapes_of.images(3, 1000))
register("stl10", stl10.stl10, "photographs of ten classes, 96×96", shapes_of.images(3, 10))
register("pcam", pcam.pcam, "patches of lymph nodes, 96×96: is there a tumour?", shapes_of.fixed(3, 2, 96, 96))
register("speech_commands", speech.speech_commands, "ten spoken words, raw sound at 16 kHz", shapes_of.speech)
register(
    "speech_commands_mfcc",
    speech.speech_commands,
    "ten spoken words, as cepstral coefficients",
    shapes_of.speech,
    mfcc=True,
)
register("fsdd", fsdd.fsdd, "ten spoken digits, raw sound at 8 kHz", shapes_of.series(1, 10, "length"))
register(
    "character_trajectories", ts.character_trajectories, "pen movements of twenty letters", shapes_of.fixed(3, 20, 182)
)
register("ts", ts.ts, "any problem of the UEA and UCR archives")
register(
    "bearing_faults",
    bearings.bearing_faults,
    "currents and voltages of a motor: is a bearing faulty?",
    shapes_of.recordings,
)
register(
    "physionet2012",
    physionet2012.physionet2012,
    "intensive care at irregular times: does the patient die?",
    shapes_of.physionet2012,
)
register(
    "physionet2019",
    physionet2019.physionet2019,
    "intensive care by the hour: does the patient develop sepsis?",
    shapes_of.series(75, 1, "hours", task="multilabel"),
)
register(
    "photograph",
    photographs.photograph,
    "one photograph, to fit with a field",
    shapes_of.fixed(2, 3, 512, 768, task="dense-regression"),
)
register(
    "imdb",
    reviews.imdb,
    "film reviews, byte by byte: positive or negative? (Long Range Arena)",
    shapes_of.tokens(2, "length", 256),
)
register(
    "lra_retrieval",
    retrieval.retrieval,
    "two papers, byte by byte: does one cite the other? (Long Range Arena)",
    shapes_of.token_pairs(2, "length", 256),
)
register(
    "darcy",
    darcy.darcy,
    "Darcy flow: the pressure in a plane from its permeability",
    shapes_of.images(3, 1, "dense-regression"),
)
register(
    "darcy_synthetic",
    darcy.darcy_synthetic,
    "Darcy flow, solved when loaded",
    shapes_of.images(3, 1, "dense-regression"),
)
register(
    "cosmic",
    cosmic.cosmic,
    "images of space: which pixels did cosmic rays hit?",
    shapes_of.images(1, 2, "segmentation"),
)
register(
    "oscillators",
    oscillators.oscillators,
    "damped oscillators, observed at random times, to predict at others",
    shapes_of.oscillators,
)
register(
    "ptb",
    text.ptb,
    "the Penn Treebank, character by character",
    shapes_of.series(1, 50, "length", task="language", vocabulary=50),
)
register("text", text.text, "a text file of your own, character by character")
register("image_folder", image_folders.image_folder, "images of your own, a folder for each class")
register("solids", solids.solids, "points on spheres, tori, cubes and other surfaces, in any pose", shapes_of.points(8))
register(
    "random_clouds",
    solids.random_clouds,
    "random points with a random value at each, to reconstruct",
    shapes_of.points(1, task="dense-regression", in_channels=1),
)
register("modelnet10", modelnet.modelnet10, "objects of ten kinds, as points on their surfaces", shapes_of.points(10))
register("modelnet40", modelnet.modelnet40, "objects of forty kinds, as points on their surfaces", shapes_of.points(40))
register(
    "shapenet_part",
    shapenet_part.shapenet_part,
    "objects of sixteen kinds: to which part does each point belong?",
    shapes_of.points(50, task="segmentation"),
)
register(
    "furniture", furniture.furniture, "furniture of twelve categories, as points on its surface", shapes_of.points(12)
)
register(
    "chair_monitor", furniture.chair_monitor, "chairs and monitors, as voxels or as points", shapes_of.chair_monitor
)
register("cloud_folder", clouds.cloud_folder, "point clouds or meshes of your own, a folder for each class")
register("arrays", arrays.arrays, "arrays of your own, in an .npz file")
register("csv_series", csv.csv_series, "time series of your own, in a CSV file")
register("urbansound8k", sound.urbansound8k, "ten urban sounds, raw sound", shapes_of.series(1, 10, "length"))
register("magnatagatune", sound.magnatagatune, "pieces of music with fifty tags, raw sound", shapes_of.magnatagatune)
register("wav_folder", sound.wav_folder, "sounds of your own, a folder for each class")

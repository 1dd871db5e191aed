"""A small valid file of every format that the project reads, and its reader."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import wave
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernelfield.data.io.arrays import finite_array, read_array, read_arrays
from kernelfield.data.io.files import untar
from kernelfield.data.io.mat import read_mat
from kernelfield.data.io.meshes import read_off
from kernelfield.data.io.ply import read_ply
from kernelfield.data.sets.arrays import arrays
from kernelfield.data.sets.audio.sound_folder import read_sound
from kernelfield.data.sets.audio.speech_commands import read_wav
from kernelfield.data.sets.clouds.cloud_folder import read_clouds
from kernelfield.data.sets.images import pcam
from kernelfield.data.sets.images.cifar import read_batch
from kernelfield.data.sets.images.image_folder import read_image
from kernelfield.data.sets.images.mnist import read_idx
from kernelfield.data.sets.physics import darcy
from kernelfield.data.sets.series.csv_series import csv_series
from kernelfield.data.sets.series.physionet2012 import read_stay
from kernelfield.data.sets.series.physionet2019 import read_psv
from kernelfield.data.sets.series.step_table import read_steps
from kernelfield.data.sets.series.ts_archive import ts
from kernelfield.data.sets.text import listops
from kernelfield.data.sets.text.characters import text
from kernelfield.experiments.recipe import read_recipe
from kernelfield.experiments.run_files import read_json
from tests.experiments.helpers import small_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True)
class Format:
    """A file name, the bytes of a valid file, and a function that reads it and returns its values."""

    name: str
    content: bytes
    read: Callable[[Path], Any]


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, inputs=np.arange(24.0).reshape(2, 3, 4), mask=np.ones((2, 4), bool))
    return file.getvalue()


def _wav(channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(4_000)
        sound.writeframes(bytes(range(240)) * channels)
    return file.getvalue()


def _image(kind: str) -> bytes:
    from PIL import Image  # noqa: PLC0415

    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


def _wide() -> bytes:
    rows = [f"{'up' if i % 2 else 'down'},{i}.5,{-i},{'' if i == 3 else i * i},{i / 7:.4f}" for i in range(20)]
    return "\n".join(["label,0,1,2,3", *rows]).encode()


def _long() -> bytes:
    rows = [f"{i},{t}.25,{c},{i * t},{i % 2 + 0.5}" for i in range(8) for t in range(4) for c in "xy"]
    return "\n".join(["id,time,channel,value,label", *rows]).encode()


def _ts(timed: bool) -> bytes:
    header = f"@problemName x\n@timeStamps {'true' if timed else 'false'}\n@dimensions 2\n@classLabel true a b\n@data\n"
    one = "({},{}),({},{})"
    rows = [
        ":".join([one.format(i, i + 1, i + 2, i) if timed else f"{i},?,{i}.5" for _ in range(2)] + ["ab"[i % 2]])
        for i in range(12)
    ]
    return (header + "\n".join(rows)).encode()


def _idx() -> bytes:
    return bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 4) + bytes(range(24))


def _cifar() -> bytes:
    return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2], b"names": ["a", ("b", 1.5)]}, 2)


def _stay() -> bytes:
    rows = ["Time,Parameter,Value", "00:00,Age,54", "00:00,Gender,0", "00:07,HR,73", "00:37,HR,77", "01:37,pH,7.4"]
    return "\n".join(rows).encode()


def _psv() -> bytes:
    names = "HR|Temp|Age|Gender|Unit1|Unit2|HospAdmTime|ICULOS|SepsisLabel"
    rows = [f"{70 + i}|NaN|60|1|NaN|NaN|-0.03|{i + 1}|0" for i in range(4)]
    return "\n".join([names, *rows]).encode()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in ("a/one.txt", "two.txt"):
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"hello"))
    return file.getvalue()


def _pt() -> bytes:
    file = io.BytesIO()
    torch.save({"x": torch.rand(3, 4, 4) > 0.5, "y": torch.rand(3, 4, 4)}, file)
    return file.getvalue()


def _mat() -> bytes:
    from scipy.io import savemat  # type: ignore[import-untyped] # noqa: PLC0415

    file = io.BytesIO()
    savemat(file, {"coeff": np.ones((2, 5, 5)) * 3, "sol": np.ones((2, 5, 5))}, do_compression=True)
    return file.getvalue()


def _h5() -> bytes:
    import h5py  # noqa: PLC0415

    file = io.BytesIO()
    with h5py.File(file, "w") as stored:
        stored["y"] = np.ones((3, 1, 1, 1), np.uint8)
    return file.getvalue()


def _ply(order: str) -> bytes:
    header = (
        f"ply\nformat {order} 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty double z\n"
        "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    ).encode()
    if order == "ascii":
        return header + b"0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
    vertices = b"".join(struct.pack("<ffd", *corner) for corner in ((0, 0, 0), (1, 0, 0), (0, 1, 0)))
    return header + vertices + struct.pack("<Biii", 3, 0, 1, 2)


def _tsv() -> bytes:
    return "\n".join(f"{i % 2}\t{i}.5\t{-i}\t{'NaN' if i == 3 else i}" for i in range(12)).encode()


def _arff(relational: bool = False) -> bytes:
    if relational:
        header = (
            "@relation x\n@attribute all relational\n@attribute t0 numeric\n@end all\n@attribute class {a,b}\n@data\n"
        )
        rows = [f"'{i},{i}.5\\n{-i},?',{'ab'[i % 2]}" for i in range(12)]
    else:
        header = "@relation x\n@attribute t0 numeric\n@attribute t1 numeric\n@attribute class {a,b}\n@data\n"
        rows = [f"{i},{-i}.5,{'ab'[i % 2]}" for i in range(12)]
    return (header + "\n".join(rows)).encode()


def _samples() -> bytes:
    file = io.BytesIO()
    values = np.random.default_rng(0).normal(size=(12, 2, 5))
    np.savez(file, inputs=values, target=np.arange(12) % 2)
    return file.getvalue()


def _values(data: Any) -> Any:
    batch = data.train.batch(slice(None))
    return batch.inputs.numpy(), batch.target.numpy()


def _read_off(path: Path) -> Any:
    vertices, triangles = read_off(path)
    return vertices.numpy(), triangles.numpy()


def _read_series(path: Path, **options: Any) -> Any:
    return _values((ts if path.suffix == ".ts" else csv_series)(path, **options))


def _in_folder(path: Path, read: Callable[[Path], Any]) -> Any:
    return [part.numpy() for part in read(path.parent)]


_YAML = small_recipe().to_yaml().encode()
_OFF = b"OFF\n4 4 6\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 2 1\n3 0 1 3\n3 0 3 2\n3 1 2 3 255 0 0\n"
_LISTOPS = b"Source\tTarget\n( ( [MAX 2 ) 9 ] )\t9\n( [SM 1 2 ] )\t3\n"

FORMATS = {
    made.name: made
    for made in (
        Format("array.npy", _npy(np.arange(12.0).reshape(3, 4)), lambda p: finite_array(read_array(p), p)),
        Format("arrays.npz", _npz(), lambda p: list(read_arrays(p).values())),
        Format("mono.wav", _wav(), lambda p: read_sound(p, 8_000).numpy()),
        Format("stereo.wav", _wav(2, 3), lambda p: read_sound(p).numpy()),
        Format("speech.wav", _wav(), lambda p: read_wav(p, 4_000)),
        *(
            Format(f"image.{suffix}", _image(kind), lambda p: (read_image(p), read_image(p, 8)))
            for suffix, kind in (
                *(("png", "PNG"), ("jpg", "JPEG"), ("bmp", "BMP"), ("gif", "GIF")),
                *(("tif", "TIFF"), ("ppm", "PPM"), ("webp", "WEBP")),
            )
        ),
        Format("wide.csv", _wide(), _read_series),
        Format("long.csv", _long(), lambda p: _read_series(p, standardize=True)),
        Format("missing.csv", _wide(), lambda p: _read_series(p, nonfinite="missing")),
        Format("steps.csv", b"a,b\n1,2\n3,\n5,6\n", read_steps),
        Format("plain.ts", _ts(False), _read_series),
        Format("timed.ts", _ts(True), _read_series),
        Format("mesh.off", _OFF, _read_off),
        Format("text.ply", _ply("ascii"), lambda p: [t.numpy() for t in read_ply(p)]),
        Format("little.ply", _ply("binary_little_endian"), lambda p: [t.numpy() for t in read_ply(p)]),
        Format("cloud.npy", _npy(np.random.default_rng(0).random((9, 3))), lambda p: read_clouds([p], 16).numpy()),
        Format("series.tsv", _tsv(), lambda p: _values(ts(p))),
        Format("series.arff", _arff(), lambda p: _values(ts(p))),
        Format("nested.arff", _arff(relational=True), lambda p: _values(ts(p))),
        Format("samples.npz", _samples(), lambda p: _values(arrays(p, nonfinite="missing"))),
        Format("train-idx3-ubyte", _idx(), lambda p: read_idx(p, 3).numpy()),
        Format("packed-idx3-ubyte.gz", gzip.compress(_idx()), lambda p: read_idx(p, 3).numpy()),
        Format("data_batch_1", _cifar(), lambda p: [t.numpy() for t in read_batch(p, "labels", 10)]),
        Format("recipe.yaml", _YAML, lambda p: read_recipe(p) and None),
        Format(
            "result.json", json.dumps({"a": [1, 2.5, None], "b": {"c": "x"}}).encode(), lambda p: read_json(p) and None
        ),
        Format("words.txt", b"to be or not to be\n" * 20, lambda p: text(p, length=8).train.inputs.numpy()),
        Format("stay.txt", _stay(), read_stay),
        Format("recording.mat", _mat(), lambda p: list(read_mat(p).values())),
        Format("p000001.psv", _psv(), lambda p: read_psv(p, 72)[:2]),
        Format("basic_train.tsv", _LISTOPS, lambda p: listops._read(p, 20) and None),
        Format("files.tar.gz", _tar(), lambda p: untar(p, p.parent)),
        Format("darcy_train_4.pt", _pt(), lambda p: _in_folder(p, lambda w: darcy._Pt(w)("train", 4))),
        Format(
            "piececonst_r421_N1024_smooth1.mat", _mat(), lambda p: _in_folder(p, lambda w: darcy._Mat(w)("train", 5))
        ),
        Format("patches.h5", _h5(), lambda p: pcam._array(p, "y", (1, 1, 1), None).numpy()),
    )
}

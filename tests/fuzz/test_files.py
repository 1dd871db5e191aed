"""Damaged and hostile files: read, or refused with an error that names the file, in bounded time and memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import wave
import zipfile
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.bounds import bounded, print_counts
from tests.fuzz.formats import FORMATS
from tests.fuzz.mutations import damaged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 8 * 2**20
COUNTS: Counter[str] = Counter()
#: how many damaged files of each format the long test tries
LONG = int(os.environ.get("KERNELFIELD_FUZZ", "2000"))
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]

pytestmark = pytest.mark.filterwarnings(
    # Decoders warn of damage that they can repair, and readers of what they do not read.
    "ignore::UserWarning",
    "ignore:.*:RuntimeWarning",
    "ignore:.*:DeprecationWarning",
)


@pytest.fixture(scope="module", autouse=True)
def counts(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELFIELD_MAX_BYTES", str(LIMIT))
        yield
    print_counts(request, "damaged files", COUNTS)


def attempt(folder: Path, name: str, content: bytes | None) -> str:
    """Read a file; return "read", "refused", or raise."""
    path = folder / name
    if content is not None:
        path.write_bytes(content)
    COUNTS["tried"] += 1
    try:
        with bounded():
            check_values(FORMATS[name].read(path))
    except ModuleNotFoundError:  # another kind of sound, which soundfile would read
        outcome = "refused"
    except ValueError as error:
        said = str(error)
        assert name in said or str(folder) in said or name.rpartition(".")[0] in said, f"no file is named: {said}"
        outcome = "refused"
    else:
        outcome = "read"
    COUNTS[outcome] += 1
    return outcome


def check_values(value: Any) -> None:
    """Assert that there is no infinite number."""
    if isinstance(value, (list, tuple)):
        for part in value:
            check_values(part)
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        assert not np.isinf(value).any()


@pytest.mark.parametrize("name", FORMATS)
def test_valid_files_are_read(tmp_path: Path, name: str) -> None:
    assert attempt(tmp_path, name, FORMATS[name].content) == "read"


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=15, suppress_health_check=CHECKS)
@given(data=st.data())
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    attempt(tmp_path_factory.getbasetemp(), name, data.draw(damaged(FORMATS[name].content)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=LONG, derandomize=False, database=None, suppress_health_check=CHECKS)
@given(data=st.data())
def test_many_damaged_files(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    attempt(tmp_path_factory.getbasetemp(), name, data.draw(damaged(FORMATS[name].content)))


@pytest.mark.parametrize("name", FORMATS)
def test_pipes_folders_and_empty_files(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert attempt(tmp_path, name, None) == "refused"
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert attempt(tmp_path, name, None) == "refused"
    (tmp_path / name).rmdir()
    assert attempt(tmp_path, name, b"") == "refused" or name == "recipe.yaml"


def header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


def packed(size: int) -> bytes:
    """Return an .npz file that unpacks to ``size`` zeros."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", header((size,), "|u1") + bytes(size))
    return file.getvalue()


def sound(rate: int, frames: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, 4_000, 0, "NONE", ""))
        written.writeframes(bytes(20_000))
    raw = bytearray(file.getvalue())
    raw[24:28], raw[40:44] = struct.pack("<I", rate), struct.pack("<I", frames)
    return bytes(raw)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def picture(width: int, height: int) -> bytes:
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def laughs(levels: int) -> list[Any]:
    """Return a list of which each level holds the next one ten times."""
    nested: list[Any] = ["ha"]
    for _ in range(levels):
        nested = [nested] * 10
    return nested


def deep(levels: int) -> bytes:
    """Return the pickle of a list in a list in a list, and so on."""
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def one_long_series(length: int) -> bytes:
    names = b",".join(b"%d" % i for i in range(length))
    return b"label," + names + b"\na,1\nb,2" * 100 + b"\na" + b",1" * length


BOMBS = {
    "an array that is only declared": ("array.npy", lambda: header((10**12,))),
    "an array of a negative size": ("array.npy", lambda: header((-4, 10)) + bytes(400)),
    "an array of objects": ("array.npy", lambda: header((2,), "|O") + pickle.dumps([1, 2])),
    "an archive of zeros": ("arrays.npz", lambda: packed(2 * LIMIT)),
    "a sound of a sample a second": ("mono.wav", lambda: sound(1, 20_000)),
    "a sound of no rate": ("mono.wav", lambda: sound(0, 20_000)),
    "a sound that is only declared": ("mono.wav", lambda: sound(4_000, 0xFFFFFFF0)),
    "a picture that is only declared": ("image.png", lambda: picture(60_000, 60_000)),
    "a picture beyond Pillow's limit": ("image.png", lambda: picture(2**30, 2**30)),
    "PostScript": ("image.png", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%id)"),
    "zeros in gzip": ("packed-idx3-ubyte.gz", lambda: gzip.compress(bytes(2 * LIMIT))),
    "an index of wrapped sizes": ("train-idx3-ubyte", lambda: b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 4)),
    "a pickle of shared lists": ("data_batch_1", lambda: pickle.dumps(laughs(12))),
    "a deep pickle": ("data_batch_1", lambda: deep(50_000)),
    "a pickle with a far slot": ("data_batch_1", lambda: b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b"."),
    "a pickle of declared bytes": ("data_batch_1", lambda: b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"."),
    "a pickle of a command": ("data_batch_1", lambda: b"cos\nsystem\n(S'true'\ntR."),
    "a deep recipe": ("recipe.yaml", lambda: b"[" * 200_000),
    "a deep mapping": ("recipe.yaml", lambda: b"{a: " * 20_000),
    "a recipe of aliases": ("recipe.yaml", lambda: b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"),
    "a recipe of an object": ("recipe.yaml", lambda: b"name: !!python/object/apply:os.system [true]\n"),
    "a long recipe": ("recipe.yaml", lambda: b"# \n" * 500_000),
    "a deep JSON file": ("result.json", lambda: b"[" * 200_000),
    "a JSON number of many digits": ("result.json", lambda: b'{"a": ' + b"9" * 10_000 + b"}"),
    "a cell of a megabyte": ("wide.csv", lambda: b"label,0\na," + b"1" * 2**20),
    "one long series": ("wide.csv", lambda: one_long_series(60_000)),
    "a far time": ("long.csv", lambda: b"id,time,value,label\n1,0,1,a\n1,1,1,a\n2,0,1,b\n2,1e38,1,b"),
    "colons": ("timed.ts", lambda: b"@timeStamps true\n@classLabel true a\n@data\n" + b":" * 300_000),
    "brackets": ("timed.ts", lambda: b"@timeStamps true\n@classLabel true a\n@data\n" + b"(" * 300_000),
    "vertices that are only declared": ("mesh.off", lambda: b"OFF\n999999999999 1 0\n0 0 0\n"),
    "elements of no bytes": ("text.ply", lambda: b"ply\nformat ascii 1.0\nelement a 999999999999\nend_header\n"),
    "vertices of a PLY file that are only declared": (
        "little.ply",
        lambda: FORMATS["little.ply"].content.replace(b"vertex 3", b"vertex 999999999999"),
    ),
    "a face of many corners": ("mesh.off", lambda: b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n" + b"9" * 30 + b" 0 1 2\n"),
}  # fmt: skip


@pytest.mark.parametrize(
    "what", [pytest.param(w, marks=pytest.mark.slow) if w == "one long series" else w for w in BOMBS]
)
def test_hostile_files(tmp_path: Path, what: str) -> None:
    name, make = BOMBS[what]
    outcome = attempt(tmp_path, name, make())
    assert outcome == "refused" or what in ("a sound that is only declared", "a far time")


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="KERNELFIELD_MAX_BYTES"):
        FORMATS["arrays.npz"].read(_written(tmp_path / "arrays.npz", packed(2 * LIMIT)))
    monkeypatch.setenv("KERNELFIELD_MAX_BYTES", "24M")
    assert len(FORMATS["arrays.npz"].read(tmp_path / "arrays.npz")[0]) == 2 * LIMIT
    monkeypatch.setenv("KERNELFIELD_MAX_BYTES", "much")
    with pytest.raises(ValueError, match="KERNELFIELD_MAX_BYTES must be"):
        FORMATS["arrays.npz"].read(tmp_path / "arrays.npz")


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path

"""PLY files: points, with or without faces, as text or binary."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from .cells import FLOAT32_MAX
from .files import check_size, decoding, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["read_ply"]

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"), **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"), **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"), **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"), **dict.fromkeys(("double", "float64"), "f8"),
}  # fmt: skip
_FORMATS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


@dataclass
class _Element:
    name: str
    count: int
    #: (name, type of the list's length or "", type of the values)
    properties: list[tuple[str, str, str]] = field(default_factory=list)


def read_ply(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return the vertices (n, 3) and triangles (m, 3) of a PLY file; polygons are cut into triangles.

    A cloud without faces has no triangles.

    Args:
        path: the file.
        dtype: type of the vertices.
    """
    raw = read_bytes(path)
    with decoding(path, "a PLY file of vertices"):
        end = raw.find(b"end_header")
        body = raw.find(b"\n", end) + 1
        if not raw.startswith(b"ply") or end < 0 or body == 0:
            raise ValueError("it does not begin with a PLY header")
        order, elements = _header(raw[:end].decode("ascii").split("\n"))
        # An element takes at least one byte. One without properties takes none, so its count could not be checked.
        elements = [element for element in elements if element.properties]
        declared = sum(element.count for element in elements)
        if declared > len(raw) - body:
            raise ValueError(f"its header declares {declared} elements, but {len(raw) - body} bytes follow")
        read = _read_text(raw[body:].split(), elements) if not order else _read_binary(raw, body, order, elements, path)
        vertices = np.stack([np.asarray(read["vertex"][axis], dtype=np.float64) for axis in "xyz"], axis=1)
        faces = read.get("face", {})
        polygons = next((faces[name] for name in ("vertex_indices", "vertex_index") if name in faces), [])
        triangles = [(p[0], a, b) for p in polygons for a, b in itertools.pairwise(p[1:])]
        index = np.array(triangles, dtype=np.int64).reshape(-1, 3)
        if len(index) and not 0 <= index.min() <= index.max() < len(vertices):
            raise ValueError(f"a face names vertex {index.max()} of {len(vertices)}")
        if not len(vertices) or not (np.abs(vertices) <= FLOAT32_MAX).all():
            raise ValueError("it must hold vertices with finite coordinates")
    return torch.from_numpy(vertices).to(dtype), torch.from_numpy(index)


def _header(lines: list[str]) -> tuple[str, list[_Element]]:
    order, elements = "", []
    for line in lines[1:]:
        words = line.split()
        if not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "format":
            order = _FORMATS[words[1]]
        elif words[0] == "element":
            elements.append(_Element(words[1], int(words[2])))
            if elements[-1].count < 0:
                raise ValueError(f"{words[2]} elements")
        elif words[0] == "property":
            length = _TYPES[words[2]] if words[1] == "list" else ""
            elements[-1].properties.append((words[-1], length, _TYPES[words[3] if length else words[1]]))
    return order, elements


def _read_text(words: list[bytes], elements: list[_Element]) -> dict[str, dict[str, list]]:
    stream = iter(words)
    read: dict[str, dict[str, list]] = {}
    for element in elements:
        columns: dict[str, list] = {name: [] for name, _, _ in element.properties}
        if element.count * len(element.properties) > len(words) or not element.properties:
            raise ValueError(
                f"its header declares {element.count} elements {element.name!r}, more than there are numbers"
            )
        for _ in range(element.count):
            for name, length, kind in element.properties:
                convert = float if kind[0] == "f" else int
                if length:
                    count = int(next(stream))
                    columns[name].append([convert(next(stream, b"")) for _ in range(min(count, len(words)))])
                else:
                    columns[name].append(convert(next(stream, b"")))
        read[element.name] = columns
    return read


def _read_binary(
    raw: bytes, at: int, order: str, elements: list[_Element], path: Path
) -> dict[str, dict[str, list | np.ndarray]]:
    read: dict[str, dict[str, list | np.ndarray]] = {}
    for element in elements:
        if not any(length for _, length, _ in element.properties):
            row = np.dtype([(name, order + kind) for name, _, kind in element.properties])
            check_size(path, element.count * row.itemsize, len(raw))
            table = np.frombuffer(raw, row, element.count, at)
            at += table.nbytes
            read[element.name] = {name: table[name] for name in row.names or ()}
            continue
        columns: dict[str, list] = {name: [] for name, _, _ in element.properties}
        for _ in range(element.count):
            for name, length, kind in element.properties:
                count = 1
                if length:
                    count = int(np.frombuffer(raw, order + length, 1, at)[0])
                    at += np.dtype(length).itemsize
                values = np.frombuffer(raw, order + kind, count, at)
                at += values.nbytes
                columns[name].append(values.tolist() if length else values[0])
        read[element.name] = dict(columns)
    return read

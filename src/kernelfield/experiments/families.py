"""Recipe files: one recipe, or a family of them, a ``base`` and ``rows`` that differ from it.

.. code-block:: yaml

    base:
      chapter: 3
      model: {name: ccnn_4_140}
      training: {epochs: 210, batch: 50}
    rows:
      ch03-smnist-ccnn-4-140:
        title: sMNIST, CCNN_4,140
        published: {accuracy: 99.72}
        model: {omega_0: 2976.49}

A row is the base with the row's values in place of the base's, section by section. Names of rows stand alone on lines
indented by two spaces, so that a row is found without parsing every family.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

from ..data.io.files import open_file
from ..data.io.limits import RECIPE_BYTES, max_recipe_bytes
from .yaml_text import read_yaml

__all__ = ["FOLDER", "bundled_names", "family_rows", "find_mapping", "read_mapping", "recipe_text"]

FOLDER = Path(__file__).with_name("recipes")
_ROW = re.compile(r"^  ([\w.-]+):$", re.MULTILINE)


def bundled_names() -> dict[str, Path]:
    """Return the file of every recipe that comes with the package, by the recipe's name.

    >>> bundled_names()["digits"].name
    'digits.yaml'
    """
    found: dict[str, Path] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        found |= dict.fromkeys(_names(path, path.read_text(encoding="utf-8")), path)
    return found


def find_mapping(name: str) -> dict[str, Any] | None:
    """Return the settings of a recipe that comes with the package, or None; only its own family is parsed.

    >>> find_mapping("digits")["data"]["name"], find_mapping("digit")
    ('digits', None)
    """
    # Families begin with their chapter, as the names of their rows do.
    for path in sorted(FOLDER.glob(f"{name.partition('-')[0]}*.yaml")):
        text = path.read_text(encoding="utf-8")
        if name in _names(path, text):
            return _rows(path, text, [name])[name]
    return None


def family_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of every recipe in a file, by name.

    >>> list(family_rows(FOLDER / "digits.yaml"))
    ['digits']
    """
    return _rows(path, recipe_text(path))


def recipe_text(path: Path) -> str:
    """Return the text of a recipe's file; see :func:`~kernelfield.data.io.limits.max_recipe_bytes`."""
    most = max_recipe_bytes()
    with open_file(path) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(
            f"{path} must be a recipe of at most {most:,} bytes, got a longer file; set {RECIPE_BYTES[0]} to allow more"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the settings of the one recipe in a file."""
    rows = family_rows(path)
    if list(rows) != [path.stem]:
        raise ValueError(f"{path.name}: must hold one recipe, got a family of {len(rows)}: {', '.join(rows)}")
    return rows[path.stem]


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``change`` in place of its own, mapping by mapping.

    >>> merge({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": 3}, "d": [2, 3]})
    {'a': {'b': 1, 'c': 3}, 'd': [2, 3]}
    """
    both = dict(base)
    for key, value in change.items():
        old = both.get(key)
        both[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _names(path: Path, text: str) -> list[str]:
    _, rows, listed = text.partition("\nrows:\n")
    return _ROW.findall(listed) if rows else [path.stem]


@functools.lru_cache(maxsize=64)
def _parsed(name: str, text: str) -> dict[str, Any]:
    """Return the content of a file. A family is read once for all its rows; callers must not change it."""
    return read_yaml(text, name)


def _rows(path: Path, text: str, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    family = _parsed(path.name, text)
    if "rows" not in family:
        return {path.stem: copy.deepcopy(family)}
    for key, value in family.items():
        if key not in ("base", "rows"):
            raise ValueError(f"{path.name}: a family has the keys base and rows, got {key!r}")
        if not isinstance(value, dict):
            raise ValueError(f"{path.name}: {key} must be a mapping, got {value!r}")  # noqa: TRY004
    base, rows = family.get("base", {}), family["rows"]
    for name in names or rows:
        if not isinstance(rows[name], dict):
            raise ValueError(f"{path.name}: rows.{name} must be a mapping, got {rows[name]!r}")  # noqa: TRY004
    return {name: copy.deepcopy(merge(base, rows[name])) for name in names or rows}

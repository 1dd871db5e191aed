"""Recipe files, which hold one recipe or a family: a ``base``, and ``rows`` that differ from it.

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

A row is the base with the row's values in place of the base's, section by section. The name of a row stands alone on a
line with an indentation of two spaces, so a row is found without parsing every family.

Recipes are YAML with plain values, without duplicate keys, aliases or tags. Numbers, booleans and null follow YAML
1.2, in which ``1e-6`` is a number and ``no`` is a word.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from .._arguments import checked
from .._kinds import STRING, TEXT
from ..data.io.files import RECIPE_BYTES, RECIPE_DEPTH, max_recipe_bytes, max_recipe_depth, open_file

__all__ = [
    "FOLDER",
    "bundled_names",
    "family_rows",
    "find_mapping",
    "parse_value",
    "read_mapping",
    "read_yaml",
    "recipe_text",
    "write_yaml",
]

FOLDER = Path(__file__).with_name("recipes")
_ROW = re.compile(r"^  ([\w.-]+):$", re.MULTILINE)


def bundled_names() -> dict[str, Path]:
    """Return the file of every bundled recipe by the name of the recipe.

    >>> bundled_names()["digits"].name
    'digits.yaml'
    """
    found: dict[str, Path] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        found |= dict.fromkeys(_names(path, path.read_text(encoding="utf-8")), path)
    return found


def find_mapping(name: str) -> dict[str, Any] | None:
    """Return the settings of a bundled recipe, or None; only its own family is parsed.

    >>> find_mapping("digits")["data"]["name"], find_mapping("digit")
    ('digits', None)
    """
    if not re.fullmatch(r"[\w.-]+", name):
        return None  # a pattern
    # Names of families and of rows both begin with the chapter.
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
    """Return the text of a recipe file of at most :func:`~kernelfield.data.io.files.max_recipe_bytes` bytes."""
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
    """Return the settings of the single recipe in a file."""
    rows = family_rows(path)
    if list(rows) != [path.stem]:
        raise ValueError(f"{path.name}: must hold one recipe, got a family of {len(rows)}: {', '.join(rows)}")
    return rows[path.stem]


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with its values replaced by those of ``change``, mapping by mapping.

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
    """Return the content of a file. A family is parsed once for all its rows; callers must not change the result."""
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


_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    "float": (
        r"[-+]?((\.[0-9]+|[0-9][0-9_]*\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


def _mapping(loader: Any, node: Any) -> dict[str, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key.start_mark)
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
        seen.add(key.value)
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _tag, (_pattern, _first) in _PLAIN.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)
# A list of plain values takes one line, a mapping several.
_Dumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)
_Dumper.add_representer(tuple, lambda dumper, values: dumper.represent_list(list(values)))


@checked(text=STRING, name=TEXT)
def read_yaml(text: str, name: str = "<text>") -> dict[str, Any]:
    r"""Return the mapping in ``text``.

    Args:
        text: YAML.
        name: name of the file, for errors.

    >>> read_yaml("model:\n  name: ccnn_4_140   # of chapter 3\n  dropout: 1e-1\nsizes: [1, 2.5, x]\n")
    {'model': {'name': 'ccnn_4_140', 'dropout': 0.1}, 'sizes': [1, 2.5, 'x']}
    >>> read_yaml("a: 1\na: 2\n")
    Traceback (most recent call last):
    ValueError: <text>, line 2: a is given twice
    """
    found = _load(text, name)
    if not isinstance(found, dict | None):
        raise ValueError(f"{name}, line 1: must be a mapping of keys to values, got {found!r}")  # noqa: TRY004
    return found or {}


@checked(text=STRING)
def parse_value(text: str) -> Any:
    """Return one value: a number, a word, a list ``[…]`` or a mapping ``{…}``.

    >>> [parse_value(t) for t in ("3", "1e-3", "true", "null", "'07'", "[1, [2]]", "{a: 1}", "ab c")]
    [3, 0.001, True, None, '07', [1, [2]], {'a': 1}, 'ab c']
    """
    text = text.strip()
    # Without quotes and brackets, a text with punctuation is a string and not YAML.
    return _load(text, repr(text)) if re.match(r"[\[{'\"]|([-+]?\.?\w[-+.\w]*|~|)$", text) else text


@checked()
def write_yaml(mapping: dict[str, Any]) -> str:
    """Return ``mapping`` as text that :func:`read_yaml` reads back.

    >>> print(write_yaml({"model": {"name": "ccnn", "widths": [1, 2]}, "ema": None}), end="")
    model:
      name: ccnn
      widths: [1, 2]
    ema: null
    """
    copy = json.loads(json.dumps(mapping))  # a list that occurs twice is written twice, not as an alias
    return yaml.dump(copy, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100_000)


def _load(text: str, name: str) -> Any:
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        raise ValueError(f"{name}, line {line}: {error.problem or error.context}") from None
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
    ) as error:  # includes the error for a number with thousands of digits
        raise ValueError(f"{name}: {error}") from None


def _check_events(text: str) -> None:
    """Raise an error at an alias, which can stand for any amount of data, at a tag, and at nesting beyond the limit."""
    depth, most = 0, max_recipe_depth()
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem=f"alias *{event.anchor} is not allowed", problem_mark=event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem=f"tag {event.tag} is not allowed", problem_mark=event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > most:
            problem = f"nested deeper than {most} levels; set {RECIPE_DEPTH[0]} to allow more"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)

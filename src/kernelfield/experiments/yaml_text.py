"""YAML as recipes use it: plain values, no duplicate keys, no aliases, line numbers in errors.

Numbers, booleans and null follow YAML 1.2, in which ``1e-6`` is a number and ``no`` is a word.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from .._arguments import checked
from .._kinds import STRING, TEXT
from ..data.io.limits import RECIPE_DEPTH, max_recipe_depth

__all__ = ["parse_value", "read_yaml", "write_yaml"]

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

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _mapping(loader: Any, node: Any) -> dict[str, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
        seen.add(key.value)
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _tag, (_pattern, _first) in _PLAIN.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)
# A list of plain values stands on one line, a mapping on several.
_Dumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)
_Dumper.add_representer(tuple, lambda dumper, values: dumper.represent_list(list(values)))


@checked(text=STRING, name=TEXT)
def read_yaml(text: str, name: str = "<text>") -> dict[str, Any]:
    r"""Return the mapping in ``text``.

    Args:
        text: YAML.
        name: of the file, for errors.

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
    # Outside quotes and brackets, punctuation belongs to the words.
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
    return yaml.dump(mapping, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100_000)


def _load(text: str, name: str) -> Any:
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        raise ValueError(f"{name}, line {line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # also a number of thousands of digits
        raise ValueError(f"{name}: {error}") from None


def _check_events(text: str) -> None:
    """Raise at an alias, which can stand for any amount of data, at a tag, and at nesting beyond the limit."""
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

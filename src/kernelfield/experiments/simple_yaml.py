"""The part of YAML that recipes are written in: nested mappings, scalars, lists on one line, comments.

A recipe can so be read wherever torch runs, and a number is a number (YAML 1.1 reads ``1e-6`` as text). Whatever this
reads, any YAML reader reads too, but for that.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["parse_scalar", "read_yaml", "write_yaml"]

_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_KEY = re.compile(r"([A-Za-z_][\w. -]*?):(?:\s+(.*)|)$")
_PLAIN = re.compile(r"[A-Za-z_/.][^#:\[\]{},'\"\n]*[^#:\[\]{},'\"\s]|[A-Za-z_]")


def read_yaml(text: str, name: str = "<text>") -> dict[str, Any]:
    r"""Return the mapping that ``text`` holds.

    Args:
        text: the part of YAML described above.
        name: of the file, for errors.

    >>> read_yaml("model:\n  name: ccnn_4_140   # of chapter 3\n  dropout: 1e-1\nsizes: [1, 2.5, x]\n")
    {'model': {'name': 'ccnn_4_140', 'dropout': 0.1}, 'sizes': [1, 2.5, 'x']}
    >>> read_yaml("a: 1\n b: 2\n")
    Traceback (most recent call last):
    ValueError: <text>, line 2: indented further than the line above, which holds a value already
    """
    root: dict[str, Any] = {}
    # Mappings that are open, outermost first, with their indentation; None as long as no line has shown it.
    opened: list[tuple[int | None, dict[str, Any]]] = [(0, root)]
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _without_comment(raw).rstrip()
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        if "\t" in line:
            raise ValueError(f"{where}: a tab; indent with spaces")
        indent = len(line) - len(line.lstrip())
        if opened[-1][0] is None:
            parent = opened[-2][0] or 0
            if indent > parent or len(opened) == 1:
                opened[-1] = (indent, opened[-1][1])
            else:
                opened.pop()
        while (opened[-1][0] or 0) > indent:
            opened.pop()
        if opened[-1][0] != indent:
            raise ValueError(f"{where}: indented further than the line above, which holds a value already")
        match = _KEY.match(line.strip())
        if match is None:
            raise ValueError(f"{where}: must read 'key: value', got {line.strip()!r}")
        key, value = match.group(1), match.group(2)
        mapping = opened[-1][1]
        if key in mapping:
            raise ValueError(f"{where}: {key} is given twice")
        if value is None or value == "":
            mapping[key] = {}
            opened.append((None, mapping[key]))
        else:
            try:
                mapping[key] = parse_scalar(value)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
    return root


def parse_scalar(text: str) -> Any:
    """Return the value of a scalar, a list ``[…]`` or a mapping ``{…}`` on one line.

    >>> [parse_scalar(t) for t in ("3", "1e-3", "true", "null", "'07'", "[1, [2]]", "{a: 1}", "ab c")]
    [3, 0.001, True, None, '07', [1, [2]], {'a': 1}, 'ab c']
    """
    text = text.strip()
    if text[:1] in ("[", "{"):
        return _collection(text)
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            raise ValueError(f"a quote is not closed in {text}")
        return json.loads(text) if text[0] == '"' else text[1:-1].replace("''", "'")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def write_yaml(mapping: dict[str, Any], indent: int = 0) -> str:
    """Return ``mapping`` as text that :func:`read_yaml` reads back.

    >>> print(write_yaml({"model": {"name": "ccnn", "widths": [1, 2]}, "ema": None}), end="")
    model:
      name: ccnn
      widths: [1, 2]
    ema: null
    """
    lines = []
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            lines.append(f"{' ' * indent}{key}:\n{write_yaml(value, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_scalar(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and isinstance(parse_scalar(value), str)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        special = [word for word, number in _SPECIAL.items() if repr(number) == repr(value)]
        # With a point in it, 1.0e-06 is a number to every reader of YAML.
        return special[0] if special else re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
    return json.dumps(value)


def _without_comment(line: str) -> str:
    quote = ""
    for i, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and (i == 0 or line[i - 1] in " [{,"):
            quote = char
        elif char == "#" and (i == 0 or line[i - 1] == " "):
            return line[:i]
    return line


def _collection(text: str) -> Any:
    closing = {"[": "]", "{": "}"}[text[0]]
    if text[-1] != closing:
        raise ValueError(f"{text[0]} is not closed in {text}")
    parts = [part for part in _split(text[1:-1]) if part.strip()]
    if closing == "]":
        return [parse_scalar(part) for part in parts]
    mapping = {}
    for part in parts:
        key, colon, value = part.partition(":")
        if not colon:
            raise ValueError(f"must read 'key: value', got {part.strip()!r}")
        mapping[str(parse_scalar(key))] = parse_scalar(value)
    return mapping


def _split(text: str) -> list[str]:
    """Split at the commas that lie in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts

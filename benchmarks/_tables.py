"""Tables for the terminal and the documentation, as the same text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["MISSING", "describe", "mebibytes", "milliseconds", "number", "ratio", "replace_section", "save", "table"]

MISSING = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up in a terminal too; columns without a single value are left out.

    >>> print(table(["step", "ms", "compiled"], [["p4", "1.2", MISSING], ["p4m", MISSING, MISSING]]))
    | step | ms  |
    | ---- | --: |
    | p4   | 1.2 |
    | p4m  |   – |
    """
    used = [i for i in range(len(header)) if i == 0 or not rows or any(line[i] != MISSING for line in rows)]
    header, rows = [header[i] for i in used], [[line[i] for i in used] for line in rows]
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    lines = [
        [cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(line)] for line in rows
    ]
    head = [name.ljust(width) for name, width in zip(header, widths, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def number(value: float | None) -> str:
    """Return about three digits of ``value``, a dash for None.

    >>> [number(v) for v in (1234.5, 56.78, 1.234, 0.01234, None)]
    ['1,234', '56.8', '1.23', '0.012', '–']
    """
    if value is None:
        return MISSING
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1e3)


def mebibytes(count: int | None) -> str:
    return number(None if count is None else count / 2**20)


def ratio(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def describe(machine: dict[str, Any]) -> str:
    """Return one line that describes the machine."""
    where = machine["cpu"] if machine["device"] == "cpu" else f"{machine['device_name']}, {machine['cpu']}"
    threads = f"{machine['threads']} threads"
    if machine["device"] == "cpu" and machine["threads"] == 1:
        threads = "1 thread, CPU time"
    cores = f"{machine['cores']} cores, {threads}"
    return f"{where}, {cores}, torch {machine['torch']}, {machine['date']}, seed {machine['seed']}"


def replace_section(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the markers of a section of a Markdown file, or append the section if it is missing."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n\n{text.strip()}\n\n{end}"
    old = path.read_text() if path.exists() else ""
    new, found = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: section, old, flags=re.DOTALL)
    path.write_text(new if found else f"{old.rstrip()}\n\n{section}\n".lstrip())


def save(report: dict[str, Any], path: Path | None) -> None:
    """Write the measurements so far, if a path is given, so that a stopped benchmark keeps them."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")

"""Damage to files, as hypothesis draws it: flipped bits, cuts, edited headers and cells, repeated and nested parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["damaged"]

#: cells of a table, numbers of a header, values of a recipe
CELLS = (
    *(b"", b"nan", b"inf", b"-inf", b"1e39", b"-1e400", b"-1", b"0", b"1.5", b"x", b"?", b"\0", b"\xff", b"\xc3\xa9"),
    *(b"99999999999", b"9" * 5_000, b"2007-01-31", b"9999-12-31T23:59:59+00:00", b"0001-01-01T00:00:00+23:59"),
    *(
        b"(",
        b")",
        b":",
        b",",
        b"[",
        b"{",
        b"}",
        b"]",
        b"'",
        b'"',
        b"\t",
        b"|",
        b"\n",
        b"\r",
        b"#",
        b"@data",
        b"&a",
        b"*a",
    ),
    *(b"!!int x", b"!!timestamp 1", b"!!bool maybe", b"!!python/object:os.system 1", b"../../x", b"\xe2\x80\xa8"),
)
WORDS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 20, 1 << 40, (1 << 63) - 1)
_NUMBER = re.compile(rb"-?\d[\d.]*")


def _flip(draw: Callable[..., int], raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw(st.integers(1, 6))):
        changed[_position(draw, raw)] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def _cut(draw: Callable[..., int], raw: bytes) -> bytes:
    return raw[: _position(draw, raw)]


def _write_word(draw: Callable[..., int], raw: bytes) -> bytes:
    at, size = _position(draw, raw), draw(st.sampled_from((1, 2, 4, 8)))
    word = (draw(st.sampled_from(WORDS)) % (1 << 8 * size)).to_bytes(size, draw(st.sampled_from(("little", "big"))))
    return raw[:at] + word + raw[at + size :]


def _write_cell(draw: Callable[..., int], raw: bytes) -> bytes:
    """Replace a number of a text, or of a header that is text."""
    found = list(_NUMBER.finditer(raw)) or [re.search(b"", raw)]
    match = found[draw(st.integers(0, len(found) - 1))]
    return raw[: match.start()] + draw(st.sampled_from(CELLS)) + raw[match.end() :]


def _insert(draw: Callable[..., int], raw: bytes) -> bytes:
    at = _position(draw, raw)
    return raw[:at] + draw(st.sampled_from(CELLS)) * draw(st.sampled_from((1, 2, 2_000))) + raw[at:]


def _repeat(draw: Callable[..., int], raw: bytes) -> bytes:
    start, end = sorted((_position(draw, raw), _position(draw, raw)))
    return raw[:end] + raw[start:end] * draw(st.sampled_from((1, 3, 50))) + raw[end:]


def _remove(draw: Callable[..., int], raw: bytes) -> bytes:
    start, end = sorted((_position(draw, raw), _position(draw, raw)))
    return raw[:start] + raw[end:]


def _position(draw: Callable[..., int], raw: bytes) -> int:
    """Return a position: half of them in the header."""
    last = max(0, len(raw) - 1)
    return draw(st.one_of(st.integers(0, min(last, 63)), st.integers(0, last)))


_KINDS = (_flip, _cut, _write_word, _write_cell, _insert, _repeat, _remove)


@st.composite
def damaged(draw: Callable[..., int], raw: bytes) -> bytes:
    """Draw a damaged copy of ``raw``."""
    for kind in draw(st.lists(st.sampled_from(_KINDS), min_size=1, max_size=3)):
        raw = kind(draw, raw) if raw else raw
    return raw

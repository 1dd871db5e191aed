"""Assertions, data, pictures, export and estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .call import Call

CALLS: list[Call] = []

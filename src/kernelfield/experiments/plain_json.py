"""Standard JSON, in which all numbers are finite."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["to_json"]


def to_json(value: Any, indent: int | None = None) -> str:
    """Return ``value`` as JSON, with null for numbers that are infinite or NaN.

    Args:
        value: nested mappings and lists of plain values.
        indent: of nested values; everything is on one line if not given.

    >>> to_json({"auc": float("nan"), "accuracy": 0.5})
    '{"auc": null, "accuracy": 0.5}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

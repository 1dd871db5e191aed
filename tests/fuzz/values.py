"""Values that an argument may be given by mistake."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["HUGE", "VALUES", "is_allowed", "variants"]

#: more than any argument takes; a call must refuse it without allocating memory for it
HUGE = 10**9

#: label: value
VALUES: dict[str, Any] = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-1": -1,
    "0": 0,
    "1": 1,
    "2": 2,
    "3": 3,
    "huge": HUGE,
    "-0.5": -0.5,
    "0.0": 0.0,
    "0.5": 0.5,
    "1.0": 1.0,
    "1.5": 1.5,
    "1e300": 1e300,
    "1e-300": 1e-300,
    "True": True,
    "False": False,
    "None": None,
    "'abc'": "abc",
    "''": "",
    "[]": [],
    "()": (),
    "{}": {},
    "[1, 2]": [1, 2],
    "(0.5, 0.5)": (0.5, 0.5),
    "[[1, 2], [3]]": [[1, 2], [3]],
    "(nan, 1)": (math.nan, 1),
    "('a', 'b')": ("a", "b"),
    "[None]": [None],
    "1j": 1j,
    "b'a'": b"a",
    "object": object(),
    "int": int,
    "array": np.ones(3),
    "tensor(2)": torch.tensor(2),
    "tensor(nan)": torch.tensor(math.nan),
    "empty tensor": torch.zeros(0),
    "int64 (2, 3)": torch.ones(2, 3, dtype=torch.int64),
    "float64 (2, 3, 8)": torch.ones(2, 3, 8, dtype=torch.float64),
    "complex (2, 3, 8)": torch.ones(2, 3, 8, dtype=torch.complex64),
    "meta (2, 3, 8)": torch.ones(2, 3, 8, device="meta"),
}

_SEQUENCES = ("Sequence", "tuple", "list", "Iterable")
#: arguments that are any text
_FREE_TEXT = (
    "data",
    "notes",
    "start_from",
    "text",
    "where",
    "name",
    "path",
    "pattern",
    "summary",
    "title",
    "label",
    "folder",
)
#: arguments that are probabilities or shares
_SHARES = ("dropout", "p", "share", "test_share", "validation_share")


def variants(value: Any) -> dict[str, Any]:
    """Return tensors like ``value`` with something wrong: shape, dtype or device."""
    if not isinstance(value, Tensor):
        return {}
    changed = {
        "one axis more": value.unsqueeze(0),
        "on meta": value.to("meta"),
        "as int64": value.to(torch.int64),
        "as complex": value.to(torch.complex64),
        "as bool": value.to(torch.bool),
        "empty": value[:0] if value.dim() else value,
    }
    if value.is_floating_point():
        changed |= {"as float64": value.double(), "as bfloat16": value.bfloat16()}
    for axis in range(value.dim()):
        changed |= {f"axis {axis} longer": torch.cat([value, value], dim=axis)}
    if value.dim():
        changed |= {"one axis less": value[0]}
    return changed


def is_allowed(name: str, annotation: str, value: Any) -> bool:
    """Return whether a call may accept ``value``, as far as the name and the annotation of its argument tell."""
    if "Any" in annotation or not annotation:
        return True
    takes = {kind: kind in annotation for kind in ("None", "str", "bool", "int", "float", "Tensor", "Callable", "dict")}
    takes["Tensor"] |= "Signal" in annotation
    takes["dict"] |= "Mapping" in annotation
    result = False
    if name in ("seed", "permute", "random_state") and value == HUGE and isinstance(value, int):
        return True  # seeds of any size
    if value is None:
        result = takes["None"]
    elif isinstance(value, bool):
        result = takes["bool"]
    elif isinstance(value, str):
        result = ("Path" in annotation and value != "") or (takes["str"] and _may_be_text(name, value))
    elif isinstance(value, int):
        result = takes["float"] or (takes["int"] and abs(value) < HUGE)
    elif isinstance(value, float):
        result = takes["float"] and math.isfinite(value)
    elif isinstance(value, (list, tuple)):
        result = any(kind in annotation for kind in _SEQUENCES) and _flat_and_finite(value)
    elif isinstance(value, Tensor):
        result = takes["Tensor"]
    elif isinstance(value, dict):
        result = takes["dict"]
    elif isinstance(value, type):
        result = takes["Callable"]
    if result and isinstance(value, (int, float)) and any(name == s or name.endswith("_" + s) for s in _SHARES):
        result = 0 <= value <= 1
    return result


def _may_be_text(name: str, value: str) -> bool:
    return value != "abc" or any(word in name for word in _FREE_TEXT)


def _flat_and_finite(value: Any) -> bool:
    return all(not isinstance(v, float) or math.isfinite(v) for v in value)

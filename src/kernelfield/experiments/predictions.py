"""Predictions as text, CSV and JSON."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from .._files import write_text
from .run_files import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: names of tables and JSON files of a run
RUN_FILES = (
    *("card.json", "confusion.json", "costs.json", "data.json", "heard.json", "result.json"),
    *("masks.csv", "metrics.csv"),
)

__all__ = ["check_out", "prediction_line", "prediction_table", "write_predictions"]


def check_out(path: Path | None, inputs: Sequence[Path] = ()) -> None:
    """Raise a ValueError if predictions cannot be written to a path, or would replace an input or a file of a run."""
    if path is None:
        return
    if path.suffix.lower() not in (".csv", ".json"):
        raise ValueError(f"out must end in .csv or .json, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"out must lie in an existing folder, got {path}")
    if (path.parent / "recipe.yaml").exists() and (path.name in RUN_FILES or path.name.startswith("result-after-")):
        raise ValueError(f"out must not be a file of the run in {path.parent}, got {path}")
    if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
        raise ValueError(f"out must not be one of the inputs, got {path}")


def write_predictions(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write predictions as CSV or JSON, depending on the ending of the file."""
    write_text(path, to_json(rows) + "\n" if path.suffix.lower() == ".json" else prediction_table(rows))


def prediction_table(rows: list[dict[str, Any]]) -> str:
    r"""Return predictions as CSV: file, sample, class, probability, then one column per class or value.

    >>> row = {"file": "a.wav", "sample": 0, "class": "no", "probability": 0.9}
    >>> print(prediction_table([{**row, "probabilities": {"no": 0.9, "yes": 0.1}}]), end="")
    file,sample,class,probability,p(no),p(yes)
    a.wav,0,no,0.9,0.9,0.1
    """
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(flat)
    return text.getvalue()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a prediction with one cell per class or value."""
    cells = {key: value for key, value in row.items() if key not in ("probabilities", "values", "classes")}
    cells |= {f"p({name})": p for name, p in row.get("probabilities", {}).items()}
    for key in ("values", "classes"):
        found = row.get(key, [])
        if any(isinstance(value, list) for value in found):
            raise ValueError("out must end in .json for predictions at each position of an image, got .csv")
        cells |= {f"{key[:-1] if key == 'values' else 'class'} {i}": value for i, value in enumerate(found)}
    return cells


def prediction_line(row: dict[str, Any], *, named: bool = False) -> str:
    """Return a prediction as a line of text.

    Args:
        row: the prediction.
        named: whether to put its file first.

    >>> prediction_line({"file": "a.wav", "sample": 0, "class": "no", "probability": 0.9, "probabilities": {}})
    'class no  probability 0.9000'
    """
    hidden = ("file", "sample", *(["probabilities"] if "class" in row else []))
    cells = [f"{key} {_short(value)}" for key, value in row.items() if key not in hidden]
    return "  ".join([f"{row['file']} {row['sample']}"] * named + cells)


def _short(value: Any) -> str:
    """Return a value as text, floats with four digits."""
    if isinstance(value, dict):
        return "  ".join(f"{key} {_short(v)}" for key, v in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_short(v) for v in value) + "]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)

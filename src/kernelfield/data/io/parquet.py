"""Tables in parquet files, read by pyarrow where it is installed."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

from .files import decoding, open_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_parquet"]


def read_parquet(path: Path) -> list[list[str]]:
    """Return the rows of a parquet file as text, the names of the columns first; a null is an empty cell.

    The text of a cell then passes the same checks as that of a CSV file.
    """
    try:
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path} is a parquet file, which needs pyarrow: pip install 'kernelfield[parquet]'", name="pyarrow"
        ) from error
    with open_file(path) as source, decoding(path, "a parquet table"):
        table = parquet.read_table(source)
        columns = [[_cell(value) for value in column.to_pylist()] for column in table.columns]
        return [list(table.column_names), *(list(row) for row in zip(*columns, strict=True))]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, date) else str(value)

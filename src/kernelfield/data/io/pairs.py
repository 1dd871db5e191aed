"""Training and test data in separate files of one folder: ``X_TRAIN.ts`` and ``X_TEST.ts``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["split_files"]

#: endings of the names of validation and test files
_OTHERS = (("validation", "valid", "val"), ("test",))


def split_files(path: Path) -> list[Path]:
    """Return a file of training data, followed by the files of validation and test data if there is test data.

    The name of a training file ends in ``train``: ``X_TRAIN.ts`` goes with ``X_TEST.ts``, ``train.csv`` with
    ``test.csv`` and, if it exists, ``validation.csv``. Any other file stands alone.

    >>> from pathlib import Path
    >>> split_files(Path("nowhere/train.csv"))
    [PosixPath('nowhere/train.csv')]
    """
    found = re.fullmatch(r"(|.*[^a-z])(train)", path.stem, re.IGNORECASE)
    if found is None:
        return [path]
    stem, word = found[1], found[2]
    to_case = str.upper if word.isupper() else str.capitalize if word[0].isupper() else str.lower
    held, tested = (
        next((p for name in names if (p := path.with_name(f"{stem}{to_case(name)}{path.suffix}")).is_file()), None)
        for names in _OTHERS
    )
    return [p for p in (path, held, tested) if p is not None] if tested is not None else [path]

"""The docstring of each room names the files in it, so that a reader knows where to begin."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOMS = (
    *("cli", "data", "experiments", "layers", "layers.continuous", "models", "ops", "ops.conv", "ops.fused"),
    *("sklearn", "streaming", "testing", "viz"),
)


@pytest.mark.parametrize("room", ROOMS)
def test_the_docstring_of_a_room_names_its_files(room: str) -> None:
    module = importlib.import_module(f"kernelfield.{room}")
    doc, folder = module.__doc__ or "", Path(module.__file__ or "").parent
    there = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    there |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert there - set(re.findall(r"``([\w/]+)``", doc)) == set()
    # A name in a list of files belongs to a file or a folder.
    listed = {
        name for line in re.findall(r"^(?:- |  ).*", doc, re.MULTILINE) for name in re.findall(r"``(\w+/?)``", line)
    }
    assert {name for name in listed - there if not (folder / name).is_dir()} == set()

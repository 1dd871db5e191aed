"""Every entry of the list of the thesis's tables and figures resolves, and the page shows the list."""

from __future__ import annotations

import importlib
import runpy
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kernelfield.experiments.recipe import list_recipes
from kernelfield.models import list_models

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "thesis_page.py"))
ENTRIES = [entry for entries in SCRIPT["read_entries"]().values() for entry in entries]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["label"].split(",")[0])
def test_entries_name_existing_objects(entry: dict) -> None:
    assert entry["made"] or entry.get("lacks"), "neither made nor marked as missing"
    for maker in entry["made"]:
        kind, name = maker.split(" ", 1)
        if kind == "recipe":
            assert any(fnmatch(recipe, name) for recipe in list_recipes()), maker
        elif kind == "network":
            assert name in list_models(), maker
        elif kind == "figure":
            module, function = name.split(".")
            assert callable(getattr(importlib.import_module(f"kernelfield.viz.{module}"), function)), maker
        else:
            folder = {"page": "docs", "benchmark": "benchmarks", "example": "examples", "script": "scripts"}[kind]
            assert (ROOT / folder / (f"{name}.md" if kind == "page" else name)).is_file(), maker


def test_recipes_of_chapters_are_listed() -> None:
    patterns = [m.split(" ")[1] for entry in ENTRIES for m in entry["made"] if m.startswith("recipe ")]
    # Rows on data that the thesis does not use have no table there.
    own = (
        "fsdd",
        "furniture",
        "chair-monitor",
        "solids",
        "transients",
        "physionet2012",
        "voxels",
        "digits",
        "oscillators",
        "unet",
    )
    missing = [r for r in list_recipes() if not any(o in r for o in own) and not any(fnmatch(r, p) for p in patterns)]
    assert not missing


def test_labels_are_listed_once() -> None:
    labels = [label for entry in ENTRIES for label in entry["label"].split(", ")]
    assert len(labels) == len(set(labels))


def test_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "project" / "thesis.md").read_text(encoding="utf-8")
    assert text == SCRIPT["page"](), "run python scripts/thesis_page.py"

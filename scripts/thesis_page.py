"""Write docs/project/thesis.md, the list of all tables and figures of the thesis, from docs/thesis.yaml.

python scripts/thesis_page.py
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from kernelfield.experiments.recipe import list_recipes

ROOT = Path(__file__).parents[1]
TITLES = {
    1: "Introduction",
    2: "CKConv",
    3: "CCNN",
    4: "Gridification",
    5: "FlexConv",
    6: "DNArch",
    7: "Co-attention",
    8: "Attentive group convolution",
    9: "Group self-attention",
    10: "Wavelet networks",
    11: "Partial equivariance",
    12: "Conclusion",
}
HEAD = """# Tables and figures of the thesis

This page lists the recipe, script or function that makes each table and figure of the thesis. `kernelfield reproduce
NAME` runs a recipe and needs its data set. Drawings explain a method and hold no data; the linked page explains it in
words. [Results](../results.md) has the numbers of the recipes that were run. `python scripts/thesis_page.py` writes
this page from `docs/thesis.yaml`, and tests check its entries.

"""


def read_entries() -> dict[int, list[dict[str, Any]]]:
    """Return the entries of docs/thesis.yaml by chapter."""
    return yaml.safe_load((ROOT / "docs" / "thesis.yaml").read_text(encoding="utf-8"))


def show(maker: str) -> str:
    """Return the recipe, script or function that makes an entry, as Markdown."""
    kind, name = maker.split(" ", 1)
    if kind == "page":
        return f"[page](../{name}.md)"
    if kind == "recipe":
        count = sum(fnmatch(recipe, name) for recipe in list_recipes())
        return f"`{name}`" + (f" ({count} recipes)" if count > 1 else "")
    if kind == "figure":
        return f"`viz.{name}`"
    folder = {"benchmark": "benchmarks/", "example": "examples/", "script": "scripts/"}.get(kind, "")
    return f"`{folder}{name}`"


def page() -> str:
    """Return the page."""
    text = HEAD
    for chapter, entries in read_entries().items():
        text += f"## {chapter} · {TITLES[chapter]}\n\n| label | content | made by |\n|---|---|---|\n"
        for entry in entries:
            labels = ", ".join(f"`{label}`" for label in entry["label"].split(", "))
            made = ", ".join(show(maker) for maker in entry["made"])
            made += f"; {entry['lacks']}" if "lacks" in entry else ""
            text += f"| {labels} | {entry['what']} | {made} |\n"
        text += "\n"
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "project" / "thesis.md").write_text(page(), encoding="utf-8")

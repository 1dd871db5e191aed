"""Write one notebook for each example: examples/*.py → docs/notebooks/*.ipynb.

    python scripts/notebooks.py              # all of them; outputs are kept if the code is unchanged
    python scripts/notebooks.py --execute    # and run them, so that the site shows their outputs
    python scripts/notebooks.py --execute ch05_flexconv

The docstring becomes text, imports and constants the first cell, each function a cell, and the body of ``main`` one
cell for each paragraph. Pictures that the example saves are shown at the end.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("ch*.py"))
NOTEBOOKS = ROOT / "docs" / "notebooks"

#: The page of the site for each chapter.
PAGES = {page.stem[:4]: page.name for page in sorted((ROOT / "docs" / "chapters").glob("ch*.md"))}


def cells(source: str) -> list[tuple[str, str]]:
    """Return the cells of an example as pairs of type and text."""
    lines = source.splitlines()
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    imports = next(node.lineno for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
    found = [("markdown", introduction(ast.get_docstring(tree) or ""))]
    found.append(("code", "\n".join(lines[imports - 1 : comment_start(lines, functions[0].lineno) - 1]).strip()))
    for node in functions:
        if node.name == "main":
            found += [("code", paragraph) for paragraph in paragraphs(node, lines)]
        else:
            found.append(("code", "\n".join(lines[comment_start(lines, node.lineno) - 1 : node.end_lineno])))
    pictures = re.findall(r'"([\w/]+\.png)"', source)
    if pictures:
        shown = "\n".join(f'display(Image("{picture}"))' for picture in pictures)
        found.append(("code", f"from IPython.display import Image, display\n\n{shown}"))
    return found


def comment_start(lines: list[str], first: int) -> int:
    """Return the first line of the comment above line ``first``, or ``first``."""
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


def introduction(docstring: str) -> str:
    """Return the docstring of an example as Markdown, its first line as a heading, without the command that runs it."""
    title, *rest = docstring.split("\n\n")
    text = [part for part in rest if not part.lstrip().startswith("python ")]
    chapter = re.match(r"Chapter (\d+)", title)
    link = ""
    if chapter:
        link = f"\n\n[The page of this chapter](../chapters/{PAGES[f'ch{int(chapter[1]):02}']})"
    return "\n\n".join([f"# {title.rstrip('.')}", *(" ".join(part.split()) for part in text)]) + link


def paragraphs(main: ast.FunctionDef, lines: list[str]) -> list[str]:
    """Return the body of ``main`` in pieces, split at blank lines and around long loops."""
    pieces: list[list[str]] = [[]]
    for node in main.body:
        first = comment_start(lines, node.lineno)
        text = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
        is_long_loop = isinstance(node, (ast.For, ast.While)) and text.count("\n") > 5
        if is_long_loop or not lines[first - 2].strip():
            pieces.append([])
        pieces[-1].append(text)
        if is_long_loop:
            pieces.append([])
    return ["\n".join(piece) for piece in pieces if piece]


def notebook(example: Path) -> dict[str, Any]:
    """Return the notebook of an example, without outputs."""
    made = []
    for number, (kind, text) in enumerate(cells(example.read_text(encoding="utf-8"))):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"{example.stem[:4]}-{number}", "metadata": {}}
        cell["source"] = text.splitlines(keepends=True)
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def sources(content: dict[str, Any]) -> list[str]:
    """Return the sources of a notebook's cells."""
    return ["".join(cell["source"]) for cell in content["cells"]]


def with_outputs(content: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of an older one if only their text differs."""
    new_code, old_code = ([c for c in book["cells"] if c["cell_type"] == "code"] for book in (content, old))
    if [cell["source"] for cell in new_code] != [cell["source"] for cell in old_code]:
        return content
    kept = iter(old_code)
    return {**old, "cells": [next(kept) if c["cell_type"] == "code" else c for c in content["cells"]]}


def execute(content: dict[str, Any], timeout: float = 1200) -> dict[str, Any]:
    """Run a notebook in an empty folder and return it with its outputs."""
    import nbformat  # noqa: PLC0415
    from nbclient import NotebookClient  # noqa: PLC0415

    book = nbformat.reads(json.dumps(content), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"timeout": timeout, "coalesce_streams": True, "resources": {"metadata": {"path": folder}}}
        NotebookClient(book, **settings).execute()
    for cell in book["cells"]:
        cell["metadata"] = {}  # no times of execution
        if cell["cell_type"] == "code":  # nor values of last lines, such as a seeded generator
            cell["outputs"] = [output for output in cell["outputs"] if output["output_type"] != "execute_result"]
    return dict(json.loads(nbformat.writes(book)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="examples, such as ch05_flexconv; all by default")
    parser.add_argument("--execute", action="store_true", help="run the notebooks and keep their outputs")
    options = parser.parse_args()
    NOTEBOOKS.mkdir(exist_ok=True)
    for example in EXAMPLES:
        if options.names and example.stem not in options.names:
            continue
        path, content = NOTEBOOKS / f"{example.stem}.ipynb", notebook(example)
        if options.execute:
            content = execute(content)
        elif path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            if sources(old) == sources(content):
                continue
            content = with_outputs(content, old)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()

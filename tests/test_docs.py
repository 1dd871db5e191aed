"""The documentation: Python blocks run, links lead somewhere, pages are in the navigation, public names are documented.

Blocks fenced as ``python`` run; what needs data, a GPU or minutes is fenced as ``py``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelfield as kf
from tests.scripts import load_script

from .test_public_names import EXTRAS, NAMES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SITE]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Return the text of a page without its fenced code."""
    return re.sub(r"^```\w*\n.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST name them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="module")
def api_pages() -> Any:
    return load_script(DOCS / "_ext" / "api_pages.py")


@pytest.fixture(scope="module")
def notebooks() -> Any:
    return load_script(ROOT / "scripts" / "notebooks.py")


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text(encoding="utf-8")], ids=page_id)
def test_python_blocks_run(page: Path) -> None:
    names: dict[str, Any] = {"torch": torch, "kf": kf}  # later blocks of a page continue the earlier ones
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_resolve(page: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if "://" in target or path.startswith("mailto:"):
            continue
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_named_files_exist(page: Path) -> None:
    paths = re.findall(r"`(?:python |bash )?((?:\w+/)+[\w.-]+\.(?:py|sh|json|txt))\b", prose(page))
    roots = (ROOT, ROOT / "src" / "kernelfield")
    assert [p for p in paths if not any((root / p).exists() for root in roots) and "yours" not in p] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_named_parts_of_the_package_exist(page: Path) -> None:
    missing = []
    for path in set(re.findall(r"\bkf\.([A-Za-z_][\w.]*\w)", page.read_text(encoding="utf-8"))):
        found: Any = kf
        for name in path.split("."):
            found = getattr(found, name, None)
        missing += [path] if found is None else []
    assert missing == []


@pytest.fixture(scope="module")
def commands() -> dict[str, set[str]]:
    """Return the options of each command."""
    main = pytest.importorskip("typer.main")
    from kernelfield.cli import app  # noqa: PLC0415  needs the extra "train"

    found = main.get_command(app).commands.items()
    return {name: {"--help", *(opt for option in command.params for opt in option.opts)} for name, command in found}


def code_lines(page: Path) -> list[str]:
    """Return the lines of a page's fenced and indented blocks, and its spans of code."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^ {4}(\S.*)$", prose(page), flags=re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]
    return [line for block in fenced for line in block.splitlines()] + indented + spans


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path, commands: dict[str, set[str]]) -> None:
    for line in code_lines(page):
        found = re.match(r"(?:\S+ \| )?kernelfield (?:--import \S+ )?([a-z][a-z-]*)\b([^#]*)", line)
        if found is None:
            continue
        name, rest = found.groups()
        assert name in commands, line
        assert set(re.findall(r"--[a-z][a-z-]*", rest)) <= commands[name], line


def test_every_page_is_in_the_navigation() -> None:
    listed = {DOCS / "index.md"}
    for page in SITE:
        for body in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            entries = [line.strip() for line in body.splitlines() if line.strip() and not line.startswith(":")]
            for entry in (re.sub(r".*<(.*)>", r"\1", entry) for entry in entries):
                listed |= {(page.parent / f"{entry}{suffix}").resolve() for suffix in (".md", ".ipynb")}
    pages = [*SITE, *NOTEBOOKS]
    assert [page_id(page) for page in pages if page not in listed] == []


@pytest.mark.parametrize("module", [name for name in NAMES if name != "kernelfield"])
def test_reference_documents_every_public_name(api_pages: Any, module: str) -> None:
    if module in EXTRAS:
        pytest.importorskip(EXTRAS[module])
    page = api_pages.page_text(module, api_pages.MODULES[module])
    documented = set(re.findall(r"^\.\. auto\w+:: (\S+)$", page, flags=re.MULTILINE))
    missing = [n for n in NAMES[module] if f"{module}.{n}" not in documented and not is_module(module, n)]
    assert missing == []


def test_reference_documents_every_setting_of_a_recipe() -> None:
    pytest.importorskip("typer")
    settings = pytest.importorskip("kernelfield.experiments.settings")
    text = load_script(DOCS / "_ext" / "catalogues.py").settings()
    for section in ("Optimizer", "Schedule", "Training"):
        for field in dataclasses.fields(getattr(settings, section)):
            assert f"``{section.lower()}.{field.name}``" in text


def test_options_of_commands_are_code() -> None:
    pytest.importorskip("typer")
    plain = load_script(DOCS / "_ext" / "catalogues.py").plain
    assert plain("With --start-from: x_y and a--b.") == r"With ``--start-from``: x\_y and a--b."


def test_each_example_has_an_up_to_date_notebook(notebooks: Any) -> None:
    assert [book.stem for book in NOTEBOOKS] == [example.stem for example in notebooks.EXAMPLES]
    for example in notebooks.EXAMPLES:
        committed = json.loads((DOCS / "notebooks" / f"{example.stem}.ipynb").read_text(encoding="utf-8"))
        assert notebooks.sources(committed) == notebooks.sources(notebooks.notebook(example)), example.stem


def test_results_page_lists_every_result() -> None:
    script = load_script(ROOT / "scripts" / "results_page.py")
    page, settings = script.page(ROOT / "results"), script.settings_page(ROOT / "results")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "results").glob("*.json")]
    missing = [result["title"] for result in results if result["title"][1:] not in page]
    assert missing == []
    # Each row leads to the section with its settings, and every section has a row.
    links = set(re.findall(r"\(results-settings\.md#([\w-]+)\)", page))
    assert links == set(re.findall(r"^## ([\w-]+)$", settings, re.MULTILINE)) == {r["recipe"] for r in results}
    for name, text in (("results.md", page), ("results-settings.md", settings)):
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"run scripts/results_page.py to write docs/{name}"


#: rows of the README: first words, recipe, test set, metric
README_RESULTS = [
    ("sMNIST, CCNN_4,140", "ch03-smnist-ccnn-4-140", "test", "accuracy"),
    ("rotated MNIST, p4-CNN", "ch08-rotmnist-p4cnn", "test", "accuracy"),
    ("rotated MNIST, p4-CNN big_15", "ch08-rotmnist-p4cnn-15", "test", "accuracy"),
    ("rotated MNIST, attentive p4-CNN", "ch08-rotmnist-p4cnn-full", "test", "accuracy"),
    ("rotated MNIST, partial SE(2), 8 elements", "ch11-rotmnist-se2-8-partial", "test", "accuracy"),
    ("copy memory over 1,000 steps, CKCNN", "ch02-copy-1000", "test", "accuracy"),
    ("Darcy flow, trained at 16² and tested at 32²", "ch06-darcy-small-ccnn-4-140", "px32", "l2"),
    ("MNIST6-180, partial SE(2)", "ch11-mnist6-180-se2-8-partial", "test", "accuracy"),
    ("pMNIST, CCNN_4,140", "ch03-pmnist-ccnn-4-140", "test", "accuracy"),
    ("sCIFAR-10, CCNN_4,140", "ch03-scifar10-ccnn-4-140", "test", "accuracy"),
    ("CIFAR-10, CCNN_4,140", "ch03-cifar10-ccnn-4-140", "test", "accuracy"),
    ("CIFAR-10, FlexNet-16", "ch05-cifar10-flexnet-16", "test", "accuracy"),
]


def readme_results() -> list[list[str]]:
    """Return the rows of the README's table of results."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Results")[1].split("## Speed")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_readme_shows_the_results_of_their_files() -> None:
    rows = readme_results()
    assert len(rows) == len(README_RESULTS)
    for row, (title, recipe, test, metric) in zip(rows, README_RESULTS, strict=True):
        assert row[0].startswith(title)
        result = json.loads((ROOT / "results" / f"{recipe}.json").read_text(encoding="utf-8"))
        scale = 100 if metric == "accuracy" else 1
        mean, _, spread = row[2].partition(" ± ")
        found = [(mean, result["metrics"][test][metric])]
        found += [(spread, result["deviation"][test][metric])] if spread else []
        for shown, value in found:
            digits = len(shown.partition(".")[2])
            assert shown == f"{scale * value:.{digits}f}", title
        assert int(row[3]) == (len(result["seed"]) if isinstance(result["seed"], list) else 1)
        assert int(row[4].split(" ")[0]) == result["epochs"], title


def test_readme_counts_the_rows_of_the_results_page() -> None:
    pages = [" ".join(page.read_text(encoding="utf-8").split()) for page in (ROOT / "README.md", DOCS / "results.md")]
    readme, results = (re.search(r"Of (\d+) rows\D+(\d+) .*?\b(\d+) of the", page) for page in pages)
    assert readme is not None
    assert results is not None
    assert readme.groups() == results.groups()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the warnings of Jupyter's own packages
@pytest.mark.parametrize("book", NOTEBOOKS, ids=lambda book: book.stem)
def test_notebook_runs(notebooks: Any, book: Path) -> None:
    notebooks.execute(json.loads(book.read_text(encoding="utf-8")))


def is_module(module: str, name: str) -> bool:
    return isinstance(getattr(importlib.import_module(module), name), type(importlib))


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    objects = inventory(tmp_path / "objects.inv")
    for module, names in NAMES.items():
        missing = [n for n in names if module != "kernelfield" and f"{module}.{n}" not in objects]
        assert [n for n in missing if not is_module(module, n)] == []
    for page in ("index.html", "chapters/ch02-ckconv.html", "notebooks/ch05_flexconv.html", "api/layers.html"):
        html = (tmp_path / page).read_text(encoding="utf-8")
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', html) == []
    assert "</em>) – channels of the input." in (tmp_path / "api" / "layers.html").read_text(encoding="utf-8")
    chapter = (tmp_path / "chapters" / "ch02-ckconv.html").read_text(encoding="utf-8")
    assert "_static/tex-svg.js" in chapter
    assert (tmp_path / "_static" / "tex-svg.js").stat().st_size > 1_000_000


def inventory(path: Path) -> set[str]:
    """Return the names of Python objects in a Sphinx inventory."""
    body = path.read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(body).decode().splitlines()
    return {line.split()[0] for line in lines if " py:" in line}


@pytest.mark.parametrize(
    ("signature", "wanted"),
    [
        ("(field: Field = <class 'kernelfield.fields.filters.MAGNet'>)", "(field: Field = MAGNet)"),
        ("(act=<function relu at 0x7f00a1>, n: int = 3)", "(act=relu, n: int = 3)"),
        ("(x: int = 3) -> None", "(x: int = 3) -> None"),
        (None, None),
    ],
)
def test_signatures_name_classes_and_functions(api_pages: Any, signature: str | None, wanted: str | None) -> None:
    assert api_pages.short_defaults(signature) == wanted


def named_functions(page: Path) -> list[tuple[str, str]]:
    """Return pairs of a file and a function or class in it, written as "`file.py`: `name`"."""
    return re.findall(r"`([\w/]+\.py)`:\s+`([\w.]+)`", page.read_text(encoding="utf-8"))


def test_the_tour_names_functions_that_exist() -> None:
    found = named_functions(DOCS / "internals" / "tour.md")
    assert len(found) > 20
    for file, name in found:
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        there: Any = importlib.import_module(f"kernelfield.{module}")
        for part in name.split("."):
            there = getattr(there, part)
        assert there.__module__ == f"kernelfield.{module}", name

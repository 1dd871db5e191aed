"""The package as a whole: what it needs, and which part may import which."""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path

import pytest

import kernelfield
from kernelfield.data.registry import _ENTRIES
from tests.fresh_process import run_module

ROOT = Path(kernelfield.__file__).parent

CONTRACTS = {"grids", "masks", "fields", "groups"}
FOUNDATION = CONTRACTS | {"ops"}
#: which parts of the package a part may import, besides itself and private helpers; a part that is not named
#: may not exist. The command line and the package's front door see everything.
MAY_IMPORT = {
    **dict.fromkeys(CONTRACTS, CONTRACTS),
    "ops": CONTRACTS,
    "testing": set(),
    "layers": FOUNDATION,
    "models": FOUNDATION | {"layers"},
    "streaming": FOUNDATION | {"layers", "models", "cuda_graphs", "export"},
    "parallel": FOUNDATION | {"layers", "models"},
    "cuda_graphs": FOUNDATION | {"layers"},
    "data": FOUNDATION,
    "viz": FOUNDATION | {"layers", "models"},
    "export": FOUNDATION | {"layers"},
    "diagnosis": FOUNDATION | {"layers", "testing"},
    "experiments": FOUNDATION | {"layers", "models", "streaming", "parallel", "cuda_graphs", "data", "viz", "export"},
    "sklearn": FOUNDATION | {"layers", "models", "data", "experiments"},
    "aeon": {"sklearn"},
}
EVERYTHING = {*MAY_IMPORT, "cli"}
MAY_IMPORT |= dict.fromkeys(("__init__", "__main__", "cli"), EVERYTHING)


@functools.cache
def imports_of(path: Path, root: Path) -> list[tuple[tuple[str, ...], bool]]:
    """Return what a file imports of the package, at its top or anywhere in it, and whether only type checkers do."""
    package = ("kernelfield", *path.relative_to(root).parent.parts)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    unused = {id(node) for block in blocks for node in ast.walk(block)}
    found: list[tuple[tuple[str, ...], bool]] = []
    for node in ast.walk(tree):
        modules: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            modules = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = (*start, *(node.module or "").split(".")) if node.module else start
            modules = [(*module, alias.name) for alias in node.names]
        found += [(module, id(node) in unused) for module in modules if module[:1] == ("kernelfield",)]
    return found


def imported_parts(path: Path, root: Path = ROOT) -> set[str]:
    """Return the parts of the package that a file imports, at its top or anywhere in it."""
    return {module[1] if len(module) > 1 else "__init__" for module, _ in imports_of(path, root)}


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that reach each other.

    >>> [sorted(circle) for circle in circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})]
    [['b', 'c']]
    """
    reached: dict[str, set[str]] = {}
    for start in graph:
        todo, seen = [start], set()
        while todo:
            fresh = graph.get(todo.pop(), set()) - seen
            seen |= fresh
            todo += fresh
        reached[start] = seen
    groups = {frozenset(other for other in seen if a in reached.get(other, ())) for a, seen in reached.items()}
    return {group for group in groups if len(group) > 1}


FILES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}


def test_imports_point_down() -> None:
    wrong = {}
    for name, path in FILES.items():
        part = Path(name).parts[0].removesuffix(".py")
        allowed = {part} if part.startswith("_") and part not in MAY_IMPORT else {part} | MAY_IMPORT[part]
        imported = {other for other in imported_parts(path) if not other.startswith("_") or other == "__init__"}
        if not imported <= allowed:
            wrong[name] = sorted(imported - allowed)
    assert wrong == {}


#: modules that import each other: a method that makes the other's class, a kernel and its reference, and the registry,
#: which creates networks with pretrained weights
MUTUAL = {
    frozenset({"layers.group.gconv", "layers.group.wavelets"}),
    frozenset({"ops.attention.softmax", "ops.attention.triton.softmax"}),
    frozenset({"models.registry", "models.pretrained", "models.pretrained.hub", "models.pretrained.load"}),
}


def test_no_modules_import_each_other_even_inside_functions() -> None:
    names = {name: name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in FILES}
    known = set(names.values())
    graph: dict[str, set[str]] = {}
    for name, path in FILES.items():
        modules = (".".join(module[1:]) for module, for_types in imports_of(path, ROOT) if not for_types)
        # ``from .package import name`` imports the module of this name or the package.
        found = (module if module in known else module.rpartition(".")[0] for module in modules)
        graph[names[name]] = {module for module in found if module in known - {names[name]}}
    assert circles(graph) == MUTUAL


def triton_words(path: Path) -> list[str]:
    """Return the lines of a file that name Triton, in code or text, but for the name of a method that users choose."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "triton" in line.replace('"triton"', "").lower()]


def test_only_operators_mention_triton() -> None:
    found = {name: triton_words(path) for name, path in FILES.items() if Path(name).parts[0] != "ops"}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_mentions_of_triton_are_found(tmp_path: Path) -> None:
    file = tmp_path / "layer.py"
    file.write_text(
        'import triton\nfrom .ops.conv.triton import launch\n#: Triton\'s kernels\nmethod="triton"\nx = 1\n'
    )
    assert len(triton_words(file)) == 3


def test_imports_inside_functions_are_found(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    file = tmp_path / "ops" / "conv.py"
    file.write_text(
        "import torch\nimport kernelfield.models.ccnn\nfrom .fft import a\nfrom .. import layers\n"
        "from ..fields.base import b\nfrom kernelfield import viz\nfrom kernelfield.data.sets.images.digits import c\n"
        "def f():\n    from ..experiments import d\n    import kernelfield\n"
    )
    expected = {"models", "ops", "layers", "fields", "viz", "data", "experiments", "__init__"}
    assert imported_parts(file, tmp_path) == expected


def test_core_and_data_need_torch_and_numpy_alone() -> None:
    result = run_module("tests.without_extras", "core", "data", "extra")
    assert result.returncode == 0, result.stderr
    core, data, extra = json.loads(result.stdout)
    assert (core["output"], core["mask"]) == ([2, 3, 8], [15])
    assert set(core["packages"]) <= {"kernelfield", "torch", "numpy"}
    ours = [name for name, entry in _ENTRIES.items() if str(entry.make.__module__).startswith("kernelfield.data.sets.")]
    assert data == {"names": sorted(ours), "loaded": "adding"}  # other tests register more in this process
    assert "yaml" in extra["error"]  # the extras are really missing there


def test_a_name_of_another_module_is_found() -> None:
    with pytest.raises(AttributeError, match=r"kernelfield\.groups\.Cyclic"):
        _ = kernelfield.Cyclic
    with pytest.raises(AttributeError, match="the closest is 'GroupConv'"):
        _ = kernelfield.GroupConvolution

"""Declared dependencies: everything imported is declared, everything declared is imported."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: names of distributions whose modules are called otherwise
MODULES = {"pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn", "huggingface-hub": "huggingface_hub"}
#: modules that another distribution brings, by that distribution's module
BROUGHT = {"mpl_toolkits": "matplotlib", "triton": "torch", "typing_extensions": "torch"}
#: what torch.onnx.export imports for us
INDIRECT = {"onnx", "onnxscript"}
#: calls that import a module by its name
BY_NAME = ("import_module", "find_spec", "_require")


def imported_modules(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in BY_NAME and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return {name.split(".")[0] for name in found if not name.startswith(".")}


def imported_by_the_package() -> set[str]:
    files = (ROOT / "src" / "kernelfield").rglob("*.py")
    found = set().union(*(imported_modules(path.read_text(encoding="utf-8")) for path in files))
    return {BROUGHT.get(name, name) for name in found} - set(sys.stdlib_module_names) - {"kernelfield"}


def declared() -> set[str]:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for extra in extras if extra not in ("dev", "docs") for line in extras[extra]),
    ]
    names = {re.match(r"[\w.-]+", line).group() for line in lines}  # type: ignore[union-attr]
    return {MODULES.get(name, name) for name in names} - {"kernelfield"}  # an extra may include another


def test_imported_packages_are_declared() -> None:
    assert imported_by_the_package() - declared() == set()


def test_declared_packages_are_imported() -> None:
    assert declared() - imported_by_the_package() - INDIRECT == set()


def test_imports_are_found_in_every_form() -> None:
    source = "import a.b\nfrom c import d\nfrom .e import f\nimportlib.import_module('g.h')\nfind_spec('i')\n"
    assert imported_modules(source) == {"a", "c", "g", "i"}

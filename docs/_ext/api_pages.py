"""Sphinx extension that writes one reference page for each public module, from its ``__all__``.

The pages are written into ``docs/api/`` when a build starts. Names of a package are grouped by the subpackage that
defines them, so a new public name appears without an edit here. ``tests/test_docs.py`` compares the pages with
``__all__``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernelfield

if TYPE_CHECKING:
    from types import ModuleType

    from docutils import nodes
    from sphinx.application import Sphinx

#: Page title of each public module, in the order of the navigation.
MODULES = {
    "kernelfield.layers": "Layers",
    "kernelfield.models": "Networks",
    "kernelfield.parallel": "Context parallelism",
    "kernelfield.streaming": "Streaming",
    "kernelfield.cuda_graphs": "CUDA graphs",
    "kernelfield.fields": "Fields",
    "kernelfield.fields.start": "Starting values of fields",
    "kernelfield.masks": "Masks",
    "kernelfield.groups": "Groups",
    "kernelfield.ops": "Operators",
    "kernelfield.grids": "Grids",
    "kernelfield.testing": "Testing",
    "kernelfield.diagnosis": "Diagnosis",
    "kernelfield.data": "Data",
    "kernelfield.experiments": "Experiments",
    "kernelfield.viz": "Plots",
    "kernelfield.sklearn": "scikit-learn estimators",
    "kernelfield.aeon": "aeon estimators",
    "kernelfield.export": "Export",
}

INDEX = """API reference
=============

Every public name, with its equation, its shapes and an example that the tests run. The layers, networks and losses are
also names of the package itself: ``kf.CKConv`` is :class:`kernelfield.layers.CKConv`.

.. list-table::
   :widths: 30 70

{rows}

Lists: {lists}.

.. toctree::
   :hidden:

{entries}
"""


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module: its ``__all__``, or else what it defines without a leading underscore."""
    if hasattr(module, "__all__"):
        return [
            name for name in module.__all__ if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
        ]
    members = vars(module).items()
    return [n for n, v in members if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__]


def documented(module_name: str) -> dict[str, list[str]]:
    """Return full names to document on a page, by the module they are imported from."""
    module = importlib.import_module(module_name)
    names = {module_name: public_names(module)}
    if not hasattr(module, "__all__") and hasattr(module, "__path__"):  # viz: a package of modules
        for info in pkgutil.iter_modules(module.__path__):
            if not info.name.startswith("_"):
                inner = f"{module_name}.{info.name}"
                names[inner] = public_names(importlib.import_module(inner))
    return {key: [f"{key}.{name}" for name in found] for key, found in names.items() if found}


def first_sentence(thing: Any) -> str:
    """Return the first paragraph of a docstring; nothing for data, which only has the docstring of its type."""
    if not (callable(thing) or inspect.ismodule(thing)):
        return ""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def group_of(path: str, page: str) -> str:
    """Return the subpackage or module that defines ``path``, seen from the module of its page."""
    home = getattr(resolve(path), "__module__", page) or page
    if not home.startswith(page + "."):
        return ""
    inner = home[len(page) + 1 :].split(".")[0]
    is_package = hasattr(importlib.import_module(f"{page}.{inner}"), "__path__")
    return inner if is_package else ""


def directive(path: str) -> str:
    thing = resolve(path)
    if inspect.isclass(thing):
        return f".. autoclass:: {path}\n"
    if callable(thing):
        return f".. autofunction:: {path}\n"
    return f".. autodata:: {path}\n"


def table(paths: list[str]) -> str:
    rows = [f"   * - :py:obj:`{p.rpartition('.')[2]} <{p}>`\n     - {first_sentence(resolve(p))}\n" for p in paths]
    return ".. list-table::\n   :widths: 30 70\n   :class: names\n\n" + "".join(rows) + "\n"


def page_text(module_name: str, title: str) -> str:
    """Return the reference page of a module as reStructuredText."""
    parts = [f"{title}\n{'=' * len(title)}\n\n", f".. automodule:: {module_name}\n   :no-members:\n\n"]
    groups: dict[str, list[str]] = {}
    for home, paths in documented(module_name).items():
        for path in paths:
            key = group_of(path, module_name) if home == module_name else home.rpartition(".")[2]
            groups.setdefault(key, []).append(path)
    small = [key for key, paths in groups.items() if key and len(paths) < 2 and "" in groups]
    for key in small:
        groups[""] += groups.pop(key)
    front = set(kernelfield.__all__)
    for key in sorted(groups, key=lambda key: (key == "", key)):
        groups[key].sort(key=lambda path: path.rpartition(".")[2] not in front)  # names of the package itself first
        if len(groups) > 1:
            heading = key.replace("_", " ").capitalize() or f"Other {title.lower()}"
            parts.append(f"{heading}\n{'-' * len(heading)}\n\n")
        parts.append(table(groups[key]))
        parts += [directive(path) + "\n" for path in groups[key]]
    return "".join(parts)


def write_pages(folder: Path) -> None:
    """Write the reference pages into ``folder``; leave unchanged ones alone."""
    import catalogues  # noqa: PLC0415  needs the extra "train"

    folder.mkdir(exist_ok=True)
    pages = {name.partition(".")[2]: page_text(name, title) for name, title in MODULES.items()}
    rows = "\n".join(
        f"   * - :doc:`{title} <{name.partition('.')[2]}>`\n     - {first_sentence(importlib.import_module(name))}"
        for name, title in MODULES.items()
    )
    lists = ", ".join(f":doc:`{title.lower()} <{name}>`" for name, (title, _) in catalogues.PAGES.items())
    pages |= {name: text() for name, (_, text) in catalogues.PAGES.items()}
    pages["index"] = INDEX.format(rows=rows, lists=lists, entries="\n".join(f"   {name}" for name in pages))
    for name, text in pages.items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.glob("*.rst"):
        if file.stem not in pages:
            file.unlink()


def escape_shapes(lines: list[str]) -> None:
    """Escape ``*space``, ``|H|`` and ``val_`` in the prose of a docstring, which would be read as markup."""
    in_math = False
    for i, line in enumerate(lines):
        if line.startswith(".. math::"):
            in_math = True
        elif line and not line.startswith(" "):
            in_math = False
        if in_math or line.lstrip().startswith((">>>", "...")):
            continue
        spans = line.split("`")  # every second one is code or a role
        for k in range(0, len(spans), 2):
            spans[k] = re.sub(r"(?<![\\*\w])\*(?=[a-z]+[,)])", r"\\*", spans[k])
            spans[k] = re.sub(r"(?<!\\)\|(\w+)\|", r"\\|\1\\|", spans[k])
            spans[k] = re.sub(r"(?<=\w)_(?=[\s.,;:)\"]|$)", r"\\_", spans[k])
        lines[i] = "`".join(spans)


def short_defaults(signature: str | None) -> str | None:
    """Name classes and functions among the defaults of a signature: ``MAGNet``, not ``<class '….MAGNet'>``.

    Sphinx could read them from the source, but not those of arguments that are passed on to another function.
    """
    if signature is None:
        return None
    return re.sub(r"<(?:class '|function )(?:[\w.]*\.)?(\w+)'?(?: at 0x[0-9a-f]+)?>", r"\1", signature)


def dash_after_names(_app: Any, document: nodes.document) -> None:
    """Set a dash between an argument and its description, where Sphinx writes two hyphens."""
    from docutils.nodes import Text  # noqa: PLC0415  needs the extra "docs"

    for text in list(document.findall(Text)):
        if text == " -- ":
            text.parent.replace(text, Text(" – "))


def skip_member(_app: Any, _what: str, name: str, *_: Any) -> bool | None:
    """Leave out the methods that scikit-learn adds to every estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", lambda *arguments: escape_shapes(arguments[-1]))
    app.connect("autodoc-process-signature", lambda *arguments: (short_defaults(arguments[-2]), arguments[-1]))
    app.connect("autodoc-skip-member", skip_member)
    app.connect("doctree-read", dash_after_names)
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "api"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

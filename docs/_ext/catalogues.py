"""Reference pages that list what can be named: commands, registered networks, data sets and recipes."""

from __future__ import annotations

import re

import typer.main

from kernelfield.cli import app
from kernelfield.data import describe, list_data
from kernelfield.experiments import find_recipe, list_recipes
from kernelfield.models import describe_weight, list_models
from kernelfield.models.registry import configuration

#: the commands that the page lists first
FIRST = ("train", "predict", "test", "inspect", "export", "new-recipe", "list")


def plain(text: object) -> str:
    """Return text with the characters escaped that reStructuredText would read as markup."""
    return re.sub(r"([*`|_\\])", r"\\\1", " ".join(str(text).split()))


def heading(title: str, line: str = "=") -> str:
    return f"{title}\n{line * len(title)}\n\n"


def table(columns: list[str], rows: list[list[str]], widths: str) -> str:
    """Return a table; cells are reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", "   :class: names", ""]
    for row in [columns, *rows]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    return "\n".join(lines) + "\n\n"


def command_line() -> str:
    text = heading("Command line") + "``kernelfield COMMAND --help`` prints the same.\n\n"
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    rest = [name for name in commands if name not in FIRST]
    for name, command in ((name, commands[name]) for name in (*FIRST, *rest)):
        text += heading(f"kernelfield {name}", "-") + plain(command.help or "") + "\n\n"
        rows = []
        for option in command.params:
            if option.name == "help":
                continue
            default = option.default
            shown = "" if default in (None, "", False, ()) or callable(default) else f"``{default}``"
            label = ", ".join(option.opts) if option.opts[0].startswith("-") else option.opts[0].upper()
            rows.append([f"``{label}``", plain(getattr(option, "help", None) or ""), shown])
        text += table(["option", "meaning", "default"], rows, "22 60 18") if rows else ""
    return text


def networks() -> str:
    rows = [[f"``{name}``", plain(configuration(name).summary)] for name in list_models()]
    text = heading("Registered networks") + "Build one with ``kf.create_model(name, **overrides)``.\n\n"
    return text + table(["name", "network"], rows, "30 70")


def weights() -> str:
    text = heading("Pretrained weights")
    text += "Load one with ``kf.create_model(name, pretrained=True)``; see :doc:`/guides/pretrained`.\n\n"
    rows = []
    for name in list_models(pretrained=True):
        about = describe_weight(name)
        score, training = about["score"], about["training"]
        made = f"seed {training['seed']}, {training['epochs']} epochs, {training['device']}"
        title = about.get("title") or about["recipe"]["name"]
        rows.append([f"``{name}``", plain(title), f"{plain(score['metric'])} {score['value']:.4g}", plain(made)])
    return text + table(["name", "task", "test score", "training"], rows, "28 36 16 20")


def data_sets() -> str:
    text = heading("Data sets")
    text += "Load one with ``kernelfield.data.load(name, **options)``, or name it in a recipe.\n\n"
    rows = []
    for name in list_data():
        about = describe(name)
        needs = "download" if about.download else plain(about.root)
        rows.append([f"``{name}``", plain(about.summary), needs, plain(about.licence)])
    return text + table(["name", "content", "needs", "licence"], rows, "20 42 18 20")


def recipes() -> str:
    text = heading("Recipes") + "Run one with ``kernelfield train NAME`` or ``kernelfield reproduce NAME``.\n\n"
    found: dict[str, list[list[str]]] = {}
    for name in list_recipes():
        recipe = find_recipe(name)
        published = ", ".join(f"{plain(metric)} {value}" for metric, value in recipe.published.items())
        chapter = f"Chapter {recipe.chapter}" if recipe.chapter else "Start"
        found.setdefault(chapter, []).append([f"``{name}``", plain(recipe.title), published])
    for chapter in sorted(found, key=lambda title: int(title.split()[-1]) if title[-1].isdigit() else 0):
        text += heading(chapter, "-") + table(["recipe", "experiment", "published"], found[chapter], "34 44 22")
    return text


#: Title and text of each page, by file name.
PAGES = {
    "command-line": ("Command line", command_line),
    "networks": ("Registered networks", networks),
    "weights": ("Pretrained weights", weights),
    "data-sets": ("Data sets", data_sets),
    "recipes": ("Recipes", recipes),
}

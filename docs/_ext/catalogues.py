"""Reference pages of what can be named: commands, networks, data sets, recipes, and the settings of a recipe."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import typer.main

from kernelfield._arguments import argument_texts
from kernelfield.cli import app
from kernelfield.data import describe, list_data
from kernelfield.experiments import Recipe, find_recipe, list_recipes
from kernelfield.experiments.recipe import GENERAL
from kernelfield.experiments.regularizers import PARTS, REGULARIZERS
from kernelfield.experiments.run_files import to_json
from kernelfield.experiments.settings import Optimizer, Schedule, Training
from kernelfield.models import describe_weight, list_models
from kernelfield.models.registry import configuration

if TYPE_CHECKING:
    from collections.abc import Callable

#: the commands that the page lists first
FIRST = ("train", "predict", "test", "inspect", "export", "new-recipe", "list")


def plain(text: object) -> str:
    """Return text as reStructuredText: options of a command as code, characters of its markup escaped."""
    parts = re.split(r"(?<![\w-])(--[a-z][a-z-]*)", " ".join(str(text).split()))
    shown = [f"``{part}``" if i % 2 else re.sub(r"([*`|_\\])", r"\\\1", part) for i, part in enumerate(parts)]
    return "".join(shown)


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


def settings() -> str:
    text = heading("Settings of a recipe")
    text += (
        "Set one with ``--set SECTION.NAME=VALUE``, or in a recipe file; see :doc:`/guides/training`. ``kernelfield "
        "new-recipe mine.yaml --from DATA`` writes a file with all of them. A setting that would have no effect is an "
        "error.\n\n"
    )
    outer = {name: about for name, about in argument_texts(Recipe).items() if name not in (*SECTIONS, *OTHERS, "given")}
    text += heading("Outside of sections", "-") + table(
        ["setting", "meaning"], [[f"``{name}``", plain(about)] for name, about in outer.items()], "24 76"
    )
    text += heading("data", "-") + "The name and options of a data set (:doc:`data-sets`), and for every data set:\n\n"
    text += table(["setting", "meaning"], [[f"``data.{key}``", plain(text)] for key, text in GENERAL.items()], "24 76")
    text += heading("model", "-")
    text += (
        "The name of a network (:doc:`networks`) and its arguments; ``kernelfield list models NAME`` shows them.\n\n"
    )
    for section, kind in SECTIONS.items():
        text += heading(section, "-")
        defaults, rows = vars(kind()), []
        for name, about in argument_texts(kind).items():
            shown = "" if defaults[name] in (None, "") else to_json(defaults[name]).strip('"')
            rows.append([f"``{section}.{name}``", plain(about), f"``{shown}``" if shown else ""])
        text += table(["setting", "meaning", "default"], rows, "26 56 18")
    text += heading("regularizers", "-")
    text += "The weight of each penalty, or ``{weight: …}`` with further arguments.\n\n"
    rows = [
        [f"``regularizers.{name}``", plain(PARTS[name]) + reference(penalty), code_list(arguments_of(penalty))]
        for name, penalty in REGULARIZERS.items()
    ]
    return text + table(["penalty", "acts on", "further arguments"], rows, "28 44 28")


def reference(penalty: Callable[..., Any]) -> str:
    """Return a link to the reference of a public penalty; "" for others."""
    name = penalty.__name__
    return "" if name.startswith("_") else f"; see :py:func:`~kernelfield.layers.{name}`"


def code_list(names: list[str]) -> str:
    return ", ".join(f"``{name}``" for name in names)


def arguments_of(penalty: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a penalty besides the network."""
    return list(inspect.signature(penalty).parameters)[1:]


#: the sections of a recipe that are classes of settings
SECTIONS = {"optimizer": Optimizer, "schedule": Schedule, "training": Training}
#: the other sections
OTHERS = ("data", "model", "regularizers")

#: Title and text of each page, by file name.
PAGES = {
    "command-line": ("Command line", command_line),
    "networks": ("Registered networks", networks),
    "weights": ("Pretrained weights", weights),
    "data-sets": ("Data sets", data_sets),
    "recipes": ("Recipes", recipes),
    "settings": ("Settings of a recipe", settings),
}

"""Commands that list names and write recipes: list and new-recipe."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import Annotated, Any

import typer

from .._arguments import argument_texts
from .._checks import check_choice, closest
from .app import Json, Settings, app
from .common import errors, is_data, print_json, recipe_of

__all__ = ["details", "new_recipe", "summaries"]


def summaries(what: str, pattern: str = "*") -> dict[str, str]:
    """Return one line for each "models", "weights", "recipes" or "data" whose name matches, by name.

    >>> summaries("recipes", "digits")
    {'digits': 'Bundled digits read as a sequence, a small CCNN'}
    >>> summaries("weights", "*.digits")
    {'ccnn_4_140.digits': 'Bundled digits read as a sequence, a small CCNN: accuracy 0.9833'}
    """
    if check_choice("what", what, ("models", "weights", "recipes", "data")) == "models":
        from ..models.registry import configuration, list_models  # noqa: PLC0415

        return {name: configuration(name).summary for name in list_models(pattern)}
    if what == "weights":
        from ..models.pretrained import describe_weight, list_weights  # noqa: PLC0415

        return {name: _weight_line(describe_weight(name)) for name in list_weights(pattern)}
    if what == "data":
        from ..data.registry import describe, list_data  # noqa: PLC0415

        return {name: describe(name).summary for name in list_data(pattern)}
    from ..experiments.recipe import recipe_titles  # noqa: PLC0415

    return recipe_titles(pattern)


def _weight_line(description: dict[str, Any]) -> str:
    score, title = description["score"], description.get("title") or description["recipe"].get("name", "")
    return f"{title}: {score['metric']} {score['value']:.4g}"


def details(what: str, name: str) -> dict[str, Any]:
    """Return the summary of a network, a weight, a data set or a recipe, and its arguments with their defaults.

    >>> details("data", "chirps")["options"]["length"]["default"]
    256
    >>> details("models", "p4cnn")["options"]["channels"]["default"]
    10
    """
    if what == "weights":
        from ..models.pretrained import describe_weight  # noqa: PLC0415

        return describe_weight(name)
    if what == "recipes":
        from ..experiments.recipe import find_recipe  # noqa: PLC0415

        return find_recipe(name).to_dict()
    if what == "data":
        from ..data.registry import describe  # noqa: PLC0415

        known = describe(name)
        keys = ("summary", "source", "licence", "split", "normalisation", "root")
        found: dict[str, Any] = {key: text for key in keys if (text := getattr(known, key))}
        found |= {"download": known.download, "shape": known.shape and dataclasses.asdict(known.shape)}
        options, texts = known.options, known.explanations
    else:
        from ..models.registry import configuration, options_of  # noqa: PLC0415

        chosen = configuration(name)
        found = {"summary": chosen.summary, "class": chosen.build.__name__}
        options, texts = options_of(name), argument_texts(chosen.build)
    rows = {key: {"default": _plain(value), "about": texts.get(key, "")} for key, value in options.items()}
    return {**found, "options": rows}


def _plain(value: Any) -> Any:
    """Return a default in a form that JSON can hold: "required" for a required argument, the name of a class."""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return getattr(value, "__name__", None) or repr(value)


def _lines(name: str, shown: dict[str, Any]) -> list[str]:
    """Return the lines that describe one name."""
    options = shown.pop("options", None)
    lines = [name]
    if options is None:  # a recipe or a weight
        from ..experiments.recipe_files import write_yaml  # noqa: PLC0415

        return write_yaml(shown).splitlines()
    for key, value in shown.items():
        if value is not None:
            lines += textwrap.wrap(f"{key}: {value}", 110, initial_indent="  ", subsequent_indent="    ")
    lines.append("  options:" if options else "  no options")
    for option, row in options.items():
        default = "required" if row["default"] == "required" else f"default {row['default']!r}"
        text = f"{option} ({default})" + (f": {row['about']}" if row["about"] else "")
        lines += textwrap.wrap(text, 110, initial_indent="    ", subsequent_indent="      ")
    return lines


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="models, weights, recipes or data.")] = "recipes",
    pattern: Annotated[
        str, typer.Argument(metavar="[NAME|PATTERN]", help="One name, or names such as 'ch03-*'.")
    ] = "*",
    as_json: Json = False,
) -> None:
    """List networks, pretrained weights, recipes or data. With one name, show its details."""
    with errors():
        found = summaries(what, pattern)
        if list(found) == [pattern]:
            shown = details(what, pattern)
            if as_json:
                print_json(shown)
            else:
                typer.echo("\n".join(_lines(pattern, shown)))
            return
        if not found:
            hint = closest(pattern, summaries(what))
            raise ValueError(f"no {what} match {pattern!r}{hint}; kernelfield list {what} shows all")
        if as_json:
            print_json(found)
            return
        width = max((len(name) for name in found), default=0)
        for name, title in found.items():
            typer.echo(f"{name:<{width}}  {title}")


@app.command("new-recipe")
def new_recipe(
    file: Annotated[Path, typer.Argument(help="File to write, such as mine.yaml.")],
    data: Annotated[
        str,
        typer.Option(
            "--from",
            help="Your own data: a folder of images, sounds or point clouds, or a .csv, .parquet, .tsv, .ts, .arff, "
            ".npz or .txt file.",
        ),
    ] = "",
    recipe: Annotated[str, typer.Option(help="Recipe to copy if --from is not given.")] = "digits",
    model: Annotated[str, typer.Option(help="Network; see list models.")] = "",
    settings: Settings = None,
) -> None:
    """Write a recipe for your own data, or a copy of another recipe, to edit."""
    with errors():
        if file.suffix not in (".yaml", ".yml"):
            raise ValueError(f"file must end in .yaml or .yml, got {file}")
        if not file.parent.is_dir():
            raise FileNotFoundError(f"file must lie in an existing folder, got {file}")
        if file.exists():
            raise ValueError(f"file must be a new file, got {file}, which exists")
        if data and not is_data(data):
            raise FileNotFoundError(f"--from must be an existing file or folder of data, got {data}")
        chosen = recipe_of(data or recipe, model, settings or [])
        from .._files import write_text  # noqa: PLC0415
        from ..experiments.effects import check_effects, effective  # noqa: PLC0415
        from ..experiments.recipe import recipe_from  # noqa: PLC0415
        from ..experiments.run import make_network  # noqa: PLC0415

        # All settings in the file will count as given, so it must not hold any without effect.
        network = make_network(chosen)
        check_effects(chosen, network)
        mapping = {**effective(chosen, network).to_dict(), "name": file.stem}

        write_text(file, recipe_from(mapping).to_yaml())
        typer.echo(f"wrote {file}; to train it: kernelfield train {file}")

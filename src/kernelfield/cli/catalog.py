"""Commands on names: list and new-recipe."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import Annotated

import typer

from .._checks import check_choice
from .app import Json, Settings, app
from .common import errors, is_data, print_json, recipe_of

__all__ = ["new_recipe", "summaries"]


def summaries(what: str, pattern: str = "*") -> dict[str, str]:
    """Return a line about each of the "models", "recipes" or "data" whose names match, by name.

    >>> summaries("recipes", "digits")
    {'digits': 'Bundled digits read as a sequence, a small CCNN'}
    """
    if check_choice("what", what, ("models", "recipes", "data")) == "models":
        from ..models.registry import configuration, list_models  # noqa: PLC0415

        return {name: configuration(name).summary for name in list_models(pattern)}
    if what == "data":
        from ..data.registry import describe, list_data  # noqa: PLC0415

        return {name: describe(name).summary for name in list_data(pattern)}
    from ..experiments.recipe import recipe_titles  # noqa: PLC0415

    return recipe_titles(pattern)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="models, recipes or data.")] = "recipes",
    pattern: Annotated[str, typer.Argument(help="Names to list, such as 'ch03-*'.")] = "*",
    as_json: Json = False,
) -> None:
    """List networks, recipes or data by name."""
    with errors():
        found = summaries(what, pattern)
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
        str, typer.Option("--from", help="Data of your own: a folder of images or sounds, a .csv or .ts file.")
    ] = "",
    recipe: Annotated[str, typer.Option(help="Recipe to start from, if there are no data yet.")] = "digits",
    model: Annotated[str, typer.Option(help="Network; see list models.")] = "",
    settings: Settings = None,
) -> None:
    """Write a recipe to edit, for your own data or from another recipe."""
    with errors():
        if file.exists():
            raise ValueError(f"file must not exist yet, got {file}")
        if data and not is_data(data):
            raise FileNotFoundError(f"--from must be a file or folder of data, got {data}")
        chosen = recipe_of(data or recipe, model, settings or [])
        mapping = {**chosen.to_dict(), "name": file.stem}
        from ..experiments.recipe import recipe_from  # noqa: PLC0415

        file.write_text(recipe_from(mapping).to_yaml(), encoding="utf-8")
        typer.echo(f"{file}: train with kernelfield train {file}")

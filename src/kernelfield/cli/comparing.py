"""Commands that compare trainings and measure their cost: compare, sweep and card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from .._kinds import POSITIVE
from .app import Accelerator, DataFolder, Download, Json, Seeds, Settings, Synthetic, app
from .common import (
    FAILED,
    INTERRUPTED,
    absolute_path,
    check_data_folder,
    check_folder_is_read,
    errors,
    floats,
    is_run,
    print_json,
    recipe_of,
    stop,
    stop_after_step,
)

__all__ = ["card", "compare", "sweep"]


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="Page to write, with a table and curves.")] = Path("comparison.html"),
    as_json: Json = False,
) -> None:
    """Compare finished runs: their scores, the settings in which they differ, and their curves."""
    with errors():
        from ..experiments.comparison import (  # noqa: PLC0415
            check_page,
            compare_runs,
            comparison_lines,
            comparison_table,
            write_comparison_page,
        )

        check_page(out)
        found = compare_runs(list(runs))
        page = write_comparison_page(out, found)
        if as_json:
            print_json([{"run": run.name, "settings": run.settings, "result": run.result} for run in found])
            return
        typer.echo("\n".join([*comparison_lines(comparison_table(found)), f"page: {page}"]))


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file; or your own data, as for train.")],
    over: Annotated[
        list[str],
        typer.Option(
            metavar="A.B=…",
            help="Setting to vary: KEY=v1,v2,… or, for a sampler, a range KEY=low:high or KEY=low:high:log.",
        ),
    ],
    out: Annotated[Optional[Path], typer.Option(help="Folder; by default runs/sweep-RECIPE.")] = None,  # noqa: UP045
    settings: Settings = None,
    model: Annotated[str, typer.Option(help="Network for your own data; see list models.")] = "",
    sampler: Annotated[str, typer.Option(help="grid, or Optuna's tpe or random.")] = "grid",
    trials: Annotated[Optional[int], typer.Option(min=1, help="Number of trials that a sampler draws.")] = None,  # noqa: UP045
    seeds: Seeds = 1,
    at_once: Annotated[Optional[int], typer.Option(min=1, help="Number of trainings side by side.")] = None,  # noqa: UP045
    folder: DataFolder = None,
    download: Download = False,
    synthetic: Synthetic = False,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Train a recipe with many settings side by side, and rank them by validation score.

    Repeat the command to continue an interrupted sweep.
    """
    with errors():
        from ..experiments.comparison import comparison_lines, comparison_table  # noqa: PLC0415
        from ..experiments.fitting import make_fabric  # noqa: PLC0415
        from ..experiments.sweep import read_over  # noqa: PLC0415
        from ..experiments.sweep import sweep as run_sweep  # noqa: PLC0415

        check_data_folder(recipe, folder)
        chosen = recipe_of(recipe, model, settings or [], folder, download=download)
        fabric = make_fabric(accelerator)
        with stop_after_step(fabric) as should_stop:
            found = run_sweep(
                chosen,
                Path("runs") / f"sweep-{chosen.name}" if out is None else out,
                read_over(over),
                sampler=sampler,
                trials=trials,
                seeds=seeds,
                at_once=at_once,
                fabric=fabric,
                on_result=None if as_json else _print_result,
                folder=absolute_path(folder),
                download=download,
                synthetic=synthetic,
                should_stop=should_stop,
            )
        if any(result["status"] == "interrupted" for result in found.results):
            stop("interrupted; to continue, repeat the command", INTERRUPTED)
        failed = len(found.finished) < len(found.results)
        if as_json:
            rows = [{"settings": s, **r} for s, r in zip(found.trials, found.results, strict=True)]
            print_json(rows)
        elif found.finished:
            typer.echo("\n".join(comparison_lines(comparison_table(found.compared()))))
            typer.echo(f"page: {found.folder / 'sweep.html'}")
        if failed:
            raise typer.Exit(FAILED)


def _print_result(number: int, settings: list[str], result: dict[str, Any]) -> None:
    if result["status"] == "done":
        metric = result["metric"]
        score = (result.get("chosen", {}).get("validation") or {}).get(metric)
        text = f"validation {metric} {score:.4f}" if score is not None else "done"
    else:
        text = f"{result['status']}: {result['error']}"
    typer.echo(f"trial {number}: {' '.join(settings)}: {text}", err=True)


@app.command()
def card(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or a pretrained weight, MODEL.TAG.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the card; by default that of the run, or cards/MODEL.TAG.")
    ] = None,
    shares: Annotated[
        str, typer.Option(help="Shares of the training data on which to train too, such as 0.05,0.1,0.25,0.5.")
    ] = "",
    seconds: Annotated[float, typer.Option(help="Duration of each measurement, in seconds.")] = 2.0,
    folder: DataFolder = None,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Write an efficiency card of a run or a weight: parameters, compute, data and design, measured on this machine."""
    with errors():
        from ..experiments.card import make_card  # noqa: PLC0415
        from ..experiments.fitting import make_fabric  # noqa: PLC0415
        from ..experiments.run import Run, several_runs  # noqa: PLC0415
        from ..experiments.run_files import read_json  # noqa: PLC0415
        from ..experiments.shares import train_on_shares  # noqa: PLC0415
        from ..experiments.start_from import is_weight  # noqa: PLC0415
        from ..models.pretrained.catalog import near_weights  # noqa: PLC0415

        if folder is not None and not shares:
            raise ValueError(f"--data must be given only with --shares, which train on data, got {folder}")
        fabric = make_fabric(accelerator)
        POSITIVE.check("--seconds", seconds)  # here and not after the trainings
        if Path(run).is_dir() and not is_run(run):
            raise FileNotFoundError(
                f"RUN must be a folder with a recipe.yaml in it, or a pretrained weight, got {run}"
                f"{several_runs(Path(run))}"
            )
        if not Path(run).is_dir() and not is_weight(run):
            raise ValueError(f"RUN must be the folder of a run or a pretrained weight, got {run}{near_weights(run)}")
        if out is not None:
            if out.exists() and not out.is_dir():
                raise ValueError(f"--out must be a folder, new or existing, got the file {out}")
            out.mkdir(parents=True, exist_ok=True)
        if shares:
            if not Path(run).is_dir():
                raise ValueError(
                    f"--shares must be given only for a run, got {shares!r} for {run}, a weight; train its recipe first"
                )
            check_folder_is_read(Run(Path(run)).recipe(), folder)
            train_on_shares(
                run, floats("shares", shares), folder=absolute_path(folder), fabric=fabric, on_result=_print_share
            )
        page = make_card(run, out=out, seconds=seconds, device=fabric.device.type)
        if as_json:
            print_json(read_json(page.with_name("card.json")))
            return
        typer.echo(page.read_text(encoding="utf-8"))
        typer.echo(f"card: {page}")


def _print_share(share: float, result: dict[str, Any]) -> None:
    metric = result["metric"]
    typer.echo(
        f"{100 * share:g} % of the training data: test {metric} {result['metrics']['test'][metric]:.4f}", err=True
    )

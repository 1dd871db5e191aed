"""Commands that train: train, demo, reproduce and bench."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from .._arguments import declared_kinds
from .app import Accelerator, Context, DataFolder, Download, Json, Log, Out, Seeds, Settings, Synthetic, app
from .common import (
    FAILED,
    INTERRUPTED,
    WRONG,
    absolute_path,
    all_settings,
    check_data_folder,
    errors,
    ints,
    is_run,
    print_json,
    print_result,
    print_sizes,
    recipe_and_data,
    start_of,
    stop,
    stop_after_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning.fabric import Fabric

__all__ = ["bench", "demo", "reproduce", "train"]


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe's name or file; or your own data: a folder of images, sounds or point clouds, or a .csv, "
            ".parquet, .tsv, .ts, .arff, .npz or .txt file."
        ),
    ] = "digits",
    out: Out = None,
    settings: Settings = None,
    epochs: Annotated[Optional[int], typer.Option(min=1, help="Short for --set training.epochs=…")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="Short for --set training.seed=…")] = None,  # noqa: UP045
    seeds: Seeds = 1,
    model: Annotated[str, typer.Option(help="Network for your own data; see list models.")] = "",
    start_from: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Weights to start from: the folder of a run, or a pretrained weight such as flextcn_2.smnist "
            "(see list weights). For other classes the classifier is reinitialised."
        ),
    ] = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="With --start-from: train only the classifier. Sets training.freeze.")
    ] = False,
    augment: Annotated[bool, typer.Option("--augment", help="Short for --set data.augment=true")] = False,
    folder: DataFolder = None,
    download: Download = False,
    synthetic: Synthetic = False,
    accelerator: Accelerator = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Number of devices, or of CPU processes, per machine.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines.")] = 1,
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    context: Context = 1,
    restarts: Annotated[int, typer.Option(min=0, help="Largest number of restarts after a process dies.")] = 0,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Train a network with a recipe, on your own data, or, by default, on bundled digits read as a sequence.

    To continue an interrupted run from its last checkpoint, repeat the command with --out and the folder of the run. To
    continue a finished run, give its folder instead of a recipe, and more --epochs than it has.
    """
    with errors():
        from functools import partial  # noqa: PLC0415

        from ..experiments.fitting import fit, make_fabric  # noqa: PLC0415
        from ..experiments.processes import is_launched, launch, launched_sizes, remaining_context  # noqa: PLC0415
        from ..experiments.progress import progress_bar  # noqa: PLC0415
        from ..experiments.run import fresh_folder  # noqa: PLC0415
        from ..experiments.seeds import fit_seeds  # noqa: PLC0415

        check_data_folder(recipe, folder)
        short = {"training.epochs": epochs, "training.seed": seed}
        short |= {"data.augment": augment or None, "training.freeze": freeze or None}
        changes = all_settings(settings, short)
        continued = is_run(recipe)
        if continued:
            recipe, out, folder = _continued(recipe, out, folder, changes)
        chosen, data = recipe_and_data(recipe, model, changes, start_of(start_from), folder, download=download)
        if devices > 1 and nodes == 1 and not is_launched():
            for option, value in (
                ("accelerator", accelerator),
                ("strategy", strategy),
            ):  # or each process would print it
                declared_kinds(make_fabric)[option].check(option, value, {})
            # Restarts must use the same folder.
            given = [] if out is not None else ["--out", str(fresh_folder(Path("runs") / chosen.name))]
            raise typer.Exit(launch([*sys.argv[1:], *given], devices, restarts))
        fabric = make_fabric(accelerator, devices, nodes, strategy)
        if launched_sizes() is not None:
            context = remaining_context(context, fabric.world_size)
        train_recipe = fit if seeds == 1 else partial(fit_seeds, seeds=seeds)
        target = fresh_folder(Path("runs") / chosen.name) if out is None else out
        bar = nullcontext() if as_json else progress_bar(chosen.name)
        again = "" if continued else f" with --out {target}"
        with _stopping(fabric, f"to continue, repeat the command{again}") as should_stop, bar as on_progress:
            run = train_recipe(
                chosen,
                target,
                data=None if synthetic else data,
                folder=absolute_path(folder),
                download=download,
                synthetic=synthetic,
                fabric=fabric,
                context=context,
                log=log or (),
                on_data=print_sizes(quiet=as_json),
                on_message=None if as_json else lambda line: typer.echo(line, err=True),
                on_progress=on_progress,
                should_stop=should_stop,
            )
        if fabric.global_rank == 0:
            print_result(run, as_json)


@contextmanager
def _stopping(fabric: Fabric, advice: str) -> Iterator[Callable[[], bool] | None]:
    """Yield a callback for ``should_stop``; if it stops the training, exit with a line that ends in ``advice``."""
    from ..experiments.loop import TrainingInterrupted  # noqa: PLC0415

    try:
        with stop_after_step(fabric) as should_stop:
            yield should_stop
    except TrainingInterrupted as error:
        stop(f"{error}; {advice}", INTERRUPTED)


def _continued(name: str, out: Path | None, folder: Path | None, changes: list[str]) -> tuple[str, Path, Path | None]:
    """Return the recipe file, the run folder and the data folder with which to continue a run."""
    from ..experiments.datasets import reads_files  # noqa: PLC0415
    from ..experiments.run import Run  # noqa: PLC0415

    if out is not None:
        raise ValueError(f"--out must not be given to continue a run in its own folder, got {out} with {name}")
    run = Run(Path(name))
    if run.finished:
        trained = run.recipe().training.epochs
        more = [c.partition("=")[2] for c in changes if c.startswith("training.epochs=")]
        if not more or not more[-1].isdecimal() or int(more[-1]) <= trained:
            got = more[-1] if more else "none"
            raise ValueError(f"--epochs must be above the {trained} epochs of {name} to continue it, got {got}")
        recorded = run.result().get("data_folder")
        folder = folder or (Path(recorded) if recorded is not None and reads_files(run.recipe().data) else None)
    return str(Path(name) / "recipe.yaml"), Path(name), folder


@app.command()
def demo(
    out: Annotated[Optional[Path], typer.Option(help="Folder of the run; by default runs/demo, if it is new.")] = None,  # noqa: UP045
    epochs: Annotated[Optional[int], typer.Option(min=1, help="Passes over the training digits.")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="Seed of the training.")] = None,  # noqa: UP045
) -> None:
    """Train on the bundled digits and test at half the resolution, on the CPU."""
    from ..experiments.run import fresh_folder  # noqa: PLC0415

    folder = fresh_folder(Path("runs") / "demo") if out is None else out
    if (folder / "result.json").exists():
        stop(f"{folder} holds a finished run; choose another folder with --out", WRONG)
    train("digits", out=folder, epochs=epochs, seed=seed, accelerator="cpu")


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="CHAPTER|ROW", help="Number of a chapter, name of a recipe, or a pattern.")
    ],
    results: Annotated[Path, typer.Option(help="Folder for one JSON file per row.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    settings: Settings = None,
    note: Annotated[str, typer.Option(help="Remark to write to the result.")] = "",
    folder: DataFolder = None,
    download: Download = False,
    synthetic: Synthetic = False,
    folds: Annotated[
        str,
        typer.Option(
            help="Values of data.fold for a cross-validation, or of data.image for photographs, such as 0,1,2."
        ),
    ] = "",
    seeds: Seeds = 1,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Train rows of the published tables; print the published number, ours and the difference.

    Each result or failure goes to a JSON file. A failure never replaces a finished result, and a new finished result
    moves the old one to former/. With --synthetic, everything goes to results/synthetic and runs/synthetic.
    """
    with errors():
        from ..experiments.fitting import make_fabric  # noqa: PLC0415
        from ..experiments.progress import progress_bar  # noqa: PLC0415
        from ..experiments.recipe import find_recipe, with_settings  # noqa: PLC0415
        from ..experiments.reproduce import recipes_of  # noqa: PLC0415
        from ..experiments.reproduce import reproduce as run_row  # noqa: PLC0415
        from ..experiments.results import result_lines  # noqa: PLC0415

        options: dict[str, Any] = {"settings": settings, "note": note, "seeds": seeds, "folds": ints("folds", folds)}
        data: dict[str, Any] = {"folder": absolute_path(folder), "download": download, "synthetic": synthetic}
        fabric = make_fabric(accelerator)
        names, failed = recipes_of(what), 0
        for name in names:
            with_settings(
                find_recipe(name), settings or []
            )  # raises before the first training instead of between two of them
        with stop_after_step(fabric) as should_stop:
            for name in names:
                with nullcontext() if as_json else progress_bar(name) as on_progress:
                    how: dict[str, Any] = {"fabric": fabric, "on_progress": on_progress, "should_stop": should_stop}
                    result = run_row(name, results, runs, **how, **data, **options)
                if result["status"] == "interrupted":
                    stop(f"{result['error']}; to continue, repeat the command", INTERRUPTED)
                failed += result["status"] != "done"
                if as_json:
                    print_json(result)
                    continue
                typer.echo("\n".join([name, *(f"  {line}" for line in result_lines(result))]))
        if failed:
            raise typer.Exit(FAILED)


@app.command()
def bench(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file.")] = "digits",
    seconds: Annotated[float, typer.Option(help="Duration of the measurement, in seconds.")] = 5.0,
    settings: Settings = None,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Measure the training speed of a recipe on this machine, with synthetic data of its shape."""
    with errors():
        from ..experiments.bench import bench_step  # noqa: PLC0415
        from ..experiments.fitting import make_fabric  # noqa: PLC0415

        found = bench_step(recipe, seconds=seconds, settings=settings, fabric=make_fabric(accelerator))
        if as_json:
            print_json(found)
            return
        points = f" of {found['points']:,} points" if "points" in found else ""
        typer.echo(
            f"{found['recipe']}: {found['milliseconds']} ms per step of {found['batch']} samples{points}, "
            f"{found['samples_per_second']:,} samples per second on {found['machine']['device']}"
        )

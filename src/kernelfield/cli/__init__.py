"""The command line: thin, everything it does is a function of the package.

Exit codes: 0 done, 1 failed, 2 asked for something that cannot be, 3 data are missing, 4 training diverged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from .._version import __version__
from .common import (
    DIVERGED,
    FAILED,
    NO_DATA,
    WRONG,
    errors,
    ints,
    is_data,
    print_json,
    print_result,
    recipe_of,
    short_settings,
    short_value,
    stop,
    whole,
)

__all__ = ["DIVERGED", "FAILED", "NO_DATA", "WRONG", "app"]

app = typer.Typer(help="Networks whose kernels are continuous fields.", no_args_is_help=True, add_completion=False)

Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="A.B=C", help="Replace a value of the recipe; may be given several times."),
]
Folder = Annotated[Optional[Path], typer.Option("--data", help="Folder or file of the data.")]  # noqa: UP045
Download = Annotated[bool, typer.Option("--download", help="Fetch missing files into that folder, with checksums.")]
Out = Annotated[Optional[Path], typer.Option(help="Folder of the run; a fresh one under runs/ if not given.")]  # noqa: UP045
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds to train side by side; the result is their mean.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernelfield {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe's name or file; or your own data: a folder of images or sounds, a .csv or .ts file."
        ),
    ] = "digits",
    out: Out = None,
    settings: Settings = None,
    epochs: Annotated[Optional[int], typer.Option(min=1, help="Short for --set training.epochs=…")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="Short for --set training.seed=…")] = None,  # noqa: UP045
    seeds: Seeds = 1,
    model: Annotated[str, typer.Option(help="Network for data of your own; see list models.")] = "",
    folder: Folder = None,
    download: Download = False,
    made: Annotated[bool, typer.Option("--made", help="Train on made data of the right shape.")] = False,
    accelerator: Accelerator = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Devices, or CPU processes, per machine.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train a network: by a recipe, on your own data, or (nothing named) on bundled digits read as a sequence.

    A run that was interrupted goes on from its last checkpoint when its folder is named with --out.
    """
    with errors():
        from functools import partial  # noqa: PLC0415

        from ..experiments.fitting import fit, make_fabric  # noqa: PLC0415
        from ..experiments.progress import progress_bar  # noqa: PLC0415
        from ..experiments.seeds import fit_seeds  # noqa: PLC0415

        if folder is not None and is_data(recipe):
            raise ValueError(f"--data must be left out where data are what is trained on, got it beside {recipe}")
        chosen = recipe_of(recipe, model, [*(settings or []), *short_settings(epochs, seed)])
        fabric = make_fabric(accelerator, devices, nodes, strategy)
        train_recipe = fit if seeds == 1 else partial(fit_seeds, seeds=seeds)
        with progress_bar(chosen.name, quiet=as_json) as on_progress:
            run = train_recipe(
                chosen,
                out,
                folder=whole(folder),
                download=download,
                made=made,
                fabric=fabric,
                on_progress=on_progress,
            )
        if fabric.global_rank == 0:
            print_result(run, as_json)


@app.command()
def demo(
    out: Out = None,
    epochs: Annotated[Optional[int], typer.Option(min=1, help="Passes over the training digits.")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(help="Seed of weights and order.")] = None,  # noqa: UP045
) -> None:
    """Train on the bundled digits and test at half resolution: train without a recipe, in a folder named demo."""
    from ..experiments.run import fresh_folder  # noqa: PLC0415

    folder = fresh_folder(Path("runs") / "demo") if out is None else out
    if (folder / "result.json").exists():
        stop(f"{folder} holds a finished result; name another folder with --out", WRONG)
    train("digits", out=folder, epochs=epochs, seed=seed, accelerator="cpu")


@app.command("test")
def _test(
    run: RunFolder,
    step: Annotated[Optional[list[float]], typer.Option(help="Sampling step, in training steps.")] = None,  # noqa: UP045
    drop: Annotated[Optional[list[float]], typer.Option(help="Share of samples missing.")] = None,  # noqa: UP045
    turn: Annotated[Optional[list[float]], typer.Option(help="Degrees to turn images by.")] = None,  # noqa: UP045
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Test a trained network, as trained or at another resolution, with missing samples, on turned images."""
    with errors():
        from ..experiments.inspect import run_test  # noqa: PLC0415

        wanted = {kind: values for kind, values in (("step", step), ("drop", drop), ("turn", turn)) if values}
        found = run_test(run, wanted, folder=whole(folder))
        if as_json:
            print_json(found)
        for name, metrics in found.items() if not as_json else ():
            typer.echo(f"{name:<24} " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items()))


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(metavar="CHAPTER|ROW", help="A chapter's number, a recipe, or a pattern.")],
    results: Annotated[Path, typer.Option(help="Folder for one JSON file per row.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of runs.")] = Path("runs"),
    settings: Settings = None,
    note: Annotated[str, typer.Option(help="What to say of the run beside its result.")] = "",
    folder: Folder = None,
    download: Download = False,
    made: Annotated[
        bool, typer.Option("--made", help="Train on made data, to try the command; apart, in results/made.")
    ] = False,
    folds: Annotated[str, typer.Option(help="Values of data.fold for a cross-validation, such as 0,1,2,3,4.")] = "",
    seeds: Seeds = 1,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Run rows of the thesis's tables and write what came out, published and ours, the failures too.

    A finished result is never lost: a failure does not replace it, and another finished one puts it in former/.
    """
    with errors():
        from ..experiments.fitting import make_fabric  # noqa: PLC0415
        from ..experiments.progress import progress_bar, summary  # noqa: PLC0415
        from ..experiments.reproduce import recipes_of  # noqa: PLC0415
        from ..experiments.reproduce import reproduce as run_row  # noqa: PLC0415

        chosen = ints("folds", folds)
        fabric = make_fabric(accelerator)
        failed = 0
        for name in recipes_of(what):
            with progress_bar(name, quiet=as_json) as on_progress:
                result = run_row(
                    name,
                    results,
                    runs,
                    settings=settings,
                    note=note,
                    folder=whole(folder),
                    download=download,
                    made=made,
                    folds=chosen,
                    seeds=seeds,
                    fabric=fabric,
                    on_progress=on_progress,
                )
            failed += result["status"] != "done"
            if as_json:
                print_json(result)
                continue
            lines = summary(result) if result["status"] == "done" else [f"failed: {result['error']}"]
            if "kept" in result:
                lines.append(f"{result['kept']} stays: it holds a finished result")
            if "former" in result:
                lines.append(f"the result that was there before is now {result['former']}")
            published = ", ".join(f"{k} {v}" for k, v in result["published"].items())
            typer.echo("\n".join([name, *(f"  {line}" for line in lines), f"  published {published}"]))
        if failed:
            raise typer.Exit(FAILED)


@app.command()
def inspect(run: RunFolder, as_json: Json = False) -> None:
    """Say what a run's network is and has learned, and write its report again."""
    with errors():
        from ..experiments.inspect import describe_run, rewrite_report  # noqa: PLC0415

        found = describe_run(run)
        if as_json:
            print_json(found)
            return
        typer.echo(f"{found['recipe']}: {found['model']}, {found['parameters']:,} parameters, {found['status']}")
        for layer in found["layers"]:
            typer.echo("  " + "  ".join(f"{key} {value}" for key, value in layer.items()))
        if found["status"] == "done":
            typer.echo(f"report: {rewrite_report(run)}")


@app.command()
def predict(
    run: RunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            help="Input: .npy; .npz of inputs, coords and mask; .csv (as trained on, or rows are steps, columns "
            "channels); .ts; an image or a sound."
        ),
    ],
    step: Annotated[float, typer.Option(help="Sampling step of the input, in training steps.")] = 1.0,
    raw: Annotated[bool, typer.Option("--raw", help="The input is normalised already.")] = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained network: a class and its probability, or values, a line per sample."""
    with errors():
        from ..experiments.inspect import predict_file  # noqa: PLC0415

        found = predict_file(run, file, step=step, raw=raw, folder=whole(folder))
        if as_json:
            print_json(found)
        for row in found if not as_json else ():
            typer.echo("  ".join(f"{key} {short_value(value)}" for key, value in row.items()))


@app.command()
def export(
    run: RunFolder,
    to: Annotated[str, typer.Option(help="pt2 (torch.export, any length) or onnx.")] = "pt2",
    out: Annotated[Optional[Path], typer.Option(help="File to write; network.pt2 or .onnx in the run.")] = None,  # noqa: UP045
) -> None:
    """Write a trained network for use without this package, checked against the network itself."""
    with errors():
        from ..experiments.inspect import export_run  # noqa: PLC0415

        path, error = export_run(run, to, out)
        typer.echo(f"{path}: differs from the network by at most {error:.1e}")


@app.command()
def bench(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file.")] = "digits",
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    settings: Settings = None,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Measure how fast a recipe trains here, on made data of its shape."""
    with errors():
        from ..experiments.bench import bench_step  # noqa: PLC0415
        from ..experiments.fitting import make_fabric  # noqa: PLC0415

        found = bench_step(recipe, seconds=seconds, settings=settings, fabric=make_fabric(accelerator))
        if as_json:
            print_json(found)
            return
        typer.echo(
            f"{found['recipe']}: {found['milliseconds']} ms a step of {found['batch']}, "
            f"{found['samples_per_second']:,} samples a second on {found['machine']['device']}"
        )


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="models, recipes or data.")] = "recipes",
    pattern: Annotated[str, typer.Argument(help="Names to list, such as 'ch03-*'.")] = "*",
    as_json: Json = False,
) -> None:
    """List networks, recipes or data by name."""
    with errors():
        from ..experiments.inspect import listed  # noqa: PLC0415

        found = listed(what, pattern)
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
    """Write a recipe to edit, for data of your own or after another recipe."""
    with errors():
        if file.exists():
            raise ValueError(f"file must not exist yet, got {file}")
        if data and not is_data(data):
            raise FileNotFoundError(f"--from must be a file or folder of data, got {data}")
        made = recipe_of(data or recipe, model, settings or [])
        mapping = {**made.to_dict(), "name": file.stem}
        from ..experiments.recipe import recipe_from  # noqa: PLC0415

        file.write_text(recipe_from(mapping).to_yaml(), encoding="utf-8")
        typer.echo(f"{file}: train with kernelfield train {file}")

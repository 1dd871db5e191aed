"""The command line: thin, everything it does is a function of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ._version import __version__

app = typer.Typer(help="Networks whose kernels are continuous fields.", no_args_is_help=True, add_completion=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernelfield {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Optional[Path], typer.Option(help="Folder for the result; a fresh one under runs/ if not given.")] = None,  # noqa: UP045
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of split, weights and order.")] = 0,
) -> None:
    """Train a small continuous network on handwritten digits read as a sequence, and test it at half resolution."""
    from .training.demo import run_demo  # noqa: PLC0415

    console = Console()
    folder = _fresh(Path("runs") / "demo") if out is None else out
    if (folder / "result.json").exists():
        typer.echo(f"kernelfield: {folder} holds a finished result; name another folder with --out", err=True)
        raise typer.Exit(2)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=None, loss=float("nan"))
        result = run_demo(
            folder,
            epochs=epochs,
            seed=seed,
            on_step=lambda done, total, loss: progress.update(task, completed=done, total=total, loss=loss),
        )
    console.print(f"test accuracy                          {result.accuracy:.1%}")
    console.print(f"same weights, every second sample      {result.half_accuracy:.1%}")
    console.print(f"parameters {result.parameters:,}, trained {result.epochs} epochs in {result.seconds:.0f} s")
    console.print(f"kernels: {folder / 'kernels.png'}")


def _fresh(folder: Path) -> Path:
    """Return ``folder``, or the first of folder-2, folder-3, … that does not exist."""
    candidate, n = folder, 1
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate

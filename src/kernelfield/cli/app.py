"""The application that holds all commands, and the options that several of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from .._version import __version__

__all__ = [
    "Accelerator",
    "Context",
    "DataFolder",
    "Download",
    "Json",
    "Log",
    "NewData",
    "Out",
    "RunFolder",
    "Seeds",
    "Select",
    "Settings",
    "Synthetic",
    "app",
]

app = typer.Typer(
    help="Train and use networks whose kernels are continuous functions. To try it: kernelfield train",
    no_args_is_help=True,
    add_completion=False,
)

Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Replace a value of the recipe, such as training.epochs=50; may be given several times.",
    ),
]
DataFolder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--data", help="Folder or file that holds the data of a recipe or of a named data set."),
]
NewData = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--data",
        help="New data to test on, in place of those of the run; for a named data set, the folder of its files.",
    ),
]
Download = Annotated[
    bool, typer.Option("--download", help="Download missing files into the folder of --data, with checksums.")
]
Out = Annotated[Optional[Path], typer.Option(help="Folder of the run; by default a new one under runs/.")]  # noqa: UP045
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Log = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--log", help="Log to csv, tensorboard or wandb too; may be given several times."),
]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds to train side by side; the result is their mean.")]
Synthetic = Annotated[
    bool, typer.Option("--synthetic", help="Train on synthetic data of the right shape, to try the command.")
]
Context = Annotated[
    int, typer.Option(min=1, help="Number of processes that share every sample; each holds a part of it.")
]
Select = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="Weights: best (by validation), last or average (of the last epochs); by default those of the recipe."
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernelfield {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[  # noqa: ARG001 (its callback prints it)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    imports: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--import",
            metavar="MODULE[:CLASS]",
            help="Import your own module first, with a network or registered data sets; may be given several times.",
        ),
    ] = None,
) -> None:
    from .common import errors, import_own  # noqa: PLC0415

    with errors():
        for name in imports or ():
            import_own(name)

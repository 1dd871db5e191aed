"""Commands on a trained run: test, inspect, predict and export."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import Annotated, Optional

import typer

from .app import DataFolder, Json, RunFolder, app
from .common import absolute_path, errors, print_json, short_value

__all__ = ["export", "inspect", "predict"]


@app.command("test")
def _test(
    run: RunFolder,
    step: Annotated[Optional[list[float]], typer.Option(help="Sampling step, in training steps.")] = None,  # noqa: UP045
    drop: Annotated[Optional[list[float]], typer.Option(help="Share of samples missing.")] = None,  # noqa: UP045
    turn: Annotated[Optional[list[float]], typer.Option(help="Degrees to turn images by.")] = None,  # noqa: UP045
    folder: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Test a trained network, as trained or at another resolution, with missing samples, on turned images."""
    with errors():
        from ..experiments.finished_run import run_test  # noqa: PLC0415

        wanted = {kind: values for kind, values in (("step", step), ("drop", drop), ("turn", turn)) if values}
        found = run_test(run, wanted, folder=absolute_path(folder))
        if as_json:
            print_json(found)
        for name, metrics in found.items() if not as_json else ():
            typer.echo(f"{name:<24} " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items()))


@app.command()
def inspect(run: RunFolder, as_json: Json = False) -> None:
    """Describe a run's network and what it has learned; write its report again."""
    with errors():
        from ..experiments.finished_run import describe_run, rewrite_report  # noqa: PLC0415

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
    raw: Annotated[bool, typer.Option("--raw", help="The input is already normalised.")] = False,
    folder: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained network: a class and its probability, or values, a line per sample."""
    with errors():
        from ..experiments.predict import predict_file  # noqa: PLC0415

        found = predict_file(run, file, step=step, raw=raw, folder=absolute_path(folder))
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
        from ..experiments.finished_run import export_run  # noqa: PLC0415

        path, error = export_run(run, to, out)
        typer.echo(f"{path}: differs from the network by at most {error:.1e}")

"""Commands for a trained run: test, inspect, predict and export."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 (typer reads annotations)
from typing import Annotated, Optional

import typer

from .app import Context, DataFolder, Json, NewData, RunFolder, Select, app
from .common import absolute_path, check_folder_is_read, context_processes, errors, print_json

__all__ = ["export", "inspect", "predict"]


@app.command("test")
def _test(
    run: RunFolder,
    step: Annotated[
        list[float] | None,
        typer.Option(help="Test at this sampling step, in training steps: 2 keeps every second sample."),
    ] = None,
    drop: Annotated[
        list[float] | None, typer.Option(help="Test with this share of the positions missing, such as 0.3.")
    ] = None,
    turn: Annotated[Optional[list[float]], typer.Option(help="Test on images rotated by this many degrees.")] = None,  # noqa: UP045
    folder: NewData = None,
    split: Annotated[str, typer.Option(help="With --data: all samples, or only their test split.")] = "all",
    select: Select = None,
    context: Context = 1,
    as_json: Json = False,
) -> None:
    """Test a trained network, also at another resolution, with missing positions or on rotated images.

    --step, --drop and --turn may be given several times, for one test each. With --data, all samples of your own new
    data are test samples.
    """
    with errors():
        from ..experiments.finished_run import run_test  # noqa: PLC0415
        from ..experiments.progress import time_left  # noqa: PLC0415
        from ..experiments.run import Run  # noqa: PLC0415

        if folder is not None:
            check_folder_is_read(Run(run).recipe(), folder)
        wanted = {kind: values for kind, values in (("step", step), ("drop", drop), ("turn", turn)) if values}
        mesh, leads = context_processes(context)
        quiet = as_json or not leads
        found = run_test(
            run,
            wanted,
            folder=absolute_path(folder),
            split=split,
            select=select,
            mesh=mesh,
            on_batch=time_left("test", "samples", quiet=quiet),
            on_data=lambda data: None if quiet else typer.echo(f"{len(data.test):,} test samples", err=True),
        )
        if not leads:
            return
        if as_json:
            print_json(found)
        for name, metrics in found.items() if not as_json else ():
            typer.echo(f"{name:<24} " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items()))


@app.command()
def inspect(run: RunFolder, as_json: Json = False) -> None:
    """Describe a run's network and its learned sizes; rewrite its report."""
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
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Inputs: .npy; .npz of inputs, coords and mask; .csv (in the training format, or a row per step and a "
            "column per channel), .parquet, .ts, .tsv or .arff; images, sounds or point clouds; folders and patterns "
            "of these; or a .txt file with a list. With --stream: one sound, .csv or .npy, or - for standard input.",
        ),
    ],
    stream: Annotated[
        bool, typer.Option("--stream", help="Read the input as it arrives, and predict after every block.")
    ] = False,
    every: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="With --stream: samples between predictions; by default 1."),
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="File to write, .csv or .json, with all classes.")] = None,  # noqa: UP045
    step: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Sampling step of the input, in training steps; by default that of the run's data."),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="TIMES|FILE",
            help="Times at which to predict: a list such as 0.5,1,2, a .csv or .parquet with columns time and, "
            "optionally, id, or an .npy of coordinates in training steps.",
        ),
    ] = "",
    raw: Annotated[bool, typer.Option("--raw", help="The input is already normalised.")] = False,
    select: Select = None,
    context: Context = 1,
    folder: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Predict with a trained network: a class and its probability, or values, one line per sample.

    The training data are not needed, except by a run that does not store its preprocessing: name them with --data.
    """
    with errors():
        from ..experiments.predict import TrainedRun, find_files  # noqa: PLC0415
        from ..experiments.predictions import check_out, prediction_line, write_predictions  # noqa: PLC0415
        from ..experiments.progress import time_left  # noqa: PLC0415
        from ..experiments.run import Run  # noqa: PLC0415

        if folder is not None:
            check_folder_is_read(Run(run).recipe(), folder)
        if stream:
            from ..experiments.stream_input import stream_input  # noqa: PLC0415

            if len(files) != 1 or out is not None or at:
                raise ValueError("--stream must have one file, or - for standard input, and neither --out nor --at")
            where = absolute_path(folder)
            for row in stream_input(run, files[0], every=every or 1, step=step, raw=raw, select=select, folder=where):
                typer.echo(json.dumps(row) if as_json else prediction_line({"file": files[0], "sample": 0, **row}))
            return
        if every is not None:
            raise ValueError(f"--every must be given only with --stream, got {every}")
        check_out(out)
        check_out(out, find_files(files) if out is not None else ())
        mesh, leads = context_processes(context)
        opened = TrainedRun(run, select=select, data=absolute_path(folder), mesh=mesh)
        left = time_left("predict", "files", quiet=as_json or not leads)
        found = opened.predict(files, step=step, at=at or None, raw=raw, on_batch=left)
        if not leads:
            return
        if out is not None:
            write_predictions(out, found)
            typer.echo(f"{out}: {len(found):,} predictions", err=as_json)
        if as_json:
            print_json(found)
        elif out is None:
            several = len({row["file"] for row in found}) > 1
            for row in found:
                typer.echo(prediction_line(row, named=several))


@app.command()
def export(
    run: RunFolder,
    to: Annotated[str, typer.Option(help="pt2 (torch.export, also other lengths) or onnx.")] = "pt2",
    out: Annotated[Path | None, typer.Option(help="File to write; by default network.pt2 or .onnx in the run.")] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Export a causal network that takes one sample and its state and returns one prediction."
        ),
    ] = False,
) -> None:
    """Export a trained network, and compare the file with the network.

    An ONNX file needs only a runtime. A .pt2 file is loaded after `import kernelfield`, which registers its operators.
    Inputs are prepared samples, with mask and coordinates if the data have them. The metadata hold the preparation,
    classes, sampling rate and scale of the target.
    """
    with errors():
        from .._export_lengths import describe_lengths  # noqa: PLC0415
        from ..experiments.finished_run import export_run, export_run_stream  # noqa: PLC0415
        from ..export import read_metadata  # noqa: PLC0415

        if stream:
            path, error, kernels = export_run_stream(run, to, out)
            typer.echo(kernels)
        else:
            path, error = export_run(run, to, out)
        typer.echo(f"{path}: differs from the network by at most {error:.1e}")
        found = read_metadata(path)
        shapes = (
            f"{name} ({', '.join(map(str, ['batch', *kind['shape']]))})" for name, kind in found["inputs"].items()
        )
        typer.echo(f"inputs: {', '.join(shapes)}; kernelfield.export.read_metadata says how to prepare them")
        if "lengths" in found:
            typer.echo(f"it accepts {describe_lengths(found['lengths'])}")
        if (scale := found.get("target_scale")) is not None:
            mean, std = (", ".join(f"{value:.6g}" for value in scale[key]) for key in ("mean", "std"))
            typer.echo(f"its outputs are normalised: target = std · output + mean, with std {std} and mean {mean}")

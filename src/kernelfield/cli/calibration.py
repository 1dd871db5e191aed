"""The command that measures a device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app
from .common import errors

if TYPE_CHECKING:
    import torch

__all__ = ["calibrate"]


@app.command()
def calibrate(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1; by default the GPU if there is one.")] = "auto",
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Approximate duration of the measurement, in seconds.")
    ] = 60.0,
    show: Annotated[bool, typer.Option("--show", help="Print the costs in use and measure nothing.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the measured costs and measure nothing.")] = False,
) -> None:
    """Measure the costs of the convolution methods on this device, and store them for later processes.

    The costs of a CPU hold for the current number of threads (OMP_NUM_THREADS). KERNELFIELD_CACHE sets the folder of
    the costs; KERNELFIELD_CACHE=off turns it off.
    """
    with errors():
        if show and clear:
            raise ValueError("--show must not be given together with --clear")
        from .._files import VARIABLE  # noqa: PLC0415
        from ..ops.conv import measured  # noqa: PLC0415

        chosen = _device(device)
        path = measured.record_path(chosen)
        known = measured.describe_device(chosen)
        where = (
            f"{known['device']}, {known['threads']} thread{'s' * (known['threads'] > 1)}"
            if known["threads"]
            else known["device"]
        )
        if show:
            found = None if path is None else measured.read_record(path, chosen)
            source = f"measured, {path}" if found else f"shipped, {measured.source_of(chosen.type)}"
            typer.echo(f"{where}: {source}")
            typer.echo("\n".join(_table(measured.merged(measured.shipped_costs(chosen.type), found or {}))))
            return
        if clear:
            removed = measured.clear_record(chosen)
            typer.echo(f"{where}: no measured costs" if removed is None else f"removed {removed}")
            return
        if path is None:
            raise ValueError(f"{VARIABLE} must be a folder for measured costs, got a value that turns it off")
        path.parent.mkdir(parents=True, exist_ok=True)  # fails here instead of after the first measurement
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{VARIABLE} must be a folder that can be written, got {path.parents[1]}")
        from ..ops.calibration import calibrate as measure  # noqa: PLC0415

        typer.echo(f"measuring {where} for about {seconds:g} s")
        try:
            result = measure(chosen, seconds, on_line=typer.echo)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the costs printed above are stored in {path}")
            raise typer.Exit(130) from None
        typer.echo(f"stored in {result.path}")


def _device(name: str) -> torch.device:
    """Return the device of a name; "auto" is the GPU if there is one."""
    import torch  # noqa: PLC0415

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        found = f"one of the {count} GPUs of this machine" if count else "cpu on this machine, which has no GPU"
        raise ValueError(f"--device must be {found}, got {name!r}")
    return device


def _table(costs: dict[str, Any]) -> list[str]:
    """Return one line per mode, method and kind, with the time of a call and of one operation of each kind."""
    from ..ops.conv.measured import GRAPH, MODES  # noqa: PLC0415

    lines = [f"{'mode':<15}{'method':<32}{'kind':<14}{'call, µs':>11}{'rates, ps':>34}"]
    for mode in (*MODES, *(GRAPH + mode for mode in MODES)):
        for method, kinds in costs.get(mode, {}).items():
            for kind, entry in kinds.items():
                first, *rates = entry["rates"]
                rest = " ".join(f"{1e12 * rate:.3g}" for rate in rates)
                lines.append(f"{mode:<15}{method:<32}{kind:<14}{1e6 * first:>11.1f}{rest:>34}")
    return lines

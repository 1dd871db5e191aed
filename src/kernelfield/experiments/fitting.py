"""Training of the network of a recipe."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked
from .._kinds import Choice
from ..data.labelled import CUSTOM_LOADERS
from ..data.metadata import metadata, samples_record
from ..ops.conv.measured import advice, keep_costs_in, use_costs_of
from .checkpoint import latest_checkpoint
from .data_summary import data_kind, missing_classes, pixel_line, repeated_samples, split_sizes
from .datasets import reads_files, recipe_data
from .effects import check_effects
from .finish import count_parameters, finish, score_last_epoch, write_rows
from .finished_run import check_same_data, complete_run
from .kernels_ahead import KernelsAhead
from .loop import Loop
from .processes import launched_sizes, wait_for_rendezvous
from .progress import Loggers, check_loggers
from .recipe import Recipe, find_recipe, with_settings
from .run import Run, fresh_folder, make_network, make_task, network_arguments
from .run_files import FolderLock, write_json
from .side_by_side import Stepwise
from .start_from import (
    check_times,
    find_start,
    freeze_body,
    load_weights,
    size_lines,
    source_lines,
    split_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from lightning.fabric import Fabric

    from ..data.base import Data
    from .loop import Progress

__all__ = ["data_at_hand", "fit", "make_fabric"]


@Stepwise
def fit(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    settings: list[str] | dict[str, Any] | None = None,
    data: Data | None = None,
    folder: str | None = None,
    download: bool = False,
    synthetic: bool = False,
    fabric: Fabric | None = None,
    context: int = 1,
    report: bool = True,
    log: Sequence[str] = (),
    on_data: Callable[[Data], None] | None = None,
    on_message: Callable[[str], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Generator[None, None, Run]:
    """Train the network of a recipe, test it, and return the run.

    An interrupted run continues from its last checkpoint; on a CPU it ends with the same weights as without the
    interruption. A finished run is returned unchanged, except that missing reports and pictures are rewritten; if
    ``data`` differ from those of the run, that is an error. If the recipe now has more epochs, the run continues with
    the schedule of the longer training; a run that had stopped early does not, which is an error. ``fit.steps(…)`` is
    the same training as a generator, which yields after each step, for :func:`~.side_by_side.side_by_side`.

    Args:
        recipe: a recipe, its name, or its file.
        out: folder of the run; by default a new one under runs/.
        settings: values to replace in the recipe, as ``a.b=c``.
        data: training data; by default the data of the recipe.
        folder: folder of the data's files.
        download: whether the loader may download missing files.
        synthetic: whether to train on synthetic data of the recipe's shape.
        fabric: devices, processes and precision; see :func:`make_fabric`.
        context: number of processes that share every sample, each with a slab of it; see :mod:`kernelfield.parallel`.
        report: whether to write report.html and kernels.png.
        log: loggers besides those of ``training.log``; see :class:`~.progress.Loggers`.
        on_data: called with the data before the training begins.
        on_message: called with each line about the weights that the training starts from.
        on_progress: called regularly with a :class:`Progress`.
        should_stop: called after every step; see :class:`~.loop.Loop`.
    """
    recipe = with_settings(recipe if isinstance(recipe, Recipe) else find_recipe(recipe), settings or [])
    fabric = make_fabric() if fabric is None else fabric
    # Processes that start one after the other must agree on the new folder.
    target = Path(fabric.broadcast(str(fresh_folder(Path("runs") / recipe.name) if out is None else out)))
    run = Run(target)
    synthetic = synthetic if data is None else data.name == "synthetic"
    run.check(recipe, synthetic=synthetic)
    leads = fabric.global_rank == 0
    check_loggers([*recipe.training.log, *log])
    where: dict[str, Any] = {"folder": folder, "download": download, "synthetic": synthetic}
    with FolderLock(target) as lock:
        if run.finished and not run.extended_by(recipe):
            known = data or data_at_hand(run, recipe, partial(recipe_data, recipe, **where))
            _check_finished(run, known, on_message if leads else None)
            if leads and report:
                complete_run(run, lambda: known or recipe_data(recipe, **where), lock)
            return run
        _prepare(run, fabric.device, lock if leads else None)
        kernels = KernelsAhead(recipe.name, target) if fabric.device.type == "cuda" else None
        data = recipe_data(recipe, **where) if data is None else data
        _check_samples(data, run)
        network = make_network(recipe, data)
        task, lines = make_task(recipe, network, data), _start(network, recipe, run, data)
        lines += [*check_effects(recipe, network, data), *advice(fabric.device)]
        if leads:
            _begin(run, recipe, data, network, fabric.device, on_data, lines, on_message)
        loggers = _loggers(run, recipe, [*recipe.training.log, *log] if leads else [])

        def progress(now: Progress) -> None:
            if on_progress is not None:
                on_progress(now)
            if math.isnan(now.loss):  # the first report, which has only the time
                return
            write_rows(run, loop)
            _log_progress(run, now, loggers)
            if now.metrics and kernels is not None:
                kernels.write()

        loop = Loop(
            task,
            data.train,
            data.validation,
            recipe.training,
            fabric=fabric,
            folder=run.checkpoints,
            name=recipe.name,
            on_progress=progress,
            should_stop=should_stop,
            context=context,
        )
        if kernels is not None:
            kernels.wait()
            torch.cuda.reset_peak_memory_stats(fabric.device)
        yield from loop.steps()
        fabric.barrier()
        last, averaged = score_last_epoch(loop, data), loop.average_last()
        fabric.barrier()  # the first process must have written the network that is tested
        if leads or loop.mesh is not None:
            files = {} if synthetic else {"folder": folder, "download": download}
            finish(run, recipe, data, loop, report, files, last, averaged)
        if leads and kernels is not None:
            kernels.write()
        if leads:
            _end(run, loop, loggers)
        fabric.barrier()
    return run


def data_at_hand(run: Run, recipe: Recipe, load: Callable[[], Data]) -> Data | None:
    """Return the data with which to compare a finished run; None if they cannot change, or are no longer here."""
    if run.synthetic or not run.path("data.json").exists() or not reads_files(recipe.data):
        return None
    try:
        return load()
    except FileNotFoundError:
        return None
    except ValueError as error:
        if str(error).startswith("root must"):
            return None
        raise


def _check_finished(run: Run, data: Data | None, on_message: Callable[[str], None] | None) -> None:
    """Raise a ValueError if a finished run is on other data than the given ones; otherwise say that it is finished."""
    if data is not None:
        check_same_data(run, data, "choose another folder")
    if on_message is not None:
        on_message(f"{run.folder} holds the finished run of this recipe; nothing is trained")


def _prepare(run: Run, device: torch.device, lock: FolderLock | None) -> None:
    """Lock the folder, if this process leads, and use the method costs that the run started with."""
    if lock is not None:
        lock.acquire()  # before the data is loaded
    use_costs_of(run.folder, device)


def _start(network: torch.nn.Module, recipe: Recipe, run: Run, data: Data) -> list[str]:
    """Load the weights that a recipe starts from, unless the run has a checkpoint; return messages about them."""
    lines: list[str] = []
    settings = recipe.training
    if settings.start_from and latest_checkpoint(run.checkpoints) is None:
        start = find_start(settings.start_from, run)
        others = check_times(start, data, unit_given=recipe.data.get("unit") is not None)
        lines += load_weights(network, start, classes=data.classes, freeze=settings.freeze)
        lines += [*source_lines(start, recipe.data), *others]
        lines += size_lines(start, network_arguments(recipe, data).get("size"))
        lines += split_lines(start, recipe, data)
    if settings.freeze:
        freeze_body(network)
    return lines


def _begin(
    run: Run,
    recipe: Recipe,
    data: Data,
    network: torch.nn.Module,
    device: torch.device,
    on_data: Callable[[Data], None] | None,
    lines: list[str],
    on_message: Callable[[str], None] | None,
) -> None:
    """Create the folder of a run, write its first files, and log the network, the sizes of the splits and ``lines``."""
    run.begin(recipe, synthetic=data.name == "synthetic")
    keep_costs_in(run.folder, device)
    stored = metadata(data)
    if stored is not None:
        write_json(run.folder / "data.json", {**stored, "samples": samples_record(data)}, indent=None)
    run.log(f"training {recipe.name} with {count_parameters(network):,} parameters on {device}")
    run.log(f"data: {split_sizes(data)}")
    schedule = recipe.schedule
    steps = f", lowered after {', '.join(f'{epoch:g}' for epoch in schedule.milestones)}" if schedule.milestones else ""
    run.log(f"schedule: {schedule.name}, {recipe.training.epochs} epochs, warm-up {schedule.warmup:g}{steps}")
    run.log(f"data: {data_kind(data)}")
    if on_data is not None:
        on_data(data)
    repeated = repeated_samples(data) if recipe.data["name"] in CUSTOM_LOADERS else 0
    if repeated:
        lines = [f"{repeated} of {len(data.test)} test samples are training or validation samples too", *lines]
    lines = [*lines, *missing_classes(data)]
    for line in [pixel_line(data), *lines] if data.levels else lines:
        run.log(line)
        if on_message is not None:
            on_message(line)


def _end(run: Run, loop: Loop, loggers: Loggers | None) -> None:
    """Log the end of the training."""
    if loop.captured is not None:
        run.log(loop.captured.summary)
    run.log(f"finished after {loop.state.seconds:.1f} s")
    if loggers is not None:
        loggers.close(run.result())


def _loggers(run: Run, recipe: Recipe, names: list[str]) -> Loggers | None:
    return Loggers(names, run.folder, recipe.name, recipe.to_dict()) if names else None


def _log_progress(run: Run, now: Progress, loggers: Loggers | None) -> None:
    done = ", ".join(f"{k} {v:.4f}" for k, v in {"loss": now.loss, **now.metrics}.items())
    run.log(f"step {now.step}/{now.steps}, epoch {now.epoch}: {done}, {now.rate:.0f} samples/s")
    if loggers is not None:
        loggers.log(now)


@checked(accelerator=Choice("auto", "cpu", "cuda"), strategy=Choice("auto", "ddp", "fsdp"))
def make_fabric(accelerator: str = "auto", devices: int = 1, nodes: int = 1, strategy: str = "auto") -> Fabric:
    """Return a launched Lightning Fabric with one process per device, on one or several machines.

    Under torchrun, torchrun sets the number of processes, and ``devices`` and ``nodes`` are ignored.

    Args:
        accelerator: "auto", "cpu" or "cuda".
        devices: number of devices, or of CPU processes, per machine.
        nodes: number of machines.
        strategy: with "ddp" every process holds the full network; with "fsdp" weights, gradients and the state of the
            optimiser are sharded; "auto" is "ddp" if there are several processes.
    """
    from lightning.fabric import Fabric  # noqa: PLC0415
    from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: PLC0415

    devices, nodes = launched_sizes() or (devices, nodes)
    how: Any = "ddp" if devices * nodes > 1 and strategy == "auto" else strategy
    if strategy == "fsdp":
        from lightning.fabric.strategies import ModelParallelStrategy  # noqa: PLC0415

        world = devices * nodes
        how = ModelParallelStrategy(_shard, data_parallel_size=world, tensor_parallel_size=1)
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=how)
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        asked = f"{accelerator!r} with devices={devices}"
        raise ValueError(f"accelerator must be available on this machine, got {asked}: {error}") from error
    if devices * nodes > 1:
        wait_for_rendezvous()
    fabric.launch()
    return fabric


def _shard(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    """Shard all parameters as one unit, because kernels of several layers are sampled together."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    fully_shard(module, mesh=mesh["data_parallel"])
    return module


def _check_samples(data: Data, run: Run) -> None:
    """Raise a ValueError if a split is empty, if there is only one class, or if a run began on other data."""
    if latest_checkpoint(run.checkpoints) is not None:
        check_same_data(run, data, "start a new run, perhaps with start_from")
    if len(data.classes) == 1 and data.task in ("classification", "segmentation"):
        raise ValueError(f"data {data.name!r} must have two or more classes, got only {data.classes[0]!r}")
    for name, split in (("train", data.train), ("test", data.test)):
        if len(split) == 0:
            counts = f"{len(data.train)} for training and {len(data.test)} for testing"
            raise ValueError(f"data {data.name!r} must have samples in the {name} split, got {counts}")

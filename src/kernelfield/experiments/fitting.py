"""From a recipe to a trained network in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._checks import check_choice
from ..models import DNArch
from .datasets import recipe_data
from .evaluation import evaluate
from .loop import Loop
from .plain_json import to_json
from .recipe import Recipe, find_recipe, with_settings
from .robustness import other_data_tests, run_tests
from .run import Run, fresh_folder, machine, make_network, make_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.fabric import Fabric

    from ..data.base import Data
    from .loop import Progress

__all__ = ["fit", "make_fabric"]


def fit(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    settings: list[str] | dict[str, Any] | None = None,
    data: Data | None = None,
    folder: str | None = None,
    download: bool = False,
    made: bool = False,
    fabric: Fabric | None = None,
    report: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train what a recipe describes, test it, and return the run.

    A run that was interrupted is taken up where its last checkpoint stands; on a CPU it ends with the weights it would
    have ended with. One that is finished is returned as it is.

    Args:
        recipe: a recipe, its name, or its file.
        out: folder of the run; a fresh one under runs/ if not given.
        settings: values to replace in the recipe, as ``a.b=c``.
        data: to train on; what the recipe names if not given.
        folder: where the data's files are.
        download: let the data's loader fetch what is missing.
        made: train on made data of the recipe's shape.
        fabric: devices, processes and precision; see :func:`make_fabric`.
        report: whether to write report.html and kernels.png.
        on_progress: called now and then with a :class:`Progress`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    recipe = with_settings(recipe, settings or [])
    fabric = make_fabric() if fabric is None else fabric
    target = fresh_folder(Path("runs") / recipe.name) if out is None else Path(out)
    # Processes started one after the other must not each find a fresh folder.
    target = Path(fabric.broadcast(str(target)))
    run = Run(target)
    made = made if data is None else data.name == "made"
    run.check(recipe, made=made)
    if run.finished:
        return run
    data = recipe_data(recipe, folder=folder, download=download, made=made) if data is None else data
    _check_samples(data)
    network = make_network(recipe, data)
    task = make_task(recipe, network, data)
    leads = fabric.global_rank == 0
    if leads:
        run.begin(recipe, made=made)
        run.log(f"training {recipe.name} with {count_parameters(network):,} parameters on {fabric.device}")

    def progress(now: Progress) -> None:
        _write_rows(run, loop)
        done = ", ".join(f"{k} {v:.4f}" for k, v in {"loss": now.loss, **now.metrics}.items())
        run.log(f"step {now.step}/{now.steps}, epoch {now.epoch}: {done}, {now.rate:.0f} samples/s")
        if on_progress is not None:
            on_progress(now)

    loop = Loop(
        task,
        data.train,
        data.validation,
        recipe.training,
        fabric=fabric,
        folder=run.checkpoints,
        name=recipe.name,
        on_progress=progress,
    )
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(fabric.device)
    state = loop.run()
    fabric.barrier()
    if leads and loop.captured is not None:
        refusal = loop.captured.refusal
        run.log(f"steps not captured: {refusal}" if refusal else f"steps as {loop.captured.graphs} CUDA graphs")
    if leads:
        _finish(run, recipe, data, loop, report, {} if made else {"folder": folder, "download": download})
        run.log(f"finished after {state.seconds:.1f} s")
    fabric.barrier()
    return run


def make_fabric(accelerator: str = "auto", devices: int = 1, nodes: int = 1, strategy: str = "auto") -> Fabric:
    """Return Lightning's Fabric, launched: one process per device, on one or several machines.

    Args:
        accelerator: "auto", "cpu" or "cuda".
        devices: devices, or CPU processes, per machine.
        nodes: machines.
        strategy: "ddp", every process holds the whole network; "fsdp", weights, gradients and the optimiser's state
            are divided among them; "auto" is the first where there are several.
    """
    from lightning.fabric import Fabric  # noqa: PLC0415
    from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: PLC0415

    check_choice("accelerator", accelerator, ("auto", "cpu", "cuda"))
    check_choice("strategy", strategy, ("auto", "ddp", "fsdp"))
    how: Any = "ddp" if devices * nodes > 1 and strategy == "auto" else strategy
    if strategy == "fsdp":
        from lightning.fabric.strategies import ModelParallelStrategy  # noqa: PLC0415

        world = devices * nodes
        how = ModelParallelStrategy(_shard, data_parallel_size=world, tensor_parallel_size=1)
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=how)
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        asked = f"{accelerator!r} with devices={devices}"
        raise ValueError(f"accelerator must be one that this machine has, got {asked}: {error}") from error
    fabric.launch()
    return fabric


def _shard(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    """Divide all parameters as one: layers look at each other's when kernels are sampled together."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    fully_shard(module, mesh=mesh["data_parallel"])
    return module


def count_parameters(network: torch.nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in network.parameters())


def _check_samples(data: Data) -> None:
    """Raise before a training that could not be done, or not be tested at its end."""
    for name, split in (("train", data.train), ("test", data.test)):
        if len(split) == 0:
            counts = f"{len(data.train)} to train on and {len(data.test)} to test on"
            raise ValueError(f"data {data.name!r} must have samples in the {name} split, got {counts}; add some")


def _write_rows(run: Run, loop: Loop) -> None:
    if loop.state.rows:
        run.write_rows("metrics.csv", loop.state.rows)
    if loop.state.masks:
        run.write_rows("masks.csv", loop.state.masks)


def _finish(run: Run, recipe: Recipe, data: Data, loop: Loop, report: bool, where: dict[str, Any]) -> None:
    _write_rows(run, loop)
    device, state = loop.fabric.device, loop.state
    network = run.network().to(device)
    task = make_task(recipe, network, data)
    batch = recipe.training.eval_batch or recipe.training.batch
    meter = evaluate(task, data.test.to(device), batch)
    tests = {"test": meter.compute(), **run_tests(task, data, recipe.test, batch=batch, device=device)}
    if data.name != "made":
        tests |= other_data_tests(task, recipe, data, batch=batch, device=device, **where)
    result: dict[str, Any] = {
        "status": "done",
        "recipe": recipe.name,
        "title": recipe.title,
        "chapter": recipe.chapter,
        "metric": task.metric,
        "published": recipe.published,
        "metrics": tests,
        "notes": recipe.notes,
        "parameters": count_parameters(network),
        "epochs": state.epoch,
        "steps": state.step,
        "batch": loop.batch,
        "best_step": state.best_step,
        "seed": recipe.training.seed,
        "seconds": round(state.seconds, 2),
        "machine": machine(device),
    }
    if isinstance(network, DNArch):
        learned = network.architecture()
        result["architecture"] = str(learned).splitlines()
        says = f"complexity {learned.complexity:.2f} of the base network's"
        result["notes"] = "; ".join(part for part in (recipe.notes, says) if part)
    if device.type == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    if data.name == "made":
        result |= {"made": True, "notes": "made data of the right shape: no result"}
    if where.get("folder"):
        result["data_folder"] = where["folder"]
    if meter.confusion.numel():
        run.write("confusion.json", to_json({"classes": data.classes, "counts": meter.confusion.tolist()}))
    run.write("result.json", to_json(result, indent=2) + "\n")
    if report:
        from ..viz.attention import has_maps, plot_sample  # noqa: PLC0415
        from ..viz.report import write_report  # noqa: PLC0415

        if has_maps(network):
            first = data.test.batch(torch.zeros(1, dtype=torch.long, device=data.test.inputs.device))
            plot_sample(network.cpu(), first.inputs.cpu(), run.folder / "attention.png")
        write_report(run.folder, network.cpu(), result, run.read_rows("metrics.csv"), run.read_rows("masks.csv"))

"""Functions that test, describe and export the network of a finished run, and rewrite its report."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import checked, takes_argument
from .._checks import check_choice
from .._files import atomic_write
from .._kinds import POSITIVE, TEXT, Choice
from .._object_kinds import Instance
from ..data.base import Batch, one_step
from ..data.io.files import decoding
from ..data.labelled import CUSTOM_LOADERS, labelled_split
from ..data.metadata import changed_metadata, from_metadata, metadata, same_labels, same_samples, samples_record
from ..data.preprocessing import compare_values
from ..layers import ContinuousConv, kernel_frequency, nyquist
from .datasets import recipe_data, sampling_rate
from .evaluation import evaluate
from .finish import write_pictures
from .processes import split_over
from .recipe import NUMBERS
from .robustness import run_tests
from .run import PICTURES, Run, make_task
from .run_files import read_json
from .settings import SELECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh

    from ..data.base import Data
    from .recipe import Recipe
    from .run_files import FolderLock

__all__ = [
    "check_same_data",
    "complete_run",
    "describe_run",
    "export_run",
    "export_run_stream",
    "rewrite_report",
    "run_data",
    "run_metadata",
    "run_test",
]


@checked(
    folder=TEXT | None,
    split=Choice("all", "test"),
    select=Choice(*SELECT) | None,
    mesh=Instance("torch.distributed.DeviceMesh") | None,
)
def run_test(
    run: str | Path,
    wanted: dict[str, Any],
    *,
    folder: str | None = None,
    split: str = "all",
    select: str | None = None,
    mesh: DeviceMesh | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    on_data: Callable[[Data], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the metrics of a run's network on its test split, or on a changed one if ``wanted`` names changes.

    Args:
        run: folder of the run.
        wanted: values by kind of change: ``step``, ``drop``, ``turn``.
        folder: new data to test on; for a registered data set, the folder of its files.
        split: samples of new data to use: "all", or only the "test" samples that the run would split off.
        select: weights to use; see :meth:`Run.network`.
        mesh: processes that share every sample; see :func:`~.processes.context_mesh`.
        on_batch: called after each batch of a test without changes, with the number of samples so far and of all
            samples.
        on_data: called with the data before the test.
    """
    opened = Run(Path(run))
    recipe = opened.recipe()
    for kind, values in wanted.items():
        for value in values if isinstance(values, (list, tuple)) else [values]:
            NUMBERS[check_choice("wanted", kind, NUMBERS)].check(kind, value)  # before the data are loaded
    if folder is not None and split == "all" and recipe.data["name"] in CUSTOM_LOADERS:
        data = run_metadata(opened, recipe)
        data = replace(data, test=labelled_split(data, folder, recipe.data))
    else:
        data = run_data(opened, recipe, folder)
        if folder is None:
            check_same_data(opened, data, "test on new samples with --data")
        else:
            data = _prepared_as_in(opened, data)
    if on_data is not None:
        on_data(data)
    task = make_task(recipe, split_over(opened.network(recipe, select, announce=True), mesh), data)
    batch = recipe.training.eval_batch or recipe.training.batch
    if wanted:
        return run_tests(task, data, wanted, batch=batch)
    return {"test": evaluate(task, data.test, batch, on_batch).compute()}


def _prepared_as_in(run: Run, data: Data) -> Data:
    """Return other data whose test samples are prepared as in a run; refuse other classes, channels or times.

    The data were normalised by their own statistics, and their classes numbered by their own names.
    """
    path = run.path("data.json")
    if not path.exists():
        return data
    stored = read_json(path)
    known = from_metadata(stored)
    changed = "classes" if known.classes != data.classes else changed_metadata(stored, metadata(data))
    if changed not in ("", "prepare"):
        there, here = (str(getattr(other, changed))[:80] for other in (known, data))
        raise ValueError(
            f"data must have the {changed} of {run.folder}, {there}, got {here}; without --split test, all samples are "
            "read as in the run"
        )
    if changed:
        compare_values(Batch(data.test.inputs, mask=data.test.mask), known, "the data")
    return replace(data, test=replace(data.test, prepare=known.test.prepare))


@checked()
def describe_run(folder: str | Path) -> dict[str, Any]:
    """Return the model, size, layers and result of a run as plain values."""
    run = Run(Path(folder))
    recipe = run.recipe()
    network = run.network(recipe)
    status = run.result()["status"] if (run.folder / "result.json").exists() else "unfinished"
    layers = []
    with torch.no_grad():
        for name, layer in network.named_modules():
            if isinstance(layer, ContinuousConv):
                highest = kernel_frequency(layer)
                entry: dict[str, Any] = {"layer": name, "points": list(layer.kernel().shape[2:])}
                if layer.mask is not None:
                    low, high = layer.mask.support()
                    entry["reach"] = [round(v, 4) for v in torch.maximum(low.abs(), high.abs()).tolist()]
                if highest is not None:
                    entry["frequency"] = round(float(highest) / nyquist(layer), 3)
                layers.append(entry)
    return {
        "recipe": recipe.name,
        "model": recipe.model["name"],
        "status": status,
        "parameters": sum(p.numel() for p in network.parameters()),
        "layers": layers,
        "result": run.result() if status != "unfinished" else None,
    }


@checked()
def rewrite_report(folder: str | Path) -> Path:
    """Rewrite the report of a run and return its path."""
    from ..viz.report import write_report  # noqa: PLC0415

    run = Run(Path(folder))
    for name in PICTURES:
        run.path(name)  # raises if a link leads out of the run
    for name in ("confusion.json", "heard.json"):
        if (run.folder / name).exists():
            read_json(run.folder / name)  # raises if the file is damaged
    return write_report(
        run.folder, run.network(), run.result(), run.read_rows("metrics.csv"), run.read_rows("masks.csv")
    )


def complete_run(run: Run, data: Callable[[], Data], lock: FolderLock) -> bool:
    """Rewrite missing pictures and the missing report of a finished run; return whether any were missing.

    Args:
        run: a finished run.
        data: returns the data of the run, for the pictures.
        lock: lock of the folder, acquired if there is something to write.
    """
    recipe = run.recipe()
    network = run.network(recipe)
    has_kernels = any(isinstance(layer, ContinuousConv) for layer in network.modules())
    if run.path("report.html").exists() and (run.path("kernels.png").exists() or not has_kernels):
        return False
    lock.acquire()
    if (run.folder / "report.html").exists():
        rewrite_report(run.folder)
        return True
    found = data()
    check_same_data(run, found, "restore them to rewrite the pictures")
    batch = recipe.training.eval_batch or recipe.training.batch
    write_pictures(run, make_task(recipe, network, found), found, run.result(), batch)
    return True


@checked(to=Choice("pt2", "onnx"))
def export_run(folder: str | Path, to: str = "pt2", out: str | Path | None = None) -> tuple[Path, float]:
    """Export a run's network; return the file and the largest difference between the outputs of file and network.

    The exported network takes prepared samples: ``input``; ``coords`` for irregular times or points; ``mask`` for
    these, for missing values and for unequal lengths; and ``at`` for predictions at query times. Its metadata hold the
    preparation, classes, channels, sampling rate, scale of the target and version.

    Args:
        folder: folder of the run.
        to: "pt2" or "onnx".
        out: file to write; by default network.pt2 or network.onnx in the folder of the run.
    """
    from ..export import export_network  # noqa: PLC0415

    run = Run(Path(folder))
    recipe = run.recipe()
    data = run_metadata(run, recipe)
    path = _export_path(run.folder / f"network.{to}", out)
    network = run.network(recipe, announce=True)
    inputs: dict[str, Any] = _example_inputs(recipe, data, masked=takes_argument(network.forward, "mask"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        described = _export_metadata(recipe, data)
        return path, export_network(network, draft, **inputs, step=data.test.step, to=to, metadata=described)


def _export_path(usual: Path, out: str | Path | None) -> Path:
    """Return the file to write; raise a ValueError for a folder, or for a name with another suffix than the usual."""
    path = usual if out is None else Path(out)
    if path.is_dir() or path.suffix != usual.suffix:
        raise ValueError(f"out must be a file whose name ends in {usual.suffix}, got {path}")
    return path


def _example_inputs(recipe: Recipe, data: Data, *, masked: bool) -> dict[str, Any]:
    """Return random inputs for a run's network.

    Args:
        recipe: recipe of the run.
        data: its data set, with or without samples.
        masked: whether the network takes a mask.
    """
    shape, stored = recipe.shape, data.test
    if shape.vocabulary is not None:
        return {"example": torch.randint(shape.vocabulary, (2, *shape.size))}
    space = tuple(shape.size)
    inputs: dict[str, torch.Tensor] = {}

    def places(points: int) -> torch.Tensor:
        drawn = torch.rand(2, points, len(shape.size)) * torch.tensor(shape.size, dtype=torch.float32)
        return drawn.sort(dim=1).values if len(shape.size) == 1 else drawn

    if shape.irregular:
        space = (32 if stored.coords is None else stored.coords.shape[1],)
        inputs["coords"] = places(*space)
    if shape.queries:
        inputs["at"] = places(shape.queries)
    # In a batch of irregular samples, some may have fewer points than others.
    if masked and (stored.mask is not None or shape.irregular):
        mask = torch.ones(2, *space, dtype=torch.bool)
        mask[1, ..., space[-1] - space[-1] // 4 :] = False
        inputs["mask"] = mask
    return {"example": torch.randn(2, shape.in_channels, *space), **inputs}


def _export_metadata(recipe: Recipe, data: Data) -> dict[str, Any]:
    """Return a description of the inputs and outputs of an exported network."""
    activations = {
        "classification": "softmax",
        "multilabel": "sigmoid",
        "segmentation": "softmax",
        "language": "softmax",
    }
    return {
        "recipe": recipe.name,
        "model": recipe.model,
        "task": recipe.shape.task,
        "activation": activations.get(recipe.shape.task, "none"),
        "classes": list(data.classes),
        "channels": list(data.channels),
        "rate": sampling_rate(recipe),
        "unit": data.unit,
        "normalisation": metadata(data),
        "target_scale": _target_scale(recipe, data),
    }


def _target_scale(recipe: Recipe, data: Data) -> dict[str, list[float]] | None:
    """Return mean and std of each target if the network predicts normalised targets: target = std · output + mean."""
    scale = data.test.batch(slice(0, 0)).scale if recipe.data.get("standardize") else None
    return None if scale is None else {"mean": list(scale.mean), "std": list(scale.std)}


def run_metadata(run: Run, recipe: Recipe, folder: str | None = None) -> Data:
    """Return the data set of a run without its samples: shapes, classes and preparation.

    Args:
        run: the run.
        recipe: its recipe.
        folder: folder of the training data, which are loaded if it is given, or if the run does not store its
            preparation.
    """
    path = run.path("data.json")
    if folder is None and path.exists():
        with decoding(path, "the preparation of a run's data"):
            return from_metadata(read_json(path))
    return run_data(run, recipe, folder)


def check_same_data(run: Run, data: Data, remedy: str) -> None:
    """Raise a ValueError if the data of a run have changed since its training: samples, split, classes, or unit.

    A folder to which files were added is split again, so former training samples would become test samples. Values in
    another unit would be normalised by their own statistics, which the network has never seen.

    Args:
        run: the run.
        data: its data, as they are now.
        remedy: advice for the error.
    """
    path = run.path("data.json")
    stored = read_json(path) if path.exists() else {}
    then, now = stored.get("samples"), samples_record(data)
    if then is None:
        return
    changed = changed_metadata(stored, metadata(data)) if same_labels(then, now) else ""
    if changed:
        what = "the statistics of their values" if changed == "prepare" else changed
        raise ValueError(
            f"data must be those on which {run.folder} was trained, but they have changed ({what}); {remedy}"
        )
    if same_samples(then, now):
        return
    counts = [
        ", ".join(f"{record[name]} for {name}" for name in ("train", "validation", "test")) for record in (then, now)
    ]
    what = "other values" if same_labels(then, now) else "other labels"
    found = f"{counts[0]} then, {counts[1]} now" if counts[0] != counts[1] else f"{what} or another order"
    raise ValueError(
        f"data must be those on which {run.folder} was trained, but they have changed ({found}), and test samples may "
        f"have been training samples; {remedy}"
    )


@checked(to=Choice("pt2", "onnx"), tolerance=POSITIVE)
def export_run_stream(
    folder: str | Path, to: str = "pt2", out: str | Path | None = None, *, tolerance: float = 1e-3
) -> tuple[Path, float, str]:
    """Export a run's network as a stream; return the file, the largest difference, and the conversion of each kernel.

    Where the tolerance allows, long kernels are distilled to keep the state small; see
    :func:`~kernelfield.streaming.distil`. The stream takes prepared samples and has the metadata of :func:`export_run`.
    It takes no mask; a warning says so for a run on data with missing values.

    Args:
        folder: folder of the run.
        to: "pt2" or "onnx".
        out: file to write; by default stream.pt2 or stream.onnx in the folder of the run.
        tolerance: largest relative error of a kernel.
    """
    from ..streaming import distil, export_stream  # noqa: PLC0415

    run = Run(Path(folder))
    path = _export_path(run.folder / f"stream.{to}", out)
    recipe = run.recipe()
    if recipe.shape.irregular:
        raise ValueError(
            f"run must be on signals with a regular time grid to stream, got {recipe.name}: a stream takes no coords"
        )
    data = run_metadata(run, recipe)
    if data.test.mask is not None:
        warnings.warn(
            f"{run.folder} was trained with masks of missing values or unequal lengths, and a stream takes none: it "
            "must get an observed sample at every step",
            stacklevel=3,
        )
    found = distil(run.network(recipe, announce=True).cpu(), tolerance=tolerance)
    described, step = _export_metadata(recipe, data), one_step(data.test.step)
    return path, export_stream(found.network, path, to=to, step=step, metadata=described), str(found)


def run_data(run: Run, recipe: Recipe, folder: str | None) -> Data:
    """Return the training data of a run.

    Args:
        run: the run.
        recipe: its recipe.
        folder: folder of the data's files; by default the folder that was used in training.
    """
    result = run.result() if (run.folder / "result.json").exists() else {}
    return recipe_data(recipe, folder=folder or result.get("data_folder"), synthetic=run.synthetic)

"""What can be asked of a finished run: tests, predictions, descriptions, exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._checks import check_choice
from ..layers import ContinuousConv, kernel_frequency, nyquist
from .datasets import recipe_data
from .evaluation import evaluate
from .predict_input import read_samples
from .robustness import run_tests
from .run import Run, make_task

if TYPE_CHECKING:
    from .recipe import Recipe

__all__ = ["describe_run", "export_run", "listed", "predict_file", "rewrite_report", "run_test"]


def run_test(run: str | Path, wanted: dict[str, Any], *, folder: str | None = None) -> dict[str, dict[str, float]]:
    """Return the metrics of a run's network on its test split, changed as ``wanted`` says or, if that is empty, not.

    Args:
        run: its folder.
        wanted: values by kind: ``step``, ``drop``, ``turn``.
        folder: where the data's files are.
    """
    opened = Run(Path(run))
    recipe = opened.recipe()
    data = _data(opened, recipe, folder)
    task = make_task(recipe, opened.network(), data)
    batch = recipe.training.eval_batch or recipe.training.batch
    if not wanted:
        return {"test": evaluate(task, data.test, batch).compute()}
    return run_tests(task, data, wanted, batch=batch)


def describe_run(folder: str | Path) -> dict[str, Any]:
    """Return what a run's network is and has learned, as plain values."""
    run = Run(Path(folder))
    recipe = run.recipe()
    network = run.network()
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


def rewrite_report(folder: str | Path) -> Path:
    """Write a run's report again and return its path."""
    from ..viz.report import write_report  # noqa: PLC0415

    run = Run(Path(folder))
    return write_report(
        run.folder, run.network(), run.result(), run.read_rows("metrics.csv"), run.read_rows("masks.csv")
    )


@torch.no_grad()
def predict_file(
    run: str | Path, path: str | Path, *, step: float = 1.0, raw: bool = False, folder: str | None = None
) -> list[dict[str, Any]]:
    """Return predictions for the samples in a file, a mapping each: class and probability, or values.

    Args:
        run: its folder.
        path: arrays (.npy, .npz), series (.csv, .ts), an image or a sound, as :func:`~.samples.read_samples` has them.
        step: sampling step of the input in training steps.
        raw: take the input as it is; else it is prepared as the run's own test samples are, which needs its data.
        folder: where the data's files are.
    """
    opened = Run(Path(run))
    recipe = opened.recipe()
    network = opened.network()
    data = None if raw else _data(opened, recipe, folder)
    batch = read_samples(Path(path), recipe, data, step)
    classes: tuple[str, ...] = () if data is None else data.classes
    scale = batch.scale
    if raw and recipe.data.get("standardize"):  # the outputs are not to be raw
        scale = _data(opened, recipe, folder).test.batch(slice(0, 1)).scale
    outputs = make_task(recipe, network).eval()(batch)
    task = recipe.shape.task
    if task == "classification":
        shares, index = outputs.softmax(dim=1).max(dim=1)
        names = classes or tuple(map(str, range(outputs.shape[1])))
        pairs = zip(index.tolist(), shares.tolist(), strict=True)
        return [{"class": names[i], "probability": round(p, 6)} for i, p in pairs]
    if task == "multilabel":
        return [{"probabilities": row} for row in outputs.sigmoid().tolist()]
    if task in ("segmentation", "language"):
        return [{"classes": row} for row in outputs.argmax(dim=1).tolist()]
    return [{"values": row} for row in (outputs if scale is None else scale.undo(outputs)).tolist()]


def export_run(folder: str | Path, to: str = "pt2", out: str | Path | None = None) -> tuple[Path, float]:
    """Write a run's network as ``to`` says and return the file and how far it differs from the network.

    Args:
        folder: of the run.
        to: "pt2" or "onnx".
        out: file to write; network.pt2 or network.onnx in the run if not given.
    """
    from ..export import export_network  # noqa: PLC0415

    run = Run(Path(folder))
    shape = run.recipe().shape
    if shape.irregular:
        raise ValueError(
            f"run must be on a grid to be exported, for the file takes inputs alone; {run.folder} is on irregular "
            "times or points and needs their coords: use its network from Python, Run(folder).network()"
        )
    path = run.folder / f"network.{to}" if out is None else Path(out)
    if shape.vocabulary is not None:
        example = torch.randint(shape.vocabulary, (2, *shape.size))
    else:
        example = torch.randn(2, shape.in_channels, *shape.size)
    return path, export_network(run.network(), path, example, to=to)


def listed(what: str, pattern: str = "*") -> dict[str, str]:
    """Return names and one line about each: of "models", "recipes" or "data".

    >>> listed("recipes", "digits")
    {'digits': 'Bundled digits read as a sequence, a small CCNN'}
    """
    from ..data.registry import describe, list_data  # noqa: PLC0415
    from ..models.registry import configuration, list_models  # noqa: PLC0415
    from .recipe import recipe_titles  # noqa: PLC0415

    if check_choice("what", what, ("models", "recipes", "data")) == "models":
        return {name: configuration(name).summary for name in list_models(pattern)}
    if what == "data":
        return {name: describe(name).summary for name in list_data(pattern)}
    return recipe_titles(pattern)


def _data(run: Run, recipe: Recipe, folder: str | None) -> Any:
    result = run.result() if (run.folder / "result.json").exists() else {}
    return recipe_data(recipe, folder=folder or result.get("data_folder"), made=result.get("made", False))

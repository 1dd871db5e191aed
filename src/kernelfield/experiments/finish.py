"""The end of a training: test the selected network, find its worst samples, write result.json and the report."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ..models import DNArch
from .baseline import constant_scores
from .evaluation import evaluate, heard_accuracy
from .metrics import IGNORED, observed_target, target_of
from .processes import split_over
from .robustness import other_data_tests, run_tests
from .run import machine, make_task
from .run_files import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..data.base import Batch, Data
    from .loop import Loop
    from .metrics import Meter
    from .recipe import Recipe
    from .run import Run
    from .task import Task

__all__ = [
    "WorstSample",
    "count_parameters",
    "finish",
    "score_last_epoch",
    "worst_samples",
    "write_pictures",
    "write_rows",
]


def count_parameters(network: torch.nn.Module) -> int:
    """Return the number of parameters."""
    return sum([p.numel() for p in network.parameters()])


def write_rows(run: Run, loop: Loop) -> None:
    """Write the metrics and mask sizes of each epoch so far as CSV."""
    if loop.state.rows:
        run.write_rows("metrics.csv", loop.state.rows)
    if loop.state.masks:
        run.write_rows("masks.csv", loop.state.masks)


def score_last_epoch(loop: Loop, data: Data) -> dict[str, float] | None:
    """Return the test metrics of the last epoch, or None if the last epoch is the selected one.

    Every process must call this: the forward pass of a network that is split over processes waits for all of them.
    """
    select = loop.settings.select
    if select == "last" or (select == "best" and loop.state.best_step in (0, loop.state.step)):
        return None
    with loop.average or contextlib.nullcontext():
        batch = loop.settings.eval_batch or loop.settings.batch
        return evaluate(loop.task, data.test.to(loop.fabric.device), batch).compute()


def finish(
    run: Run,
    recipe: Recipe,
    data: Data,
    loop: Loop,
    report: bool,
    where: dict[str, Any],
    last: dict[str, float] | None = None,
    averaged: dict[str, float] | None = None,
) -> None:
    """Test the selected network, the best epoch by validation and the last epoch; write the result.

    Processes that share their samples test together; the first one writes.

    Args:
        run: run to write to.
        recipe: recipe of the training.
        data: data with the test split.
        loop: the finished loop.
        report: whether to write report.html and kernels.png.
        where: ``folder`` and ``download`` of the data, for tests on other data.
        last: result of :func:`score_last_epoch`.
        averaged: validation metrics of the averaged weights, if these are selected.
    """
    leads = loop.fabric.global_rank == 0
    if leads:
        write_rows(run, loop)
    device, state = loop.fabric.device, loop.state
    network = split_over(run.network(recipe).to(device), loop.mesh)
    task = make_task(recipe, network, data).eval()
    batch = recipe.training.eval_batch or recipe.training.batch
    test = data.test.to(device)
    meter = evaluate(task, test, batch)
    skipped: dict[str, str] = {}
    best = None
    if recipe.training.select != "best" and state.best_step not in (0, state.step):
        other = split_over(run.network(recipe, "best").to(device), loop.mesh)
        best = evaluate(make_task(recipe, other, data), test, batch).compute()
    tests = {"test": meter.compute(), **run_tests(task, data, recipe.test, batch=batch, device=device, skipped=skipped)}
    if data.name != "synthetic":
        tests |= other_data_tests(task, recipe, data, batch=batch, device=device, skipped=skipped, **where)
    if not leads:
        return
    result: dict[str, Any] = {
        "status": "done",
        "recipe": recipe.name,
        "title": recipe.title,
        "chapter": recipe.chapter,
        "metric": task.metric,
        "dim": data.dim,
        "published": recipe.published,
        "metrics": tests,
        "notes": recipe.notes,
        "parameters": count_parameters(network),
        "epochs": state.epoch,
        "steps": state.step,
        "batch": loop.batch,
        "best_step": state.best_step,
        "chosen_by": _chosen_by(loop, task.metric),
        **_epochs(loop, tests["test"], last, averaged, best),
        **_compared(meter, data),
        "seed": recipe.training.seed,
        "seconds": round(state.seconds, 2),
        "seconds_per_epoch": round(state.seconds / max(1, state.epoch), 2),
        "machine": machine(device),
    }
    for name, reason in skipped.items():
        run.log(f"test {name} skipped: {reason}")
    if skipped:
        result["skipped"] = skipped
    if isinstance(network, DNArch):
        learned = network.architecture()
        result["architecture"] = str(learned).splitlines()
        note = f"complexity {learned.complexity:.2f} of the base network's"
        result["notes"] = "; ".join(part for part in (recipe.notes, note) if part)
    if device.type == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    if data.name == "synthetic":
        result |= {"synthetic": True, "notes": "trained on synthetic data of the right shape: not a result"}
    if where.get("folder"):
        result["data_folder"] = where["folder"]
    if meter.confusion.numel():
        confusion = {"classes": data.classes, "counts": meter.confusion.tolist()}
        write_json(run.folder / "confusion.json", confusion, indent=None)
    write_json(run.folder / "result.json", result)
    if report:
        # The first process makes the pictures, with a network that is not split over processes.
        full = task if loop.mesh is None else make_task(recipe, run.network(recipe), data)
        write_pictures(run, full, data, result, batch)


def _compared(meter: Meter, data: Data) -> dict[str, Any]:
    """Return the test errors of each predicted value, if there are several, and the scores of a constant prediction."""
    found: dict[str, Any] = {}
    if data.name != "synthetic" and (constant := constant_scores(data)):
        found["constant"] = constant
    outputs = meter.outputs()
    if len(outputs) > 1:
        names = data.targets if len(data.targets) == len(outputs) else tuple(f"value {i}" for i in range(len(outputs)))
        found |= {"targets": list(names), "outputs": outputs}
    return found


def write_pictures(run: Run, task: Task, data: Data, result: dict[str, Any], batch: int) -> None:
    """Write the pictures of a run and, after them, the report that includes them.

    Args:
        run: the run.
        task: the task with the trained network, which is moved to the CPU.
        data: data with the test split.
        result: result of the run.
        batch: samples per batch.
    """
    from ..viz.attention import has_maps, plot_sample  # noqa: PLC0415
    from ..viz.figures import plot_samples  # noqa: PLC0415
    from ..viz.report import write_report  # noqa: PLC0415

    # On the device of the training, a pass over the test data takes seconds. The rest runs on the CPU.
    worst = worst_samples(task, data, batch=batch)
    network = task.network.cpu()
    real = data.name != "synthetic"  # accuracies on noise mean nothing, and streaming takes seconds
    heard = heard_accuracy(network, data) if real and task.metric == "accuracy" else None
    if heard is not None:
        write_json(run.folder / "heard.json", heard, indent=None)
    if has_maps(network):
        first = data.test.batch(torch.zeros(1, dtype=torch.long, device=data.test.inputs.device))
        plot_sample(network, first.inputs.cpu(), run.folder / "attention.png")
    if worst:
        panels = [panel for sample in worst for panel in sample.panels()]
        plot_samples(panels, run.folder / "worst.png", columns=4 if len(panels) == len(worst) else 6)
    write_report(run.folder, network, result, run.read_rows("metrics.csv"), run.read_rows("masks.csv"))


def _chosen_by(loop: Loop, metric: str) -> str:
    select = loop.settings.select
    if select == "average":
        count = loop.settings.average_last if loop.tail is None else loop.tail.steps
        return f"mean of the weights of the last {count} evaluated epochs"
    if select == "best" and loop.state.best_step:
        return f"validation {metric}"
    return "last epoch" if select == "last" else "last epoch, without a validation score"


def _epochs(
    loop: Loop,
    test: dict[str, float],
    last: dict[str, float] | None,
    averaged: dict[str, float] | None,
    best: dict[str, float] | None,
) -> dict[str, Any]:
    """Return validation and test metrics of the selected weights, the best epoch and the last epoch.

    Args:
        loop: the finished loop.
        test: test metrics of the selected weights.
        last: test metrics of the last epoch, if it is not the selected one.
        averaged: validation metrics of the averaged weights, if these are selected.
        best: test metrics of the best epoch, if it is neither the selected one nor the last.
    """
    rows = {int(row["step"]): row for row in loop.state.rows}
    select, last_step, best_step = loop.settings.select, loop.state.step, loop.state.best_step

    def epoch(step: int, metrics: dict[str, float]) -> dict[str, Any]:
        row = rows.get(step, {})
        validation = {key.removeprefix("val_"): value for key, value in row.items() if key.startswith("val_")}
        return {"epoch": int(row.get("epoch", loop.state.epoch)), "validation": validation, "test": metrics}

    chosen = epoch((best_step if select == "best" else 0) or last_step, test)
    if averaged is not None:
        chosen["validation"] = averaged
    found = {"selected": select, "chosen": chosen, "last": epoch(last_step, test if last is None else last)}
    if best_step and select != "best":
        found["best"] = epoch(best_step, best) if best is not None else found["last"]
    return found


@dataclass(frozen=True)
class WorstSample:
    """A sample and its prediction.

    Args:
        index: its position in the split.
        inputs: (channels, *space) input of the network, on the CPU.
        caption: the true target, the prediction and its probability; or the share of wrong pixels.
        classes: for a segmentation, the true and the predicted class of each pixel, with ``IGNORED`` for those that do
            not count.
    """

    index: int
    inputs: Tensor
    caption: str
    classes: tuple[Tensor, Tensor] | None = None

    def panels(self) -> list[tuple[Tensor, str]]:
        """Return the pictures of the sample with their captions: its input, then its true and predicted classes."""
        masks = [] if self.classes is None else list(zip(self.classes, ("true", "predicted"), strict=True))
        return [(self.inputs, self.caption), *masks]


@torch.no_grad()
def worst_samples(task: Task, data: Data, *, count: int = 8, batch: int = 256) -> list[WorstSample]:
    """Return the test samples with the largest loss, the worst first.

    There are none for points and query times, for tasks with a value per position, and for classes along a sequence.

    Args:
        task: the trained task.
        data: data with the test split and the names of the classes.
        count: number of samples to return.
        batch: samples per batch.
    """
    split = data.test
    axes = {"classification": 1, "regression": 1, "segmentation": 2}.get(task.task)  # least number of spatial axes
    if axes is None or split.coords is not None or split.at is not None or split.inputs.dim() < 2 + axes:
        return []
    device = next(task.network.parameters()).device
    task.eval()
    losses, outputs, targets = [], [], []
    scale = None
    for start in range(0, len(split), batch):
        part = split.batch(slice(start, start + batch)).to(device)
        prediction = task(part)
        losses.append(_losses(task.task, prediction, part).cpu())
        target = observed_target(target_of(part), part.mask) if task.task == "segmentation" else target_of(part)
        # The classes of all pixels fit in memory where their scores may not.
        outputs.append((prediction.argmax(dim=1) if task.task == "segmentation" else prediction).cpu())
        targets.append(target.cpu())
        scale = part.scale
    output, target = torch.cat(outputs), torch.cat(targets)
    if scale is not None:
        output, target = scale.undo(output), scale.undo(target)
    order = torch.cat(losses).argsort(descending=True)[:count].tolist()
    found = []
    for i in order:
        seen = split.batch(slice(i, i + 1))
        inputs = seen.inputs[0].cpu()
        if seen.mask is not None:
            inputs = inputs.masked_fill(~seen.mask[0].cpu(), float("nan"))
        classes = None
        if task.task == "segmentation":
            classes = target[i], torch.where(target[i] == IGNORED, IGNORED, output[i])
        found.append(WorstSample(i, inputs, _caption(task.task, output[i], target[i], data.classes), classes))
    return found


def _losses(task: str, prediction: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each sample."""
    assert batch.target is not None
    if task == "classification":
        return F.cross_entropy(prediction, batch.target, reduction="none")
    if task == "segmentation":
        target = observed_target(batch.target, batch.mask)
        total = F.cross_entropy(prediction, target, ignore_index=IGNORED, reduction="none").flatten(1).sum(dim=1)
        return total / (target != IGNORED).flatten(1).sum(dim=1).clamp(min=1)
    return (prediction - batch.target.view_as(prediction)).square().flatten(1).mean(dim=1)


def _caption(task: str, output: Tensor, target: Tensor, classes: Sequence[str]) -> str:
    if task == "classification":
        predicted, truth = int(output.argmax()), int(target)
        names = [classes[i] if i < len(classes) else str(i) for i in (truth, predicted)]
        return f"true {names[0]}, predicted {names[1]} ({float(output.softmax(dim=0)[predicted]):.0%})"
    if task == "segmentation":
        seen = target != IGNORED
        return f"{float((output != target)[seen].float().mean()) if bool(seen.any()) else 0:.1%} of the pixels wrong"
    values = [", ".join(f"{v:.3g}" for v in t.flatten()[:3].tolist()) for t in (target, output)]
    return f"true {values[0]}, predicted {values[1]}"

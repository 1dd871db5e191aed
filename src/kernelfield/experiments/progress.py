"""Progress of a training: a bar or lines in the terminal, loggers, and the summary at the end."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._checks import check_choice
from ..viz.report import shown_score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .loop import Progress

__all__ = ["LOGGERS", "Loggers", "check_loggers", "duration", "progress_bar", "summary", "time_left"]

#: names of loggers
LOGGERS = ("csv", "tensorboard", "wandb")
#: seconds between two lines of progress outside a terminal
LINE_SECONDS = 30.0


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback for ``on_progress`` of :func:`~.fitting.fit`.

    In a terminal it draws a bar with loss, metrics, throughput and remaining time. Elsewhere it writes a line with the
    expected time to standard error after the first steps, and another about every half minute.

    Args:
        title: text before the bar or before each line.
    """
    from rich.console import Console  # noqa: PLC0415

    console = Console(file=sys.stderr)
    if console.is_terminal:
        with _bar(title, console) as update:
            yield update
    else:
        yield _Lines(title)


@contextmanager
def _bar(title: str, console: Any) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bars(*columns, console=console) as bars:
        bar = bars.add_task(title, total=None, shown="", left="")
        metrics: dict[str, float] = {}

        def update(now: Progress) -> None:
            metrics.update(now.metrics)
            shown = f"{_scores(now.loss, metrics)} {now.rate:,.0f} samples/s"
            left = f"{_clock(now.seconds_left)} left"
            bars.update(bar, completed=now.step, total=now.steps, shown=shown, left=left)

        yield update


class _Lines:
    """Write progress as lines to standard error, the first at once, then one every ``LINE_SECONDS``."""

    def __init__(self, title: str) -> None:
        self.title, self.next = title, 0.0
        self.metrics: dict[str, float] = {}

    def __call__(self, now: Progress) -> None:
        self.metrics.update(now.metrics)
        if time.monotonic() < self.next or now.step >= now.steps:
            return
        self.next = time.monotonic() + LINE_SECONDS
        scores = _scores(now.loss, self.metrics)
        done = f"step {now.step:,} of {now.steps:,}{', ' * bool(scores)}{scores}"
        print(f"{self.title}: about {duration(now.seconds_left)} left, {done}", file=sys.stderr, flush=True)  # noqa: T201


def time_left(title: str, unit: str, *, quiet: bool = False) -> Callable[[int, int], None]:
    """Return a callback for work of known size, which writes the remaining time to standard error.

    It is silent for the first seconds, then writes a line about every half minute.

    Args:
        title: text before each line.
        unit: name of the counted items.
        quiet: whether to write nothing.
    """
    first: list[tuple[float, int]] = []  # time and amount of work at the first call; the time before it was preparation
    due = [0.0]

    def callback(done: int, total: int) -> None:
        now = time.monotonic()
        if not first:
            first.append((now, done))
            due[0] = now + 3.0
        begun, before = first[0]
        if quiet or done == before or now < due[0]:
            return
        left = (now - begun) / (done - before) * (total - done)
        if left < 1:
            return
        due[0] = now + LINE_SECONDS
        print(f"{title}: about {duration(left)} left, {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)  # noqa: T201

    return callback


def _scores(loss: float, metrics: dict[str, float]) -> str:
    parts = [] if math.isnan(loss) else [f"loss {loss:.3f}"]
    return " ".join([*parts, *(f"val {name} {value:.3f}" for name, value in metrics.items() if name != "loss")])


def duration(seconds: float) -> str:
    """Return a duration in words, with one or two digits.

    >>> [duration(s) for s in (0.4, 42, 100, 5_000, 100_000)]
    ['1 second', '42 seconds', '2 minutes', '83 minutes', '28 hours']
    """
    for size, unit in ((3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= 1.5 * size or size == 1:
            count = seconds / size
            number = f"{count:.1f}".removesuffix(".0") if size == 3600 and count < 10 else str(max(1, round(count)))
            return f"{number} {unit}{'' if number == '1' else 's'}"
    raise AssertionError


def summary(result: dict[str, Any]) -> list[str]:
    r"""Return the lines to print for a finished run: one per test, then its size and time.

    >>> found = {"metric": "accuracy", "metrics": {"test": {"accuracy": 0.97}, "step 2.0": {"accuracy": 0.95}},
    ...          "parameters": 9263, "epochs": 15, "seconds": 61.2}
    >>> print("\n".join(summary(found)))
    test accuracy                          97.0%
    same weights, every second sample      95.0%
    parameters 9,263, trained 15 epochs in 61 s
    """
    metric, dim = result["metric"], result.get("dim", 1)
    lines = []
    for name, values in result["metrics"].items():
        lines.append(f"{_label(name, metric, dim):<38} {shown_score(metric, values[metric], digits=1)}")
        if name == "test":
            lines += _other_epochs(result) + _against_constant(result)
    lines += [f"{_label(name, metric, dim)}: skipped, {reason}" for name, reason in result.get("skipped", {}).items()]
    if result.get("synthetic"):
        lines.append("trained on synthetic noise of the right shape, so these numbers mean nothing")
    epochs = f"{result['epochs']} epoch" + ("s" if result["epochs"] != 1 else "")
    lines.append(f"parameters {result['parameters']:,}, trained {epochs} in {result['seconds']:.0f} s")
    return lines


def _other_epochs(result: dict[str, Any]) -> list[str]:
    """Return the selection of the tested weights, and the test metrics of the best and the last epoch."""
    metric, chosen = result["metric"], result.get("chosen")
    if not isinstance(chosen, dict) or "epoch" not in chosen:
        return []
    labels = {"best": "of the best epoch by validation", "last": "of the last epoch"}
    select = result.get("selected", "best")
    lines = []
    for kind, label in labels.items():
        other = result.get(kind)
        if kind == select or not other or (other["epoch"] == chosen["epoch"] and select != "average"):
            continue
        text = f"  {label}, {other['epoch']}"
        lines.append(f"{text:<38} {shown_score(metric, other['test'][metric], digits=1)}")
    if lines and select == "best":
        lines.insert(0, f"  of the best epoch by validation, {chosen['epoch']} of {result['epochs']}")
    return lines


def _against_constant(result: dict[str, Any]) -> list[str]:
    """Return the scores of a constant prediction if the network is not far better, and those of each predicted value.

    It is far better if it has less than half of the constant's error.
    """
    metric, constant, test = result["metric"], result.get("constant", {}), result["metrics"]["test"]
    lines = []
    if metric == "accuracy" and metric in constant:
        if 1 - test["accuracy"] > (1 - constant["accuracy"]) / 2:
            shown = [("of the most frequent class alone", "accuracy", constant["accuracy"])]
            shown += [("area under the ROC curve", "auc", test["auc"])] if "auc" in test else []
            lines += [f"{'  ' + label:<38} {shown_score(name, value, digits=1)}" for label, name, value in shown]
    elif metric in ("mse", "mae") and test.get(metric, 0.0) > constant.get(metric, math.inf) / 2:
        lines.append(f"{'  of the mean of the training targets':<38} {shown_score(metric, constant[metric])}")
    if metric not in ("mse", "mae"):
        return lines
    for name, row, plain in zip(
        result.get("targets", ()), result.get("outputs", ()), constant.get("outputs", ()), strict=False
    ):
        lines.append(f"{'  of ' + name:<38} {shown_score(metric, row[metric])} (their mean: {plain[metric]:.4g})")
    return lines


def _label(name: str, metric: str, dim: int) -> str:
    kind, _, value = name.partition(" ")
    if name == "test":
        return f"test {metric}"
    if name == "step 2.0":
        return "same weights, every second sample" if dim == 1 else "same weights, half the resolution"
    labels = {
        "step": "at {} times the step",
        "drop": "with a share of {} missing",
        "turn": "rotated by {} degrees",
        "speed": "at {} times the speed",
    }
    try:
        return labels[kind].format(f"{float(value):g}")
    except (KeyError, ValueError):  # a test on other data, whose name is free
        return name


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Loggers:
    """Log the progress of a training to ``folder/logs``.

    Args:
        names: any of "csv", "tensorboard" and "wandb".
        folder: folder of the run.
        title: name of the experiment.
        settings: hyperparameters to log, nested mappings of plain values.

    >>> import tempfile
    >>> from pathlib import Path
    >>> Loggers([], Path(tempfile.mkdtemp()), "digits").names
    ()
    """

    def __init__(self, names: Sequence[str], folder: Path, title: str, settings: dict[str, Any] | None = None) -> None:
        self.names = check_loggers(names)
        self._loggers = [_MAKE[name](folder / "logs", title) for name in self.names]
        for logger in self._loggers:
            # Fabric's CSV logger does not store hyperparameters; recipe.yaml has them.
            if settings and not type(logger).__name__.startswith("CSV"):
                logger.log_hyperparams(settings)

    def log(self, now: Progress) -> None:
        """Log the loss, learning rate and speed at a step, and the validation metrics of an evaluated epoch."""
        values = {"train_loss": now.loss, "lr": now.lr, "samples_per_second": now.rate, "epoch": float(now.epoch)}
        values |= {f"val_{name}": value for name, value in now.metrics.items()}
        for logger in self._loggers:
            logger.log_metrics(values, step=now.step)

    def close(self, result: dict[str, Any] | None = None) -> None:
        """Log the test metrics of a finished run, if there are any, and close all loggers.

        Args:
            result: result of the run.
        """
        tests = {} if result is None else result["metrics"]
        values = {f"{test} {name}": value for test, metrics in tests.items() for name, value in metrics.items()}
        for logger in self._loggers:
            if result is not None:
                logger.log_metrics(values, step=result["steps"])
            logger.finalize("success" if result is not None else "aborted")


def check_loggers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of loggers without repetition; raise an error for an unknown or a missing one.

    >>> check_loggers(["csv", "csv"])
    ('csv',)
    """
    for name in names:
        check_choice("log", name, LOGGERS)
        if name in _CHECK:
            _CHECK[name]()
    return tuple(dict.fromkeys(names))


def _csv(folder: Path, title: str) -> Any:  # noqa: ARG001
    from lightning.fabric.loggers import CSVLogger  # noqa: PLC0415

    return CSVLogger(root_dir=folder, name="csv", flush_logs_every_n_steps=1)


def _tensorboard(folder: Path, title: str) -> Any:  # noqa: ARG001
    from lightning.fabric.loggers import TensorBoardLogger  # noqa: PLC0415

    return TensorBoardLogger(root_dir=folder, name="tensorboard")


def _wandb(folder: Path, title: str) -> Any:
    from lightning.pytorch.loggers import WandbLogger  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(name=title, project="kernelfield", save_dir=folder)


def _require(module: str, install: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"log {module!r} needs {module}: pip install {install}", name=module) from error


#: checks that the module of a logger is installed
_CHECK = {
    "tensorboard": lambda: _require("tensorboard", "'kernelfield[train]'"),
    "wandb": lambda: _require("wandb", "'kernelfield[wandb]'"),
}
_MAKE = {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb}

"""Loggers of Lightning by name: CSV files, TensorBoard, Weights & Biases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._checks import check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .loop import Progress

__all__ = ["LOGGERS", "Loggers"]

LOGGERS = ("csv", "tensorboard", "wandb")


class Loggers:
    """Log the progress of a training to ``folder/logs``.

    Args:
        names: any of "csv", "tensorboard" and "wandb".
        folder: of the run.
        title: of the experiment.
        settings: hyperparameters to log, nested mappings of plain values.

    >>> import tempfile
    >>> from pathlib import Path
    >>> Loggers([], Path(tempfile.mkdtemp()), "digits").names
    ()
    """

    def __init__(self, names: Sequence[str], folder: Path, title: str, settings: dict[str, Any] | None = None) -> None:
        self.names = tuple(dict.fromkeys(check_choice("log", name, LOGGERS) for name in names))
        self._loggers = [_MAKE[name](folder / "logs", title) for name in self.names]
        for logger in self._loggers:
            # The CSV logger of Fabric keeps no hyperparameters; recipe.yaml has them.
            if settings and not type(logger).__name__.startswith("CSV"):
                logger.log_hyperparams(settings)

    def log(self, now: Progress) -> None:
        """Log loss, learning rate and speed at a step, and the validation metrics of an evaluated epoch."""
        values = {"train_loss": now.loss, "lr": now.lr, "samples_per_second": now.rate, "epoch": float(now.epoch)}
        values |= {f"val_{name}": value for name, value in now.metrics.items()}
        for logger in self._loggers:
            logger.log_metrics(values, step=now.step)

    def close(self, result: dict[str, Any] | None = None) -> None:
        """Log the test metrics of a finished run, if there are any, and close all loggers.

        Args:
            result: of the run.
        """
        tests = {} if result is None else result["metrics"]
        values = {f"{test} {name}": value for test, metrics in tests.items() for name, value in metrics.items()}
        for logger in self._loggers:
            if result is not None:
                logger.log_metrics(values, step=result["steps"])
            logger.finalize("success" if result is not None else "aborted")


def _csv(folder: Path, title: str) -> Any:  # noqa: ARG001
    from lightning.fabric.loggers import CSVLogger  # noqa: PLC0415

    return CSVLogger(root_dir=folder, name="csv", flush_logs_every_n_steps=1)


def _tensorboard(folder: Path, title: str) -> Any:  # noqa: ARG001
    _require("tensorboard", "'kernelfield[train]'")
    from lightning.fabric.loggers import TensorBoardLogger  # noqa: PLC0415

    return TensorBoardLogger(root_dir=folder, name="tensorboard")


def _wandb(folder: Path, title: str) -> Any:
    _require("wandb", "'kernelfield[wandb]'")
    from lightning.pytorch.loggers import WandbLogger  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(name=title, project="kernelfield", save_dir=folder)


def _require(module: str, install: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"log {module!r} needs {module}: pip install {install}", name=module) from error


_MAKE = {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb}

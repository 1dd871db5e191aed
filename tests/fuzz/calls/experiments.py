"""Recipes, trainings and plots."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import kernelfield as kf
from kernelfield import experiments
from kernelfield.data.base import Batch
from kernelfield.experiments import custom_data, datasets, metrics, optim, recipe, recipe_files, robustness, run
from kernelfield.experiments.data_summary import data_kind, repeated_samples, split_sizes
from kernelfield.experiments.fitting import make_fabric
from kernelfield.experiments.predict import TrainedRun
from kernelfield.experiments.results import results_table
from kernelfield.viz import architecture, attention, clouds, families, figures, fits, groups, kernels, scalograms
from tests.experiments.helpers import small_data, small_recipe

from .call import Call

if TYPE_CHECKING:
    from kernelfield.data import Data

_FOLDER = tempfile.TemporaryDirectory()
_RUN = Path(_FOLDER.name) / "run"
_RECIPE = small_recipe("training.epochs=1", "training.batch=24")
_NET = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


_LEARNED = kf.DNArch(kf.CCNN(1, 2, size=8, channels=4, blocks=1, hidden=4))


def _path(name: str = "figure.png") -> str:
    return str(Path(_FOLDER.name) / name)


def _finished() -> str:
    """Return the folder of a finished run."""
    if not _RUN.exists():
        experiments.fit(_RECIPE, _RUN, data=small_data(24), report=False)
    return str(_RUN)


def _images() -> Data:
    return datasets.synthetic_data(kf.data.DataShape(in_channels=1, out_channels=2, size=[8, 8]), 4)


def _attentive() -> Any:
    return kf.GSANet(1, 2, group=kf.groups.Cyclic(4), channels=4, widths=((4,),), heads=2, neighborhood=3).eval()


def _first(split: Any) -> torch.Tensor:
    return split.batch(slice(0, 2)).inputs


_SECTIONS: list[Call] = [
    Call("experiments.Optimizer", recipe.Optimizer, dict),
    Call("experiments.Optimizer (sgd)", recipe.Optimizer, lambda: {"name": "sgd", "nesterov": True}),
    Call("experiments.Schedule", recipe.Schedule, dict),
    Call("experiments.Training", recipe.Training, dict),
    Call(
        "experiments.Recipe",
        experiments.Recipe,
        lambda: {"name": "a", "data": {"name": "digits"}, "model": {"name": "ccnn_4_140"}, "shape": _RECIPE.shape},
    ),
    Call(
        "experiments.recipe_from", recipe.recipe_from, lambda: {"mapping": _RECIPE.to_dict()}, ends_with=(ValueError,)
    ),
    Call("experiments.find_recipe", experiments.find_recipe, lambda: {"name": "digits"}),
    Call("experiments.list_recipes", experiments.list_recipes, lambda: {"pattern": "ch02*"}),
    Call("experiments.recipe_titles", recipe.recipe_titles, lambda: {"pattern": "digits"}),
    Call(
        "experiments.with_settings",
        experiments.with_settings,
        lambda: {"recipe": _RECIPE, "settings": ["training.epochs=2"]},
        ends_with=(ValueError,),
    ),
    Call("experiments.read_yaml", recipe_files.read_yaml, lambda: {"text": "a: 1"}),
    Call("experiments.parse_value", recipe_files.parse_value, lambda: {"text": "[1, 2]"}),
]

_TRAINING: list[Call] = [
    Call(
        "experiments.Task",
        experiments.Task,
        lambda: {"network": _NET, "out_channels": 2},
    ),
    Call("experiments.Meter", metrics.Meter, lambda: {"task": "classification", "out_channels": 2}),
    Call("experiments.main_metric", metrics.main_metric, lambda: {"task": "regression"}),
    Call(
        "experiments.task_loss",
        metrics.task_loss,
        lambda: {
            "task": "classification",
            "prediction": torch.randn(2, 3),
            "batch": Batch(torch.zeros(2, 1, 4), torch.tensor([0, 2])),
        },
    ),
    Call("experiments.parameter_groups", optim.parameter_groups, lambda: {"network": _NET, "lr": 0.1}),
    Call("experiments.make_optimizer", optim.make_optimizer, lambda: {"network": _NET, "settings": recipe.Optimizer()}),
    Call(
        "experiments.LearningRate",
        optim.LearningRate,
        lambda: {"settings": recipe.Schedule(), "steps_per_epoch": 2, "epochs": 3},
        lambda rate: rate.factor(1),
    ),
    Call("experiments.make_network", run.make_network, lambda: {"recipe": _RECIPE}),
    Call("experiments.make_task", run.make_task, lambda: {"recipe": _RECIPE, "network": _NET}),
    Call(
        "experiments.make_fabric",
        make_fabric,
        lambda: {"accelerator": "cpu"},
        unchecked=frozenset(["devices", "nodes"]),
    ),
    Call("experiments.split_sizes", split_sizes, lambda: {"data": small_data(8)}),
    Call("experiments.data_kind", data_kind, lambda: {"data": small_data(8)}),
    Call("experiments.repeated_samples", repeated_samples, lambda: {"data": small_data(8)}),
    Call("experiments.synthetic_data", datasets.synthetic_data, lambda: {"shape": _RECIPE.shape}),
    Call("experiments.at_step", robustness.at_step, lambda: {"split": small_data(8).test, "step": 2.0}, _first),
    Call("experiments.at_speed", robustness.at_speed, lambda: {"split": small_data(8).test, "speed": 2.0}, _first),
    Call(
        "experiments.with_dropped", robustness.with_dropped, lambda: {"split": small_data(8).test, "share": 0.2}, _first
    ),
    Call(
        "experiments.with_rotation",
        robustness.with_rotation,
        lambda: {"split": _images().test, "degrees": 10.0},
        _first,
    ),
    Call("experiments.data_settings", custom_data.data_settings, lambda: {"settings": ["data.label=a"]}),
    Call(
        "experiments.recipe_for",
        custom_data.recipe_for,
        lambda: {"data": small_data(8), "name": "own", "source": {"name": "csv_series", "root": "a.csv"}},
        ends_with=(ValueError,),
    ),
    Call("experiments.TrainedRun", TrainedRun, lambda: {"folder": _finished()}),
    Call("experiments.results_table", results_table, lambda: {"folder": _FOLDER.name}),
]

_PLOTS: list[Call] = [
    Call(
        "viz.plot_history",
        architecture.plot_history,
        lambda: {"history": [{"step": i, **_LEARNED.record()} for i in range(2)], "path": _path()},
    ),
    Call(
        "viz.architecture_table",
        architecture.architecture_table,
        lambda: {"rows": {"a": _LEARNED.record()}},
    ),
    Call("viz.plot_families", families.plot_families, lambda: {"path": _path()}),
    Call("viz.kernel_families", families.kernel_families, lambda: {"length": 20, "discrete": 4}),
    Call(
        "viz.plot_between_samples",
        families.plot_between_samples,
        lambda: {"layer": kf.CKConv(1, 2, size=8), "path": _path(), "fine": 2},
    ),
    Call(
        "viz.plot_output_histograms",
        families.plot_output_histograms,
        lambda: {"models": {"a": kf.CKConv(1, 2, size=8)}, "x": torch.randn(2, 1, 8), "path": _path()},
    ),
    Call("viz.plot_size_accuracy", families.plot_size_accuracy, lambda: {"points": {"a": {1.0: 2.0}}, "path": _path()}),
    Call("viz.plot_bandwidth", fits.plot_bandwidth, lambda: {"errors": {"a": {1.0: 2.0}}, "path": _path()}),
    Call(
        "viz.plot_curve_fits",
        fits.plot_curve_fits,
        lambda: {"fields": {"a": kf.fields.SIREN}, "path": _path(), "targets": {"b": torch.rand(9)}, "steps": 2},
    ),
    Call("viz.targets_of_chapter_2", fits.targets_of_chapter_2, lambda: {"points": 20}),
    Call(
        "viz.plot_frequencies",
        kernels.plot_frequencies,
        lambda: {"models": {"a": kf.CKConv(1, 2, size=8)}, "path": _path()},
    ),
    Call(
        "viz.plot_channel_images",
        kernels.plot_channel_images,
        lambda: {"model": kf.CKConv(1, 2, size=8), "path": _path(), "step": 1.0},
    ),
    Call("viz.has_maps", attention.has_maps, lambda: {"model": _NET}),
    Call(
        "viz.attention_maps",
        attention.attention_maps,
        lambda: {"model": _attentive(), "x": torch.randn(1, 1, 8, 8)},
    ),
    Call(
        "viz.orientations",
        attention.orientations,
        lambda: {"group": kf.groups.Cyclic(4), "maps": torch.rand(1, 4, 3, 3)},
    ),
    Call(
        "viz.plot_attention",
        attention.plot_attention,
        lambda: {
            "image": torch.rand(1, 8, 8),
            "maps": torch.rand(4, 8, 8),
            "group": kf.groups.Cyclic(4),
            "path": _path(),
        },
    ),
    Call(
        "viz.plot_samples",
        figures.plot_samples,
        lambda: {"samples": [(torch.rand(1, 8), "a"), (torch.rand(1, 8), "b")], "path": _path()},
    ),
    Call(
        "viz.plot_kernels",
        kernels.plot_kernels,
        lambda: {"model": kf.CKConv(1, 2, size=8), "path": _path(), "step": 1.0, "channels": 1},
    ),
    Call(
        "viz.predictions_under_rotation",
        groups.predictions_under_rotation,
        lambda: {"model": _NET, "image": torch.rand(1, 8, 8), "turns": 4},
    ),
    Call(
        "viz.plot_prediction_under_rotation",
        groups.plot_prediction_under_rotation,
        lambda: {"model": _NET, "image": torch.rand(1, 8, 8), "path": _path(), "turns": 4},
    ),
    Call(
        "viz.plot_gridification",
        clouds.plot_gridification,
        lambda: {
            "layer": kf.Gridify(2, 3, dim=2, grid=3, neighbors=2),
            "coords": 2 * torch.rand(7, 2) - 1,
            "path": _path(),
        },
    ),
    Call(
        "viz.plot_scalograms",
        scalograms.plot_scalograms,
        lambda: {
            "lifts": {"before": kf.LiftingConv(1, 2, group=kf.groups.Scale(2, dim=1), kernel_size=5)},
            "signal": torch.randn(1, 32),
            "path": _path(),
            "channels": 1,
        },
    ),
]

CALLS = [*_SECTIONS, *_TRAINING, *_PLOTS]

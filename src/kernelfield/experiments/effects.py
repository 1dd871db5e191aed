"""Settings without effect: those of a part that the network or the data do not have.

A setting that the user gave and that does nothing is an error. A setting that a recipe inherits from its family, or
from a recipe for another network, is announced.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._arguments import takes_argument
from ..groups import Bernoulli
from .evaluation import norms_with_statistics
from .optim import KINDS, parameter_kinds
from .regularizers import missing_part, read_penalties
from .settings import Optimizer, Schedule, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ..data.base import Data
    from .recipe import Recipe
    from .regularizers import Penalty

__all__ = ["ALWAYS", "CHECKED", "check_effects", "check_parts", "effective", "without_effect"]

_NOUNS = {"masks": "masks", "subsets": "learned distributions p(u)", "fields": "kernel networks", "biases": "biases"}
_NOUNS |= {"weights": "weight matrices"}


def _trained_kinds(network: nn.Module) -> set[str]:
    kinds = parameter_kinds(network)
    return {kinds[name] for name, parameter in network.named_parameters() if parameter.requires_grad}


def _missing_kind(network: nn.Module, kind: str) -> str:
    return "" if kind in _trained_kinds(network) else f"the network has no {_NOUNS[kind]} to train"


def _decayed(optimizer: Optimizer, network: nn.Module) -> str:
    if not optimizer.weight_decay:
        return "optimizer.weight_decay is 0"
    kinds = [entry for entry in optimizer.decayed if entry in KINDS]
    return next((reason for kind in kinds if (reason := _missing_kind(network, kind))), "")


def _weight_decay(optimizer: Optimizer, network: nn.Module) -> str:
    reasons = [_missing_kind(network, entry) if entry in KINDS else "" for entry in optimizer.decayed]
    return "" if "" in reasons else reasons[0]


#: settings of the optimiser that need a part of the network; each returns the reason for having no effect, or ""
_OPTIMIZER: dict[str, Callable[[Optimizer, nn.Module], str]] = {
    "mask_lr": lambda _, network: _missing_kind(network, "masks"),
    "subset_lr": lambda _, network: _missing_kind(network, "subsets"),
    "weight_decay": _weight_decay,
    "decayed": _decayed,
}


def _monitor(recipe: Recipe, data: Data | None) -> str:
    if data is None or data.validation is not None or recipe.schedule.split or recipe.schedule.monitor == "loss":
        return ""
    return "without validation data the schedule watches the training loss"


def _norm_batches(recipe: Recipe, network: nn.Module) -> str:
    if not recipe.training.norm_batches or norms_with_statistics(network):
        return ""
    return "the network has no batch norms with running statistics"


def _temperature(network: nn.Module) -> str:
    if any(isinstance(m, Bernoulli) and m.logits.requires_grad for m in network.modules()):
        return ""
    return "the network has no learned distribution over the elements of a finite group"


#: settings of a training that need a part of the network or of the data
_TRAINING: dict[str, Callable[[Recipe, nn.Module, Data | None], str]] = {
    "norm_batches": lambda recipe, network, _: _norm_batches(recipe, network),
    "patience": lambda _, __, data: "there are no validation data" if data and data.validation is None else "",
    "average_last": lambda recipe, *_: "" if recipe.training.select == "average" else "training.select is not average",
    "temperature": lambda _, network, __: _temperature(network),
}


def _step(recipe: Recipe, network: nn.Module) -> str:
    if recipe.shape.irregular:
        return "data at points have no grid"
    return "" if takes_argument(network.forward, "step") else "the network does not take the sampling step"


def _drop(network: nn.Module) -> str:
    lacks = [name for name in ("mask", "density") if not takes_argument(network.forward, name)]
    return f"the network does not take {' and '.join(lacks)} of the observed positions" if lacks else ""


#: tests of a trained network that some networks or data do not allow
_TESTS: dict[str, Callable[[Recipe, nn.Module], str]] = {
    "step": _step,
    "drop": lambda _, network: _drop(network),
    "turn": lambda recipe, _: (
        "" if len(recipe.shape.size) == 2 and not recipe.shape.irregular else "there are no images"
    ),
    "speed": lambda recipe, _: (
        "" if len(recipe.shape.size) == 1 and not recipe.shape.irregular else "there are no series on a grid"
    ),
}


def _noise(recipe: Recipe) -> str:
    form = recipe.data.get("form", "noise-padded" if recipe.data["name"].startswith("np") else "image")
    return "" if form == "noise-padded" else "data.form is not noise-padded"


#: options of loaders that act only beside another one or on some data: their default and the reason
_DATA: dict[str, tuple[Any, Callable[[Recipe, Data | None], str]]] = {
    "padding": ("zero", lambda recipe, _: "" if recipe.data.get("augment") else "data.augment is false"),
    "noise": ("fresh", lambda recipe, _: _noise(recipe)),
    "unit": (None, lambda _, data: "the series have no times" if data is not None and data.unit is None else ""),
}

#: arguments of networks that act on some data only: their default and the reason
_MODEL: dict[str, tuple[float, Callable[[Recipe], str]]] = {
    "kernel_dropout": (0.0, lambda recipe: "data at points have no sampled kernel" if recipe.shape.irregular else ""),
}

#: settings that can be without effect; those of the schedule depend on its name
CHECKED = frozenset(
    [f"optimizer.{key}" for key in _OPTIMIZER]
    + [f"schedule.{key}" for key in Schedule.owners]
    + [f"training.{key}" for key in _TRAINING]
    + [f"test.{key}" for key in _TESTS]
    + [f"data.{key}" for key in _DATA]
    + [f"model.{key}" for key in _MODEL]
    + ["regularizers"]
)
#: settings that always act, or that are refused elsewhere where they cannot
ALWAYS = frozenset(
    [f"optimizer.{key}" for key in ("name", "lr", "betas", "momentum", "nesterov")]
    + [f"schedule.{key}" for key in ("name", "warmup")]
    + [f"training.{field.name}" for field in dataclasses.fields(Training) if field.name not in _TRAINING]
    + ["test.data", "metric"]
)


def without_effect(recipe: Recipe, network: nn.Module, data: Data | None = None) -> dict[str, str]:
    """Return the settings of a recipe that differ from their defaults and do nothing, with the reasons.

    Args:
        recipe: the recipe.
        network: its network, frozen where the recipe freezes it.
        data: its data; without them, settings that need validation data are not checked.

    >>> from kernelfield import CCNN
    >>> from kernelfield.experiments import find_recipe, with_settings
    >>> recipe = with_settings(find_recipe("digits"), ["training.temperature=[1, 0.1]"])
    >>> without_effect(recipe, CCNN(1, 10, size=64, channels=4, blocks=1))
    {'training.temperature': 'the network has no learned distribution over the elements of a finite group'}
    """
    found = _optimizer_reasons(recipe.optimizer, network)
    for key, owners in Schedule.owners.items():
        if getattr(recipe.schedule, key) != getattr(Schedule, key, []) and recipe.schedule.name not in owners:
            found[f"schedule.{key}"] = f"schedule.name is {recipe.schedule.name}, and not {' or '.join(owners)}"
    if recipe.schedule.monitor and "schedule.monitor" not in found:
        found["schedule.monitor"] = _monitor(recipe, data)
    usual = Training()
    for key, training_reason in _TRAINING.items():
        if getattr(recipe.training, key) != getattr(usual, key):
            found[f"training.{key}"] = training_reason(recipe, network, data)
    found |= _penalty_reasons(read_penalties(recipe.regularizers), network)
    for key, test_reason in _TESTS.items():
        if recipe.test.get(key) not in (None, []):
            found[f"test.{key}"] = test_reason(recipe, network)
    for key, (default, data_reason) in _DATA.items():
        if recipe.data.get(key, default) != default:
            found[f"data.{key}"] = data_reason(recipe, data)
    for key, (usual_value, model_reason) in _MODEL.items():
        if recipe.model.get(key, usual_value) != usual_value:
            found[f"model.{key}"] = model_reason(recipe)
    return {key: reason for key, reason in found.items() if reason}


def check_effects(recipe: Recipe, network: nn.Module, data: Data | None = None) -> list[str]:
    """Raise a ValueError for a setting that the user gave and that does nothing; return a line about inherited ones.

    Args:
        recipe: the recipe; its ``given`` names the settings of the user.
        network: see :func:`without_effect`.
        data: see :func:`without_effect`.
    """
    found = without_effect(recipe, network, data)
    for key, reason in found.items():
        if any(_is_about(given, key) for given in recipe.given):
            raise ValueError(f"{key} must not be given here: it has no effect, since {reason}")
    if not found or recipe.training.freeze:  # that a frozen body does not train needs no line
        return []
    return [f"without effect: {', '.join(f'{key} ({reason})' for key, reason in found.items())}"]


def check_parts(network: nn.Module, optimizer: Optimizer, penalties: Sequence[Penalty]) -> None:
    """Raise a ValueError if the optimiser or a penalty has a setting for a part that the network does not have."""
    for key, reason in {**_optimizer_reasons(optimizer, network), **_penalty_reasons(penalties, network)}.items():
        if reason:
            raise ValueError(f"{key} must not be given for {type(network).__name__}: it has no effect, since {reason}")


def effective(recipe: Recipe, network: nn.Module, data: Data | None = None) -> Recipe:
    """Return a recipe in which settings without effect have their defaults.

    Args:
        recipe: see :func:`without_effect`.
        network: see :func:`without_effect`.
        data: see :func:`without_effect`.
    """
    found = without_effect(recipe, network, data)
    changes: dict[str, Any] = {}
    for section, usual in (("optimizer", Optimizer()), ("schedule", Schedule()), ("training", Training())):
        keys = [key.partition(".")[2] for key in found if key.startswith(f"{section}.")]
        changes[section] = replace(getattr(recipe, section), **{key: getattr(usual, key) for key in keys})
    for section in ("data", "model", "regularizers", "test"):
        values = getattr(recipe, section)
        changes[section] = {key: value for key, value in values.items() if f"{section}.{key}" not in found}
    return replace(recipe, **changes)


def _optimizer_reasons(optimizer: Optimizer, network: nn.Module) -> dict[str, str]:
    usual = Optimizer()
    return {
        f"optimizer.{key}": reason(optimizer, network)
        for key, reason in _OPTIMIZER.items()
        if getattr(optimizer, key) != getattr(usual, key)
    }


def _penalty_reasons(penalties: Sequence[Penalty], network: nn.Module) -> dict[str, str]:
    found = {p.name: missing_part(p, network) for p in penalties if p.weight}
    return {f"regularizers.{name}": f"the network has no {part}" for name, part in found.items() if part}


def _is_about(given: str, key: str) -> bool:
    """Return whether a given key is ``key``, a part of it, or the section that holds it."""
    return given == key or given.startswith(f"{key}.") or key.startswith(f"{given}.")

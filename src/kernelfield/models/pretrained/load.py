"""Build the network of a weight file and load its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._arguments import checked
from ..._kinds import TEXT
from .catalog import find_weight, list_weights, near_weights
from .weight_file import read_description, read_weight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

__all__ = ["build_described", "create_from_weight", "describe_weight", "load_tensors", "plain_arguments"]

#: arguments that describe the input; tensors are meaningless with values other than those of their training
_INPUT = ("in_channels", "size", "dim", "vocabulary")


@checked(name=TEXT)
def describe_weight(name: str) -> dict[str, Any]:
    """Return the description of a weight: recipe, preprocessing, classes, score, training and version.

    Args:
        name: MODEL.TAG, or a model, for its default weight.

    >>> describe_weight("flextcn_2.smnist")["score"]["metric"]
    'accuracy'
    """
    return read_description(find_weight(name))


def create_from_weight(
    name: str, *, pretrained: bool = True, num_classes: int | None = None, overrides: Mapping[str, Any] | None = None
) -> nn.Module:
    """Return the network of a weight, with its tensors or, if ``pretrained`` is False, newly initialised.

    Args:
        name: MODEL.TAG, or a model, for its default weight.
        pretrained: whether to load the tensors.
        num_classes: another number of classes; all tensors except the classifier's are then loaded.
        overrides: arguments of the network that replace those of the weight.
    """
    if pretrained and not list_weights(f"{name}.*"):
        from ..registry import list_models  # noqa: PLC0415

        if name in list_models():
            raise ValueError(f"pretrained must be False for {name!r}, which has no weights{near_weights(name)}")
    path = find_weight(name)
    description, tensors = read_weight(path) if pretrained else (read_description(path), None)
    return build_described(description, tensors, path, num_classes=num_classes, overrides=overrides or {})


def build_described(
    description: dict[str, Any],
    tensors: Mapping[str, Tensor] | None,
    where: Path,
    *,
    num_classes: int | None = None,
    overrides: Mapping[str, Any],
) -> nn.Module:
    """Return the network that a description names, with ``tensors`` if there are any."""
    from ..registry import create_model  # noqa: PLC0415

    arguments = plain_arguments(description["arguments"])
    name = description.get("name", where.name)
    if tensors is not None:
        _check_overrides(name, arguments, overrides)
    elif num_classes is not None:
        overrides = {**overrides, "out_channels": num_classes}
    network = create_model(description["model"], **{**arguments, **overrides})
    if tensors is not None:
        load_tensors(network, tensors, where)
    count = arguments.get("out_channels")
    asked = overrides.get("out_channels", count) if num_classes is None else num_classes
    if tensors is not None and asked != count:
        network.reset_classifier(asked)  # type: ignore[operator]
    # Set through vars, because nn.Module declares its attributes to be tensors and modules.
    vars(network)["pretrained_config"] = description if asked == count else {**description, "classes": []}
    return network


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments read from JSON as a network takes them, with tuples in place of lists."""

    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value

    return {name: plain(value) for name, value in arguments.items()}


def load_tensors(network: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Load all tensors, or raise a ValueError that lists the first differences in names or shapes."""
    want = network.state_dict()
    wrong = [
        f"{key}: {_shape(tensors, key)} in the file, {_shape(want, key)} in the network"
        for key in sorted({*tensors, *want})
        if key not in want or key not in tensors or tensors[key].shape != want[key].shape
    ]
    if wrong:
        more = f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(f"{where.name} does not fit the network: {'; '.join(wrong[:4])}{more}")
    network.load_state_dict(dict(tensors))


def _shape(tensors: Mapping[str, Tensor], key: str) -> object:
    return tuple(tensors[key].shape) if key in tensors else "nothing"


def _check_overrides(name: str, arguments: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    classes = arguments.get("out_channels")
    if "out_channels" in overrides and overrides["out_channels"] != classes:
        asked = overrides["out_channels"]
        raise ValueError(
            f"out_channels must be {classes}, the number of classes of {name}, got {asked}; num_classes={asked} loads "
            f"all weights but the classifier's, as reset_classifier({asked}) of the network does afterwards"
        )
    for key in _INPUT:
        if key in overrides and key in arguments and plain_arguments({key: overrides[key]})[key] != arguments[key]:
            raise ValueError(
                f"{key} must be {arguments[key]}, which {name} was trained with, got {overrides[key]}; "
                "kernelfield.data.preprocessing(network) converts other data"
            )

"""Observation of the layers of a network during a forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["choose_layer", "observe_layers"]

Seen = TypeVar("Seen")


def choose_layer(model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...], layer: str | None) -> str:
    """Return the name of the layer to plot: ``layer``, or the first layer of the given kinds.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.ReLU(), nn.Linear(2, 3), nn.Linear(3, 1))
    >>> choose_layer(net, nn.Linear, None)
    '1'
    """
    names = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    if not names:
        wanted = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise ValueError(f"model must have a layer {wanted}, got {type(model).__name__} without one")
    if layer is not None and layer not in names:
        raise ValueError(f"layer must be one of {', '.join(names)}, got {layer!r}")
    return names[0] if layer is None else layer


def observe_layers(
    model: nn.Module,
    x: Tensor,
    kinds: type[nn.Module] | tuple[type[nn.Module], ...],
    observe: Callable[[Any, Any], Seen],
) -> dict[str, Seen]:
    """Return ``observe(layer, its input)`` by name for each layer of ``kinds``, in the order of the forward pass.

    Args:
        model: the network, which runs in evaluation mode and then returns to its own mode.
        x: its input.
        kinds: classes of the layers.
        observe: called with each layer and the first argument of its forward pass.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    >>> observe_layers(net, torch.randn(5, 2), torch.nn.Linear, lambda layer, x: tuple(x.shape))
    {'0': (5, 2), '2': (5, 3)}
    """
    found: dict[str, Seen] = {}

    def hook_of(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(layer: nn.Module, arguments: tuple[Any, ...], _: Any) -> None:
            found[name] = observe(layer, arguments[0])

        return hook

    hooks = [m.register_forward_hook(hook_of(name)) for name, m in model.named_modules() if isinstance(m, kinds)]
    training = model.training
    try:
        model.eval()(x)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found

"""Observing the layers of a network during a forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["observe_layers"]

Seen = TypeVar("Seen")


def observe_layers(
    model: nn.Module,
    x: Tensor,
    kinds: type[nn.Module] | tuple[type[nn.Module], ...],
    observe: Callable[[Any, Any], Seen],
) -> dict[str, Seen]:
    """Return ``observe(layer, its input)`` for each layer of some kinds, by name, in the order of the forward pass.

    Args:
        model: the network, run in evaluation mode and left in its own.
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

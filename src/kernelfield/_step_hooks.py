"""What follows parameters without being asked in ``forward``: told after each step of any optimiser.

Some learned tensors decide about shapes: a mask's size about the points of a kernel, a subset of a group about the
number of its elements. Reading them makes the host wait for the device, so it is not done in ``forward``. Versions of
tensors do not tell either when it is needed: fused optimisers change parameters without counting.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch
    from torch import nn

__all__ = ["after_steps", "held", "is_held"]

Follower = TypeVar("Follower")

_followers: list[
    tuple[weakref.WeakSet[Any], Callable[[Any], Iterable[nn.Parameter]], Callable[[list[Any]], None], bool]
] = []

_holders = 0


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Tell no follower of steps inside the ``with`` block: of one that must not wait for the device."""
    global _holders  # noqa: PLW0603
    _holders += 1
    try:
        yield
    finally:
        _holders -= 1


def is_held() -> bool:
    """Return whether followers are not told."""
    return _holders > 0


def after_steps(
    parameters: Callable[[Follower], Iterable[nn.Parameter]],
    act: Callable[[list[Follower]], None],
    *,
    even_held: bool = False,
) -> weakref.WeakSet[Follower]:
    """Return a set to add followers to: those whose parameters an optimiser has changed are given to ``act`` together.

    Args:
        parameters: what a follower depends on.
        act: called after a step with all followers it concerns, if there are any.
        even_held: call it inside :func:`held` too, because it works on the device alone.

    >>> import torch
    >>> layer, moved = torch.nn.Linear(1, 1), []
    >>> after_steps(torch.nn.Module.parameters, moved.extend).add(layer)
    >>> layer.weight.grad = torch.ones(1, 1)
    >>> torch.optim.SGD([layer.weight], lr=0.1).step()
    >>> moved == [layer]
    True
    """
    members: weakref.WeakSet[Follower] = weakref.WeakSet()
    _followers.append((members, parameters, act, even_held))
    return members


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for members, parameters, act, even_held in _followers:
        if is_held() and not even_held:
            continue
        moved = [member for member in members if any(id(p) in stepped for p in parameters(member))]
        if moved:
            act(moved)


register_optimizer_step_post_hook(_after_step)

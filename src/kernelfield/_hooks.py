"""Hooks of modules and of optimisers, and change detection for parameters.

Hooks of modules: fast paths read the weights of a kernel's field and never call its parts. A hook must be called all
the same. Pruning and the older weight and spectral norms of torch compute the weight in a hook before each call, so
without that call they would use the weight of an earlier step. :func:`has_hooks` tells whether a module must be called.

Hooks of optimisers, for parameters that determine shapes: a learned mask size determines how many points a kernel has,
and a learned subset of a group how many elements it has. Shapes must be Python numbers. Reading them from a GPU makes
the host wait, so ``forward`` does not read them. A hook reads them after the optimiser's step, for all followers on a
device at once (:func:`on_optimizer_step`).

:func:`state_of` and :func:`differs` tell whether such a number is up to date. They compare the version counters of the
parameters, which in-place changes, loaded states and most optimisers increment. Fused optimisers do not, so the hook
increments the counters before it calls the followers. The counters also miss changes through ``.data`` (hand-written
weight averaging, ``vector_to_parameters``) and a parameter that is replaced for one call
(:func:`torch.func.functional_call`). On the CPU, states therefore include the values themselves, a few numbers per
parameter. On a GPU, reading values would make the host wait, so states hold memory addresses instead.

Torch calls one hook after the steps of all optimisers of the process. The first follower registers it; an import does
not. The hook ignores optimisers that hold no parameter of a follower, and it references followers weakly. A hook on
each optimiser would be narrower, but a layer never sees its optimiser.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "Followers",
    "State",
    "differs",
    "has_hooks",
    "has_own_hooks",
    "has_values",
    "is_vmapped",
    "on_optimizer_step",
    "pause_step_hooks",
    "set_during",
    "state_of",
    "step_hooks_paused",
    "weight_of",
    "with_hooks_of",
]

_FORWARD_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def has_hooks(*modules: nn.Module | None) -> bool:
    """Return whether one of the modules, or a part of one, has hooks, so that it must be called itself.

    >>> module = torch.nn.Sequential(torch.nn.Identity())
    >>> handle = module[0].register_forward_hook(print)
    >>> has_hooks(module)
    True
    """
    waiting = list(modules)  # a loop instead of a recursion: this runs for every layer at every forward pass
    while waiting:
        module = waiting.pop()
        if module is not None:
            forward = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001
            if forward or module._backward_hooks or module._backward_pre_hooks:  # noqa: SLF001
                return True
            waiting += module._modules.values()  # noqa: SLF001
    return False


def has_own_hooks(module: nn.Module) -> bool:
    """Return whether a module, not only one of its parts, has forward hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)  # noqa: SLF001


def weight_of(linear: nn.Module) -> Tensor:
    """Return the weight of a linear map without a bias, (out, in); a map with hooks is called.

    >>> weight_of(torch.nn.Linear(2, 3, bias=False)).shape
    torch.Size([3, 2])
    """
    weight: Any = linear.weight
    if not has_hooks(linear):
        return weight
    return linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)).mT


def with_hooks_of(module: nn.Module, replacement: nn.Module) -> nn.Module:
    """Return ``replacement`` with the forward hooks of the module whose place it takes.

    >>> module = torch.nn.Identity()
    >>> handle = module.register_forward_hook(lambda module, inputs, output: 2 * output)
    >>> with_hooks_of(module, torch.nn.ReLU())(torch.tensor(3.0))
    tensor(6.)
    """
    for name in _FORWARD_HOOKS:
        getattr(replacement, name).update(getattr(module, name))
    return replacement


Follower = TypeVar("Follower")
Value = TypeVar("Value")

#: identity, version and content of each tensor
State: TypeAlias = "list[tuple[int, int, Any]]"

#: a state holds the values of tensors up to this number of elements
_MOST = 4096
_PLAIN = (Tensor, nn.Parameter)

#: one value per context, so a training that captures a CUDA graph does not stop the hooks of another thread
_paused: ContextVar[bool] = ContextVar("kernelfield_step_hooks_paused", default=False)


@contextlib.contextmanager
def set_during(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a context variable inside the ``with`` block.

    >>> number = ContextVar("number", default=0)
    >>> with set_during(number, 1):
    ...     number.get()
    1
    """
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


@contextlib.contextmanager
def pause_step_hooks() -> Iterator[None]:
    """Skip the hooks after steps inside the ``with`` block, for code that must not wait for the device.

    >>> with pause_step_hooks():
    ...     step_hooks_paused()
    True
    """
    with set_during(_paused, True):
        yield


def step_hooks_paused() -> bool:
    """Return whether :func:`pause_step_hooks` is in effect; False while a compiler traces."""
    return not torch.compiler.is_compiling() and _paused.get()


_order = itertools.count()


class Followers(Generic[Follower]):
    """A weak set of objects to call after optimiser steps that change their parameters; see :func:`on_optimizer_step`.

    Args:
        parameters: returns the parameters that a follower depends on.
        act: called once after a step, with all followers whose parameters the optimiser holds.
        while_paused: whether to call ``act`` inside :func:`pause_step_hooks` too.
        also: whether to call ``act`` with a follower whose parameters the optimiser does not hold.
    """

    def __init__(
        self,
        parameters: Callable[[Follower], Iterable[nn.Parameter]],
        act: Callable[[list[Follower]], None],
        while_paused: bool,
        also: Callable[[Follower], bool] | None = None,
    ) -> None:
        self._parameters, self._act, self._while_paused, self._also = parameters, act, while_paused, also
        self._members: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.order = next(_order)

    def add(self, follower: Follower) -> None:
        """Add a follower; it leaves the set when nothing else refers to it."""
        with self._lock:
            self._members.add(follower)
        _hook.install(self)

    def __iter__(self) -> Iterator[Follower]:
        with self._lock:
            return iter(list(self._members))

    def call(self, stepped: dict[int, Tensor]) -> None:
        """Call ``act`` with the followers of the ``stepped`` parameters, which are given by id."""
        if step_hooks_paused() and not self._while_paused:
            return
        moved: list[Follower] = []
        changed: dict[int, Tensor] = {}
        for member in self:
            own = {id(p): p for p in self._parameters(member) if id(p) in stepped}
            if own or (self._also is not None and self._also(member)):
                moved.append(member)
                changed |= own
        if moved:
            torch.autograd.graph.increment_version(list(changed.values()))
            self._act(moved)


class _Hook:
    """The hook that torch calls; it calls the sets of followers in the order in which they were made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: tuple[Followers[Any], ...] = ()

    def install(self, followers: Followers[Any]) -> None:
        with self._lock:
            if not self._sets:
                register_optimizer_step_post_hook(self)
            if followers not in self._sets:
                self._sets = tuple(sorted((*self._sets, followers), key=lambda each: each.order))

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        stepped = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        for followers in self._sets:
            followers.call(stepped)


_hook = _Hook()


def on_optimizer_step(
    parameters: Callable[[Follower], Iterable[nn.Parameter]],
    act: Callable[[list[Follower]], None],
    *,
    while_paused: bool = False,
    also: Callable[[Follower], bool] | None = None,
) -> Followers[Follower]:
    """Return an empty set of followers; after a step, ``act`` gets those whose parameters the optimiser holds.

    Args:
        parameters: returns the parameters that a follower depends on.
        act: called once after a step, with all followers whose parameters the optimiser holds.
        while_paused: whether to call ``act`` inside :func:`pause_step_hooks` too, for work that never waits for the
            device.
        also: whether to call ``act`` with a follower whose parameters the optimiser does not hold, such as a weight
            average, whose parameters change without a step.

    >>> layer, moved = torch.nn.Linear(1, 1), []
    >>> followers = on_optimizer_step(torch.nn.Module.parameters, moved.extend)
    >>> followers.add(layer)
    >>> layer.weight.grad = torch.ones(1, 1)
    >>> torch.optim.SGD([layer.weight], lr=0.1).step()
    >>> moved == [layer]
    True
    """
    return Followers(parameters, act, while_paused, also)


class _Address(int):
    """The memory address of a tensor whose values are not compared."""


def state_of(tensors: Iterable[Tensor]) -> State:
    """Return the state of tensors, to compare with a later one by :func:`differs`."""
    # This runs for every mask at every forward pass. A NaN is not equal to itself, so a mask with a NaN is read again.
    plain = not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())  # noqa: SLF001
    return [
        (
            id(t),
            -1 if t.is_inference() else t._version,  # noqa: SLF001
            t.tolist() if plain and t.is_cpu and type(t) in _PLAIN and t.numel() <= _MOST else _content(t),
        )
        for t in tensors
    ]


def differs(before: State | None, now: State) -> bool:
    """Return whether a tensor was replaced or changed between two states; true if there is no earlier one.

    >>> x = torch.zeros(2)
    >>> before = state_of([x])
    >>> _ = x.data.fill_(1.0)
    >>> differs(before, state_of([x]))
    True
    """
    if before == now:
        return False
    if before is None or len(before) != len(now):
        return True
    # The content is None where it cannot be read, such as under a TorchDispatchMode.
    return any(a[:2] != b[:2] or (a[2] != b[2] and None not in (a[2], b[2])) for a, b in zip(before, now, strict=True))


def has_values(state: State) -> bool:
    """Return whether a state holds the values of all its tensors, so that it shows every change.

    >>> has_values(state_of([torch.zeros(2)])), has_values(state_of([torch.zeros(10_000)]))
    (True, False)
    """
    return all(content is not None and type(content) is not _Address for *_, content in state)


def _content(tensor: Tensor) -> Any:
    """Return the values of a small CPU tensor, the address of any other tensor, or None if neither can be read."""
    plain = _unwrapped(tensor)
    if type(plain) not in _PLAIN or torch._C._len_torch_dispatch_stack():  # noqa: SLF001
        return None
    if plain.device.type != "cpu":
        return _Address(plain.data_ptr())
    return plain.tolist() if plain.numel() <= _MOST else _Address(plain.data_ptr())


def is_vmapped(tensors: Iterable[Tensor]) -> bool:
    """Return whether one of the tensors has a value for each sample of :func:`torch.vmap`.

    >>> torch.vmap(lambda x: x * is_vmapped([x]))(torch.ones(2))
    tensor([1., 1.])
    """
    return torch._C._are_functorch_transforms_active() and any(_unwrapped(t) is None for t in tensors)  # noqa: SLF001


def _unwrapped(tensor: Tensor) -> Any:
    """Return the tensor behind the wrappers of torch.func; None if :func:`torch.vmap` has batched it."""
    if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return tensor
    functorch = torch._C._functorch  # noqa: SLF001
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return None
        tensor = functorch.get_unwrapped(tensor)
    return tensor

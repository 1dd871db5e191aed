"""The modules and optimisers that a captured function uses.

A function does not declare the modules and optimisers that it uses, so its first calls are watched. Global hooks of
torch report the modules that it calls and the optimisers that it steps. The hooks are removed at the end of each
watched call.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..groups import Distribution
from ..ops.backend import fast_paths
from .host_calls import HostCalls, NotReady
from .host_variables import ModuleSettings
from .optimizers import CapturableOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

__all__ = ["Snapshot", "Watch"]


class Watch:
    """The modules, parameters and optimisers that a function uses.

    Args:
        device: type of the device that runs graphs.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.modules: list[nn.Module] = []
        self.parameters: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.distributions: list[Distribution] = []
        self.optimizers: dict[int, CapturableOptimizer] = {}
        #: number of optimiser steps in this call
        self.steps = 0
        self._known: set[int] = set()
        self._settings: ModuleSettings | None = None
        self._recording: HostCalls | None = None

    @contextlib.contextmanager
    def calls(self, recording: HostCalls | None = None) -> Iterator[None]:
        """Watch the block.

        Args:
            recording: the host calls of a recording, in which no module or optimiser may be used for the first time.
        """
        thread = threading.get_ident()

        def mine(act: Callable[[Any], None]) -> Callable[..., None]:
            def hook(used: Any, *_: Any) -> None:
                if threading.get_ident() == thread:
                    act(used)

            return hook

        self.steps, self._recording = 0, recording
        if recording is not None:
            for optimizer in self.optimizers.values():
                optimizer.enter()  # also code outside the optimiser's step then reads the rate on the device
        handles = [
            register_module_forward_pre_hook(mine(self._before_forward)),
            register_optimizer_step_pre_hook(mine(self._before_step)),
            register_optimizer_step_post_hook(mine(self._after_step)),
        ]
        try:
            yield
            for optimizer in self.optimizers.values() if recording is not None else ():
                optimizer.check_rates()
        finally:
            for handle in handles:
                handle.remove()
            for optimizer in self.optimizers.values():
                optimizer.leave()
            self._recording = None

    def _before_forward(self, module: nn.Module) -> None:
        if self._recording is not None:
            if any(module is average or module is average.module for average in self._recording.averages):
                raise RuntimeError("averaged weights are used after their update")
            if id(module) not in self._known:
                raise NotReady(f"{type(module).__name__} is used for the first time")
        self._add_modules(module)

    def _add_modules(self, module: nn.Module) -> None:
        if id(module) in self._known:
            return
        for each in module.modules():
            if id(each) in self._known:
                continue
            self._known.add(id(each))
            self.modules.append(each)
            self._add(self.parameters, each.parameters(recurse=False))
            self._add(self.buffers, each.buffers(recurse=False))
            if isinstance(each, Distribution):
                self.distributions.append(each)

    def _add(self, target: list[Any], tensors: Any) -> None:
        for tensor in tensors:
            if id(tensor) not in self._known:
                self._known.add(id(tensor))
                target.append(tensor)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.steps += 1
        if id(optimizer) not in self.optimizers:
            if self._recording is not None:
                raise NotReady("the optimiser has not taken a step yet")
            self.optimizers[id(optimizer)] = CapturableOptimizer(optimizer, self.device)
        known = self.optimizers[id(optimizer)]
        self._add(self.parameters, known.parameters)
        if self._recording is None:
            known.enter()
        else:
            known.check_rates()

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self.optimizers and self._recording is None:
            self.optimizers[id(optimizer)].leave()

    @property
    def settings(self) -> ModuleSettings:
        """The attributes of all modules."""
        if self._settings is None:
            self._settings = ModuleSettings(self.device)
        if len(self._settings.modules) < len(self.modules):
            self._settings.add(self.modules[len(self._settings.modules) :])
        return self._settings

    def add_parameters(self, tensors: Iterable[Tensor]) -> None:
        """Watch parameters that belong to no module."""
        self._add(self.parameters, tensors)

    def addresses(self) -> list[int]:
        """Return the identities of the parts of all modules, and the addresses of parameters and buffers."""
        parts = self.settings.parts()
        return parts + [t.data_ptr() for t in self.parameters] + [t.data_ptr() for t in self.buffers]

    def modes(self) -> Hashable:
        """Return the settings, besides the arguments, that determine the operations of a step."""
        device = self.device
        return (
            tuple([m.training for m in self.modules]),
            tuple([p.requires_grad for p in self.parameters]),
            self.settings.read(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            fast_paths(),
        )

    def hyperparameters(self) -> Hashable:
        """Return the options of optimisers that are constants of a graph."""
        return tuple(optimizer.hyperparameters() for optimizer in self.optimizers.values())

    def release(self) -> None:
        """Restore the original options of the optimisers."""
        for optimizer in self.optimizers.values():
            optimizer.release()


class Snapshot:
    """References to gradients, buffers and optimiser states, which a recording may replace.

    Args:
        watch: the modules and optimisers that the function uses.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.gradients = [(p, p.grad) for p in watch.parameters]
        self._versions = [(t, t._version) for t in (*watch.parameters, *watch.buffers)]  # noqa: SLF001
        self._buffers = [(m, dict(m._buffers)) for m in watch.modules]  # noqa: SLF001
        self._optimizers = [
            (known.optimizer, {p: dict(state) for p, state in known.optimizer.state.items()})
            for known in watch.optimizers.values()
        ]

    def restore(self) -> None:
        """Restore all references."""
        self.restore_gradients()
        for module, buffers in self._buffers:
            module._buffers.update(buffers)  # noqa: SLF001
        for optimizer, states in self._optimizers:
            optimizer.state.clear()
            optimizer.state.update(states)

    def restore_gradients(self) -> None:
        """Restore the gradients that the parameters had."""
        for parameter, gradient in self.gradients:
            parameter.grad = gradient

    def changed(self) -> list[Tensor]:
        """Return changed parameters and buffers, and all parameters of optimisers, which may not count versions."""
        stepped = [p for known in self._watch.optimizers.values() for p in known.parameters]
        ids = set(map(id, stepped))
        return stepped + [t for t, version in self._versions if t._version != version and id(t) not in ids]  # noqa: SLF001

    def rebound(self) -> str:
        """Return a message if a buffer or an optimiser's state was replaced since the snapshot, else ""."""
        for module, buffers in self._buffers:
            for name, value in buffers.items():
                if module._buffers.get(name) is not value:  # noqa: SLF001
                    return f"{type(module).__name__} replaces its buffer {name!r}; change it in place"
        for optimizer, states in self._optimizers:
            now = optimizer.state
            same = all(now[p].get(name) is v for p, s in states.items() for name, v in s.items() if torch.is_tensor(v))
            if not same:
                return f"{type(optimizer).__name__} replaces its state in every step"
        return ""

    def check_complete(self) -> None:
        """Raise :class:`NotReady` if an optimiser has new state since the snapshot."""
        for optimizer, states in self._optimizers:
            if {p: set(state) for p, state in optimizer.state.items()} != {p: set(s) for p, s in states.items()}:
                raise NotReady("an optimiser has new state")

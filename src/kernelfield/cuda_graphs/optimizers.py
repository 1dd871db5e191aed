"""Optimisers in a captured step, with counters and learning rates on the device.

Outside the step the learning rate of an optimiser stays a float, which schedules and loops set as usual. Inside the
captured step it is a tensor on the device, which is filled before each replay if the rate has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .host_variables import constant

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["CapturableOptimizer"]

#: state that is kept on the host unless an optimiser is capturable
_COUNTERS = {"step", "mu_product"}


class CapturableOptimizer:
    """An optimiser whose steps can be part of a CUDA graph.

    The option ``capturable`` is switched on in optimisers that have it, and :class:`torch.optim.SGD` becomes fused. In
    any other optimiser the learning rates are constants of the graph, and no other state may be on the host.

    Args:
        optimizer: the optimiser.
        device: type of the device that runs the graph.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: str) -> None:
        self.optimizer, self.device = optimizer, device
        #: original options of each group, to restore
        self._options: list[dict[str, Any]] = []
        self._rates: list[Tensor | None] = []
        self._floats: list[Any] = []
        #: the learning rates that are on the device, in a form that can be compared
        self._seen: list[Any] = []
        #: versions of the rates on the device when they were put in place
        self._versions: list[int | None] = []
        self._inside = False
        #: incremented when groups or state of the optimiser are replaced and so have other addresses
        self._generation = 0
        self._groups: list[dict[str, Any]] = []
        self._state = optimizer.state
        self.prepare()

    @property
    def parameters(self) -> Iterator[Tensor]:
        """The parameters of all groups."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def prepare(self) -> None:
        """Make the optimiser capturable; groups that are already prepared stay as they are."""
        self._notice_loading()
        for group in self.optimizer.param_groups[len(self._rates) :]:
            self._groups.append(group)
            changed: dict[str, Any] = {}
            if all(p.device.type == self.device for p in group["params"]):
                changed = self._new_options(group)
            self._options.append({name: group[name] for name in changed})
            rate = changed.pop("lr", None)
            group.update(changed)
            self._rates.append(rate)
            self._floats.append(None)
            self._seen.append(None)
            self._move_counters(group)

    def _notice_loading(self) -> None:
        """Start over if ``load_state_dict`` has replaced groups and state."""
        groups = self.optimizer.param_groups
        same = len(groups) >= len(self._groups) and all(a is b for a, b in zip(groups, self._groups, strict=False))
        if not same or self.optimizer.state is not self._state:
            self._generation += 1
            self._state = self.optimizer.state
            self._groups, self._options, self._rates, self._floats, self._seen = [], [], [], [], []

    def _new_options(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a group to change, with a tensor as its learning rate."""
        changed: dict[str, Any] = {}
        if "capturable" in group:
            changed["capturable"] = True
            if not group.get("fused") and not group["differentiable"]:
                changed["foreach"] = True  # some of the other implementations read the learning rate on the host
        elif isinstance(self.optimizer, torch.optim.SGD) and not group["differentiable"]:
            # The other implementations of SGD copy a tensor learning rate to the host.
            changed |= {"fused": True, "foreach": False}
        else:
            return changed
        if not isinstance(group["lr"], Tensor) or group["lr"].device.type != self.device:
            changed["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
        return changed

    def _move_counters(self, group: dict[str, Any]) -> None:
        """Move the counters of steps to the parameters' device, where the ``capturable`` arithmetic expects them."""
        for p in group["params"] if group.get("capturable") else ():
            state = self.optimizer.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() == 0 and value.device != p.device:
                    state[name] = value.to(p.device)

    def enter(self) -> None:
        """Use learning rates on the device; called before the optimiser's step."""
        self.prepare()
        if not self._inside:
            self.fill()
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                if rate is not None:
                    group["lr"] = rate
            self._inside = True
            self._versions = [None if rate is None else rate._version for rate in self._rates]  # noqa: SLF001

    def check_rates(self) -> None:
        """Raise a RuntimeError if a function that is recorded has set a learning rate."""
        for group, rate, version in zip(self.optimizer.param_groups, self._rates, self._versions, strict=False):
            if rate is not None and (group["lr"] is not rate or rate._version != version):  # noqa: SLF001
                raise RuntimeError("the function sets the learning rate; use a scheduler, or set it outside")

    def leave(self) -> None:
        """Restore the user's learning rates; called after the optimiser's step."""
        if self._inside:
            for group, rate, value in zip(self.optimizer.param_groups, self._rates, self._floats, strict=True):
                if rate is not None:
                    group["lr"] = value
            self._inside = False

    def fill(self) -> None:
        """Copy changed learning rates to the device."""
        for i, (group, rate) in enumerate(zip(self.optimizer.param_groups, self._rates, strict=True)):
            if rate is None or self._inside:
                continue
            value = group["lr"]
            self._floats[i] = value
            seen = constant(value, self.device) if isinstance(value, Tensor) else value
            if seen != self._seen[i] or (isinstance(value, Tensor) and value.device.type == self.device):
                rate.fill_(value)
                self._seen[i] = seen

    def hyperparameters(self) -> Hashable:
        """Return the options that are constants of a graph."""
        self.prepare()
        found: list[Hashable] = [self._generation]
        for i, group in enumerate(self.optimizer.param_groups):
            on_device = self._rates[i] is not None
            found += map(id, group["params"])
            found += [
                constant(value, self.device)
                for name, value in group.items()
                if name != "params" and not (name == "lr" and on_device)
            ]
        return tuple(found)

    def host_state(self) -> Any:
        """Return the state on the host, where a replay cannot change it, in a form that can be compared."""
        found = {}
        for p, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, (bool, int, float)):
                    found[id(p), name] = value
                elif isinstance(value, Tensor) and value.device.type != self.device:
                    found[id(p), name] = value._version  # noqa: SLF001
        return found

    def release(self) -> None:
        """Undo :meth:`prepare`."""
        self.leave()
        for group, options in zip(self.optimizer.param_groups, self._options, strict=False):
            options.pop("lr", None)
            group.update(options)
            if options.get("capturable") is False and not group.get("fused"):
                self._move_back(group["params"])
        self._groups, self._rates, self._options, self._floats, self._seen = [], [], [], [], []

    def _move_back(self, parameters: list[Tensor]) -> None:
        """Move counters to the host, where optimisers that are not capturable read them in every step."""
        for p in parameters:
            state = self.optimizer.state.get(p, {})
            for name in _COUNTERS.intersection(state):
                state[name] = state[name].cpu()

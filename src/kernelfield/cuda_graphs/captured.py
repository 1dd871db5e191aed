"""A function whose calls are replayed as CUDA graphs."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._hooks import pause_step_hooks
from ..layers.continuous.learned_size import DelayedSizes
from .backend import CudaBackend
from .graph import Graph, is_nested, nesting
from .host_calls import HostCalls, NotReady, deferred_calls
from .host_variables import HostVariables
from .recording import cause, reason_of, without_autocast_cache
from .tree import UnsupportedValue, constants, flatten, map_tensors, rebuild, signature
from .watch import Snapshot, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from .backend import Backend

__all__ = ["CaptureWarning", "CapturedFunction"]

#: names of the parts of a graph's key, for messages
_KEY_PARTS = (
    "the arguments", "learned sizes", "modes of modules", "options of an optimiser", "gradients", "variables",
)  # fmt: skip
#: number of keys after which a function without any graph runs eagerly for good; and of new keys one after the other
_MAX_KEYS = 64
#: number of recordings to repeat if the function does something for the first time
_MAX_RETRIES = 10


class CaptureWarning(UserWarning):
    """Warning that a captured function runs eagerly, with the reason."""


class CapturedFunction:
    """A function whose calls are replayed as CUDA graphs; made by :func:`capture`.

    Args:
        function: a step on the device.
        warmup: eager calls with the same key before a capture.
        max_graphs: number of graphs to keep.
        enabled: whether to capture at all.
        warn: whether to warn if the function runs eagerly.
        label: name of the function in warnings.
        backend: makes the backend that records graphs; that of the current CUDA device if not given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        warmup: int = 2,
        max_graphs: int = 8,
        enabled: bool = True,
        warn: bool = True,
        label: str = "",
        backend: Callable[[], Backend] | None = None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function, self.warmup, self.max_graphs, self.enabled = function, warmup, max_graphs, enabled
        self._name = getattr(function, "__name__", "")
        self._lock = threading.RLock()
        #: reason why the function runs eagerly; "" if it does not
        self.refusal = ""
        #: number of graphs captured so far
        self.graphs = 0
        name = getattr(function, "__qualname__", type(function).__name__)
        self._warn, self._make_backend, self._label = warn, backend, label or f"kf.capture: {name}"
        self._backend: Backend | None = None
        self._graphs: dict[Any, Graph] = {}
        self._call_counts: dict[Any, int] = {}
        #: the form of the last result, by arguments
        self._forms: dict[Hashable, Hashable] = {}
        self._sizes: DelayedSizes | None = None
        self._start_over()
        self._variables = HostVariables(function, "cuda")
        self._retries = self._new_keys = 0
        self._warned: set[str] = set()

    @property
    def summary(self) -> str:
        """A line for logs, with the number of graphs or the reason why there are none."""
        return f"steps not captured: {self.refusal}" if self.refusal else f"steps as {self.graphs} CUDA graphs"

    @property
    def is_eager(self) -> bool:
        """Whether all calls run eagerly from now on."""
        return not self.enabled or bool(self.refusal)

    def __set_name__(self, owner: type, name: str) -> None:
        """Note the name of a method, under which each instance keeps its captured method."""
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> CapturedFunction:
        """Return the captured method of an instance; each instance has its own graphs."""
        if instance is None:
            return self
        options: dict[str, Any] = {"warmup": self.warmup, "max_graphs": self.max_graphs, "enabled": self.enabled}
        bound = type(self)(
            types.MethodType(self.function, instance), **options, warn=self._warn, backend=self._make_backend
        )
        bound._name = self._name  # noqa: SLF001
        instance.__dict__[self._name] = bound
        return bound

    def __reduce__(self) -> Any:
        """Copy and pickle the function without its graphs, a method by its instance and name."""
        owner = getattr(self.function, "__self__", None)
        if owner is not None and getattr(owner, "__dict__", {}).get(self._name) is self:
            return getattr, (owner, self._name)
        if owner is None and getattr(sys.modules.get(self.__module__), self._name, None) is self:
            return self._name
        options: dict[str, Any] = {"warmup": self.warmup, "max_graphs": self.max_graphs, "enabled": self.enabled}
        options |= {"warn": self._warn, "label": self._label, "backend": self._make_backend}
        return functools.partial(type(self), **options), (self.function,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Tensors in the result are detached; a replay returns copies of them."""
        if is_nested():  # its operations become part of the graph around it
            return map_tensors(Tensor.detach, self.function(*args, **kwargs))
        with self._lock:
            return self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> Any:
        if not self._prepare():
            return self._eager(args, kwargs)
        try:
            tensors, form = flatten((args, kwargs))
        except UnsupportedValue as error:
            self._refuse(f"an argument is a {error}; pass tensors, containers of tensors, numbers or strings")
            return self._eager(args, kwargs)
        if any(t.requires_grad for t in tensors):
            self._refuse("an argument requires a gradient")
        elif self._sizes is None or self._addresses != self._watch.addresses():
            return self._discover(tensors, args, kwargs)
        elif None in (sizes := tuple(d.size() for d in self._watch.distributions)):
            self._refuse("the number of elements of a group is drawn at every step")
        else:
            return self._step(tensors, form, sizes)
        return self._eager(args, kwargs)

    def reset(self) -> None:
        """Drop all graphs; the next calls capture new ones."""
        if self._backend is not None:
            self._backend.drop()
        self._graphs.clear()
        self._call_counts.clear()

    # Eager calls

    def _prepare(self) -> bool:
        """Return whether calls may be captured; set up the backend at the first call."""
        if self.is_eager:
            return False
        if self._backend is None:
            if self._make_backend is None and not torch.cuda.is_available():
                self._refuse("there is no CUDA device")
                return False
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            if distributed and torch.distributed.get_world_size() > 1:
                self._refuse("several processes train together")
                return False
            self._backend = (self._make_backend or CudaBackend)()
            self._watch.device = self._variables.device = self._backend.device.type
        return True

    def _eager(self, args: Any, kwargs: Any) -> Any:
        return map_tensors(Tensor.detach, self.function(*args, **kwargs))

    def _start_over(self) -> None:
        """Forget all modules, parameters and optimisers."""
        self._watch = Watch("cuda" if self._backend is None else self._backend.device.type)
        self._measured: Tensor | None = None
        self._modules = 0
        self._addresses: list[int] = []

    def _discover(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        """Run the first call and record the modules, parameters and optimisers that the function uses.

        It is also the first call after parts of a module were moved or replaced.
        """
        assert self._backend is not None
        if self._sizes is not None:
            self.reset()
            self._watch.release()
            self._start_over()
            self._sizes = None
        with self._backend.warm_up(), self._watch.calls(), nesting():
            result = self._eager(args, kwargs)
        device = self._backend.device
        self._variables.read()
        self._watch.add_parameters(self._variables.leaves)
        used = {p.device for p in self._watch.parameters} or {t.device for t in tensors if t.device == device}
        if used != {device}:
            where = " and ".join(sorted(map(str, used))) or "the CPU"
            self._refuse(f"parameters and arguments are on {where}, and the current device is {device}")
        elif any(t.is_inference() for t in (*self._watch.parameters, *self._watch.buffers)):
            self._refuse("a parameter was made under torch.inference_mode, where torch does not count changes")
        else:
            self._follow_sizes()
        return result

    def _follow_sizes(self) -> None:
        """Follow the learned sizes of all parameters that are known now."""
        self._modules, self._addresses = len(self._watch.parameters), self._watch.addresses()
        self._sizes = DelayedSizes(self._watch.parameters)
        self._measured = self._sizes.measure()

    def _refuse(self, reason: str) -> None:
        """Run eagerly from now on."""
        self.refusal = reason
        self.reset()
        self._watch.release()
        self._warn_once(f"runs eagerly: {reason}")

    def _warn_once(self, text: str) -> None:
        if self._warn and text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"{self._label} {text}", CaptureWarning, stacklevel=4)

    # Captured calls

    def _step(self, tensors: list[Tensor], form: Any, subsets: tuple[int | None, ...]) -> Any:
        sizes, watch = self._sizes, self._watch
        assert sizes is not None
        if sizes.was_read():  # an evaluation has read them without the margin that delayed sizes need
            sizes.catch_up()
        sizes.update()
        gradients = [p.grad for p in watch.parameters]
        absent = tuple([g is None for g in gradients])
        variables = self._variables.read(watch.settings.hooks())
        key = (
            (form, signature(tensors)), (sizes.shapes, subsets), watch.modes(), watch.hyperparameters(), absent,
            tuple(variables.items()),
        )  # fmt: skip
        graph = self._graphs.get(key)
        if graph is None and self._is_due(key):
            graph = self._capture(key, tensors, form)
            if self.refusal:
                args, kwargs = rebuild(form, tensors)
                return self._eager(args, kwargs)
            gradients = [p.grad for p in watch.parameters]
        if graph is None:
            result = self._warm_up(tensors, form, variables)
            with contextlib.suppress(UnsupportedValue):
                self._forms[key[0]] = flatten(result)[1]
        else:
            self._graphs[key] = self._graphs.pop(key)  # keep graphs in the order of their last use
            assert self._backend is not None
            self._backend.follow()
            result = graph.replay(watch, tensors, gradients)
        if self._sizes is not None:
            self._sizes.copy_to_host(self._measured)
        return result

    def _is_due(self, key: Any) -> bool:
        """Return whether to capture a graph now, after enough calls with this key."""
        self._new_keys = 0 if key in self._call_counts else self._new_keys + 1
        self._call_counts[key] = self._call_counts.get(key, 0) + 1
        if (len(self._call_counts) > _MAX_KEYS and not self._graphs) or self._new_keys > _MAX_KEYS:
            last, previous = list(self._call_counts)[-1], list(self._call_counts)[-2]
            parts = [name for name, a, b in zip(_KEY_PARTS, last, previous, strict=True) if a != b]
            self._refuse(f"{' and '.join(parts) or 'something'} changed in almost every call")
            return False
        if self._call_counts[key] <= self.warmup:
            return False
        if len(self._graphs) < self.max_graphs:
            return True
        stale = next((old for old in self._graphs if old[0] == key[0]), None)
        if stale is None:
            kinds = f"there are more than max_graphs={self.max_graphs} kinds of arguments"
            self._warn_once(f"runs eagerly for some arguments: {kinds}")
            return False
        assert self._backend is not None
        self._backend.drop()
        del self._graphs[stale]
        self._call_counts[stale] = 0
        return True

    def _warm_up(self, tensors: list[Tensor], form: Any, variables: dict[str, Hashable]) -> Any:
        """Run a call eagerly, under the conditions of a capture, and check whether it can be captured."""
        assert self._backend is not None
        args, kwargs = rebuild(form, tensors)
        watch, numbers, versions = self._watch, self._backend.host_random_state(), _versions(tensors)
        settings = watch.settings.read()
        kept = {o: o.host_state() for o in self._watch.optimizers.values()}
        snapshot = Snapshot(self._watch)
        with self._backend.warm_up(), pause_step_hooks(), watch.calls(), nesting():
            result = self._run(args, kwargs)
        now = self._variables.read(watch.settings.hooks())
        changed = next((name for name, value in variables.items() if name in now and now[name] != value), "")
        changed = changed or watch.settings.changed(settings)
        if self._modules != len(watch.parameters):
            self._follow_sizes()
        self._addresses = watch.addresses()  # the call may have used other modules
        reason = snapshot.rebound()
        if any(o.host_state() != state for o, state in kept.items()):
            reason = "an optimiser keeps its state on the host"
        elif _versions(tensors) != versions:
            reason = "it changes an argument in place; return the new values instead"
        elif changed:
            reason = f"it changes {changed!r}, which a replay would not"
        elif self._backend.host_random_state() != numbers:
            reason = "it draws random numbers on the host"
        if reason:
            self._refuse(reason)
        return map_tensors(Tensor.detach, result)

    def _run(self, args: Any, kwargs: Any) -> Any:
        result = self.function(*args, **kwargs)
        measured = None if self._sizes is None else self._sizes.measure()
        if measured is not None and self._measured is not None and measured.shape == self._measured.shape:
            self._measured.copy_(measured)
        return result

    def _capture(self, key: Any, tensors: list[Tensor], form: Any) -> Graph | None:
        backend, watch = self._backend, self._watch
        assert backend is not None
        inputs = [_static(t, backend.device) for t in tensors]
        args, kwargs = rebuild(form, inputs)
        snapshot = Snapshot(watch)
        for optimizer in watch.optimizers.values():
            optimizer.fill()
        calls = HostCalls(lambda: 0)
        try:
            with deferred_calls(lambda: watch.steps) as calls, without_autocast_cache(watch.device):
                with pause_step_hooks(), watch.calls(calls), nesting():
                    replayable, result = backend.record(lambda: self._run(args, kwargs))
                calls.close()
            snapshot.check_complete()
            results, result_form = self._check_results(result, key)
        except BaseException as error:
            snapshot.restore()
            calls.restore()
            if not isinstance(error, Exception):
                raise
            if isinstance(cause(error), NotReady) and self._retries < _MAX_RETRIES:
                self._retries += 1
                self._call_counts[key] = 0
            else:
                self._refuse(reason_of(error, self.function))
            return None
        graph = Graph(
            replayable,
            inputs,
            [t.detach() for t in results],
            result_form,
            calls,
            [gradient for _, gradient in snapshot.gradients],
            [p.grad for p in watch.parameters],
            snapshot.changed(),
        )
        snapshot.restore_gradients()
        self._graphs[key] = graph
        self.graphs += 1
        return graph

    def _check_results(self, result: Any, key: Any) -> tuple[list[Tensor], Hashable]:
        """Return the tensors and the form of a result; raise a RuntimeError if a replay would not compute all of it."""
        try:
            results, form = flatten(result)
        except UnsupportedValue as error:
            raise RuntimeError(f"it returns a {error}; return tensors") from None
        if any(t.device.type != self._watch.device for t in results):
            raise RuntimeError(f"it returns a tensor that is not on the {self._watch.device} device")
        if any(isinstance(value, float) for value in constants(form)) or form != self._forms.get(key[0], form):
            raise RuntimeError("it returns a Python number that a replay would not compute; return a tensor")
        return results, form


def _static(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy on the device, also of a tensor on the host, so that reading its values fails while capturing."""
    return tensor.detach().to(device, copy=True)


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if t.is_inference() else t._version for t in tensors]  # noqa: SLF001

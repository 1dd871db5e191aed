"""A stand-in for CUDA graphs on the CPU: it records operations on tensors and runs them again on the same tensors.

As with a CUDA graph, recording changes no value, a replay runs no Python, constants and addresses are those of the
recording, and reading a tensor on the host is an error.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelfield.cuda_graphs.backend import python_random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: operations that wait for the device
_READS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero")


class RecordedGraph(TorchDispatchMode):
    """Records operations inside a ``with`` block."""

    def __init__(self, fail_after: int | None = None) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.fail_after = fail_after
        self._made: set[int] = set()
        self._changed: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.name in _READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.fail_after is not None and len(self.operations) >= self.fail_after:
            raise RuntimeError("this operation cannot be captured")
        for argument, value in zip(schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._keep(value)
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in kwargs:
                self._keep(kwargs[argument.name])
        if schema.name == "aten::native_batch_norm":
            self._keep(args)  # its schema does not say that it changes the running statistics
        result = func(*args, **kwargs)
        made = _fresh(schema, result)
        self._made |= {t.untyped_storage()._cdata for t in made}
        self.operations.append((func, args, kwargs, made))
        return result

    def _keep(self, value: Any) -> None:
        """Keep the values of tensors from before the recording that an operation overwrites."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._made and storage._cdata not in self._changed:
                    self._changed[storage._cdata] = storage, storage.clone()

    def restore(self) -> None:
        """Give all tensors the values from before the recording."""
        for storage, values in self._changed.values():
            storage.copy_(values)
        self._changed.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Run the operations again."""
        for func, args, kwargs, made in self.operations:
            result = func(*args, **kwargs)
            for target, value in zip(made, _fresh(func._schema, result), strict=True):
                target.copy_(value)


def _fresh(schema: Any, result: Any) -> list[Tensor]:
    """Return the results of an operation that are new tensors."""
    results = result if isinstance(result, tuple) else (result,)
    if len(schema.returns) != len(results):
        results = (result,)
    pairs = zip(schema.returns, results, strict=True) if schema.returns else ()
    found = [leaf for kind, value in pairs if kind.alias_info is None for leaf in tree_leaves(value)]
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


class RecordingBackend:
    """Takes the place of :class:`kernelfield.cuda_graphs.backend.CudaBackend`.

    Args:
        fail_after: number of operations after which a recording fails; never if not given.
    """

    def __init__(self, fail_after: int | None = None) -> None:
        self.device = torch.device("cpu")
        self.fail_after = fail_after
        self.recordings = 0

    @contextlib.contextmanager
    def warm_up(self) -> Iterator[None]:
        yield

    def record(self, work: Callable[[], Any]) -> tuple[RecordedGraph, Any]:
        self.recordings += 1
        numbers, graph = torch.get_rng_state(), RecordedGraph(self.fail_after)
        try:
            with graph:
                result = work()
        finally:
            graph.restore()
            torch.set_rng_state(numbers)
        return graph, result

    def host_random_state(self) -> Any:
        return python_random_state()

    def follow(self) -> None:
        pass

    def drop(self) -> None:
        pass

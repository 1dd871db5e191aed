"""How large the tensors are that operations make on their way."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Notes the most elements that the result of any operation has, in the backward pass too."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            # Of a view or an expanded tensor what it takes in memory counts.
            if isinstance(t, torch.Tensor):
                self.elements = max(self.elements, t.untyped_storage().nbytes() // t.element_size())
        return out


class Peak(TorchDispatchMode):
    """Measures the most bytes that results of operations hold at once, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                held = StorageWeakRef(storage)
                self._live[held.cdata] = (held, storage.nbytes())
        self._live = {key: value for key, value in self._live.items() if not value[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self._live.values()))
        return out

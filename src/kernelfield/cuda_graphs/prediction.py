"""Predictions as CUDA graphs: kernels are sampled once, and a batch up to a maximum size is one launch."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked
from .._hooks import pause_step_hooks
from ..fields import SharedField
from ..layers.continuous.frozen import FrozenKernel
from ..layers.continuous.sampled_kernel import SampledKernel
from ..layers.group.kernel import GroupKernel
from ..layers.pointwise import uses_batch_statistics
from .captured import CapturedFunction
from .graph import is_nested
from .tree import UnsupportedValue, flatten, map_tensors, rebuild

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from .backend import Backend

__all__ = ["CapturedPrediction", "capture_prediction"]


class CapturedPrediction:
    """The predictions of a network as CUDA graphs; made by :func:`capture_prediction`.

    Args:
        net: the network.
        max_batch: largest batch of one launch.
        max_graphs: number of graphs to keep.
        enabled: whether to capture at all.
        backend: makes the backend that records graphs; that of the current CUDA device if not given.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        max_batch: int = 64,
        max_graphs: int = 16,
        enabled: bool = True,
        backend: Callable[[], Backend] | None = None,
    ) -> None:
        self.net, self.max_batch = net, max_batch
        self._options: dict[str, Any] = {
            "max_batch": max_batch,
            "max_graphs": max_graphs,
            "enabled": enabled,
            "backend": backend,
        }
        label = f"kf.capture_prediction: {type(net).__name__}"
        self._captured = CapturedFunction(
            net.__call__, warmup=1, max_graphs=max_graphs, enabled=enabled, label=label, backend=backend
        )
        self._lock = threading.RLock()
        self._modules: list[nn.Module] = []
        self._kernels: list[tuple[SampledKernel, dict[tuple[float, ...], FrozenKernel]]] = []
        # A graph samples kernels on groups itself, so that they follow the weights without a new graph.
        self._group_kernels: list[tuple[GroupKernel, dict[Any, Tensor]]] = []
        self._versions: list[tuple[int, object]] = []
        self._whole_batches = False
        #: whether an argument or result was neither a tensor, a container of tensors nor a plain value
        self._unknown = False

    @property
    def graphs(self) -> int:
        """Number of graphs captured so far."""
        return self._captured.graphs

    @property
    def refusal(self) -> str:
        """Reason why predictions run eagerly; "" if they do not."""
        return self._captured.refusal

    def __reduce__(self) -> Any:
        """Copy and pickle the network, without frozen kernels and graphs."""
        return functools.partial(type(self), **self._options), (self.net,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the predictions for a batch.

        Args:
            args: inputs of the network; the first axis of tensors is the batch.
            kwargs: options of the network. If there are tensors among them, the batch is neither padded nor divided.
        """
        # Kernels that were made in inference mode could not be replaced in place later.
        with self._lock, torch.inference_mode(False), torch.no_grad(), self._evaluating():
            if not self._unknown:
                try:
                    return self._in_parts(args, kwargs)
                except UnsupportedValue:  # its batch axis is unknown, so it is neither padded nor divided
                    self._unknown = True
            return self._captured(*args, **kwargs)

    def _in_parts(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the predictions for a batch; pad or divide it if all tensors have the same batch axis."""
        tensors, form = flatten(args)
        sizes = {t.shape[0] if t.dim() else 0 for t in tensors}
        if len(sizes) != 1 or 0 in sizes or flatten(kwargs)[0] or self._whole_batches:
            return self._captured(*args, **kwargs)
        (batch,) = sizes
        if batch <= self.max_batch:
            return self._padded(form, tensors, batch, kwargs)
        parts = [t.split(self.max_batch) for t in tensors]
        results = [
            self._padded(form, list(part), min(self.max_batch, batch - i * self.max_batch), kwargs)
            for i, part in enumerate(zip(*parts, strict=True))
        ]
        return _joined(results)

    def _padded(self, form: Any, tensors: list[Tensor], batch: int, options: dict[str, Any]) -> Any:
        """Return the predictions for a batch of at most ``max_batch``."""
        size = batch if self._captured.is_eager else min(self.max_batch, 1 << (batch - 1).bit_length())
        if size > batch:
            tensors = [torch.cat([t, t.new_zeros(size - batch, *t.shape[1:])]) for t in tensors]
        result = self._captured(*rebuild(form, tensors), **options)
        if size == batch:
            return result
        flatten(result)  # an error for objects whose tensors cannot be cut
        return map_tensors(lambda t: t[:batch] if t.dim() and t.shape[0] == size else t, result)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Put the network in evaluation mode, with frozen kernels, inside the block."""
        modules = _modules([self.net])
        training = [m for m in modules if m.training]
        if training:
            with pause_step_hooks():  # without reading masks: `_refresh` below finds changes without waiting
                self.net.eval()
        try:
            with contextlib.ExitStack() as stack:
                if not is_nested():  # else the kernels become part of a graph around this one, which changes weights
                    self._refresh(modules)
                    for layer, kernels in self._kernels:
                        stack.enter_context(layer.freezing(kernels))
                    for kernel, kept in self._group_kernels if self._captured.is_eager else ():
                        stack.enter_context(kernel.freezing(kept))
                yield
        finally:
            for module in training:
                vars(module)["training"] = True  # not train(), which drops frozen kernels

    def refresh(self) -> None:
        """Sample the kernels again at the next call, after a change of weights through ``.data``.

        Such a change cannot be detected without waiting for the device.
        """
        self._versions = [(address, -1) for address, _ in self._versions]

    def _refresh(self, modules: list[nn.Module]) -> None:
        """Sample the frozen kernels again if a weight has changed, in place, because graphs read this memory."""
        if modules != self._modules:
            self._modules, known = modules, dict(self._kernels)
            self._kernels = [(m, known.get(m, {})) for m in modules if isinstance(m, SampledKernel)]
            self._group_kernels = [(m, {}) for m in modules if isinstance(m, GroupKernel)]
            # Padding or splitting the batch would change its statistics.
            self._whole_batches = uses_batch_statistics(self.net)
        # Graphs read all weights. Without graphs, only the weights of frozen kernels matter.
        owners = list(modules)
        if self._captured.is_eager:
            layers: list[nn.Module] = [layer for layer, _ in (*self._kernels, *self._group_kernels)]
            fields = [layer.field for layer, _ in (*self._kernels, *self._group_kernels)]
            shared = [field.network for field in fields if isinstance(field, SharedField)]  # no submodules
            owners = _modules([*layers, *dict.fromkeys(shared)])
        versions = [
            # Changes of inference tensors are not counted, so their kernels are always sampled again.
            (t.data_ptr(), object() if t.is_inference() else t._version)  # noqa: SLF001
            for module in owners
            for part in (module._parameters, module._buffers)  # noqa: SLF001
            for t in part.values()
            if t is not None
        ]
        if versions == self._versions:
            return
        for _, kept in self._group_kernels:
            kept.clear()
        if [address for address, _ in versions] != [address for address, _ in self._versions]:
            self._captured.reset()  # the weights have moved, perhaps to another device
            for _, kernels in self._kernels:
                kernels.clear()
        for layer, kernels in self._kernels:
            for steps, kernel in kernels.items():
                new = layer.sample(steps)
                if new.shape == kernel.values.shape:
                    kernel.update_(new)
                else:
                    self._captured.reset()
                    kernels[steps] = FrozenKernel(new, layer.causal)
        self._versions = versions


def _modules(found: list[nn.Module]) -> list[nn.Module]:
    """Return modules and all modules inside of them; ``modules()`` takes ten times as long, at every prediction."""
    known = set(map(id, found))
    for module in found:
        for part in module._modules.values():  # noqa: SLF001
            if part is not None and id(part) not in known:
                known.add(id(part))
                found.append(part)
    return found


def _joined(results: list[Any]) -> Any:
    """Join the results of parts of a batch."""
    tensors = [flatten(result)[0] for result in results]
    return rebuild(flatten(results[0])[1], [torch.cat(parts) for parts in zip(*tensors, strict=True)])


@checked()
def capture_prediction(
    net: nn.Module, *, max_batch: int = 64, max_graphs: int = 16, enabled: bool = True
) -> CapturedPrediction:
    """Replay the predictions of a network as CUDA graphs.

    The result is called like the network and returns the same as ``net.eval()`` under :func:`torch.no_grad`. Kernels of
    continuous convolutions are sampled once and used until a weight changes: by an optimiser, under
    :func:`torch.no_grad` or by a loaded state. After a change through ``.data``, call ``refresh()`` of the result. A
    batch is padded with zeros to the next power of two, at most ``max_batch``, to keep the number of graphs small; a
    larger batch is divided. A network that normalises by batch statistics gets the batch as it is. The call leaves the
    modes of the network and its layers unchanged.

    A network that cannot be captured, or that is on the CPU, runs eagerly with frozen kernels, those on groups too. A
    single :class:`CaptureWarning` gives the reason.

    Args:
        net: a network whose inputs and outputs have the batch as their first axis. If it takes or returns objects other
            than tensors, containers of tensors and plain values, it runs eagerly.
        max_batch: largest batch of one launch.
        max_graphs: number of graphs to keep, for batches of different sizes and inputs of different shapes.
        enabled: whether to capture; False runs the network eagerly, without a warning.

    >>> from kernelfield import CCNN
    >>> net = CCNN(1, 10, size=32, channels=4, blocks=1, hidden=4)
    >>> predict = capture_prediction(net, enabled=torch.cuda.is_available())
    >>> x = torch.randn(5, 1, 32)
    >>> with torch.no_grad():
    ...     torch.allclose(predict(x), net.eval()(x), atol=1e-5)
    True
    """
    return CapturedPrediction(net, max_batch=max_batch, max_graphs=max_graphs, enabled=enabled)

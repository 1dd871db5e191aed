"""The choice between Triton kernels and torch operations, and the switch that turns Triton off.

Every operator has a torch path. Some also have Triton kernels, which compute the same on a GPU in less time, and call
:func:`use_triton` to choose between the two. Triton is imported only when a kernel is needed, so the package works
without it. A convolution has more than two methods: :mod:`kernelfield.ops.conv.cost` compares their costs, and includes
Triton only if this module allows it.

``KERNELFIELD_FAST=0`` in the environment turns all Triton kernels off; :func:`use_fast_paths` does so from Python.
``TRITON_INTERPRET=1`` runs the kernels on a CPU, slowly, for tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from .._arguments import checked
from .._hooks import set_during

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Collection

    from torch import Tensor

__all__ = [
    "SINGLE_OR_HALF",
    "fast_paths",
    "launches_count",
    "recompute",
    "recorded_launches",
    "traced_fast_paths",
    "unavailable",
    "use_fast_paths",
    "use_triton",
]

#: the dtypes that most Triton kernels take
SINGLE_OR_HALF = (torch.float32, torch.bfloat16, torch.float16)

_DEFAULT = os.environ.get("KERNELFIELD_FAST") != "0"
_enabled: ContextVar[bool] = ContextVar("kernelfield_fast_paths", default=_DEFAULT)
#: the latest setting of any thread, for compilers: they cannot read a context variable, and compile again if a global
#: variable changes
_latest = _DEFAULT
#: devices that can run Triton kernels; the CPU uses an interpreter
_WITH_KERNELS = ("cuda", "cpu")
#: whether launches become part of a CUDA graph
_recorded: ContextVar[bool] = ContextVar("kernelfield_recorded_launches", default=False)
_HAS_TRITON = importlib.util.find_spec("triton") is not None


class use_fast_paths:  # noqa: N801
    """Turn all Triton kernels on or off, from now on or inside a ``with`` block.

    Like :class:`torch.set_grad_enabled`, the setting applies to the current thread (to the current :mod:`contextvars`
    context). The environment variable ``KERNELFIELD_FAST=0`` turns the kernels off in all threads. A backward pass
    takes the path that its forward pass took. Compiled code follows the setting too; for attention it is the latest one
    of any thread, and a change compiles the code again.

    Args:
        enabled: whether operators may use Triton kernels.

    >>> with use_fast_paths(False):
    ...     fast_paths()
    False
    """

    @checked()
    def __init__(self, enabled: bool) -> None:
        self._enabled, self._before = bool(enabled), _enabled.get()
        _set(self._enabled)

    def __enter__(self) -> None:
        _set(self._enabled)

    def __exit__(self, *_: object) -> None:
        _set(self._before)


def _set(enabled: bool) -> None:
    global _latest  # noqa: PLW0603
    _enabled.set(enabled)
    _latest = enabled


def fast_paths() -> bool:
    """Return whether the environment and :func:`use_fast_paths` allow Triton kernels."""
    # Compiled convolutions choose a method, and ask again, when they run.
    return _DEFAULT if torch.compiler.is_compiling() else _enabled.get()


def traced_fast_paths() -> bool:
    """Return whether traced code may call operators that have no other path than Triton kernels."""
    return _HAS_TRITON and _latest


def recorded_launches(recorded: bool = True) -> contextlib.AbstractContextManager[None]:
    """Choose methods by their time on the device inside the ``with`` block, whose launches become a CUDA graph.

    >>> with recorded_launches():
    ...     launches_count()
    False
    """
    return set_during(_recorded, recorded)


def launches_count() -> bool:
    """Return whether the host's time for launches counts; not in a CUDA graph, nor in compiled code, which has few."""
    return not torch.compiler.is_compiling() and not _recorded.get()


def unavailable(device: torch.device) -> str | None:
    """Return the reason why Triton kernels do not run on a device, as a clause that follows "which", or None.

    >>> with use_fast_paths(False):
    ...     unavailable(torch.device("cuda"))
    'is turned off by KERNELFIELD_FAST=0 or use_fast_paths(False)'
    """
    if not fast_paths():
        return "is turned off by KERNELFIELD_FAST=0 or use_fast_paths(False)"
    return without_kernels(device)


def without_kernels(device: torch.device) -> str | None:
    """Return the reason why a device has no Triton kernels, whatever the switch says; see :func:`unavailable`."""
    if device.type != "cuda" and (device.type != "cpu" or os.environ.get("TRITON_INTERPRET") != "1"):
        return f"needs a CUDA device, got {device.type}"
    if not _HAS_TRITON:
        if device.type == "cuda" and not torch.compiler.is_compiling():
            _warn_of_missing_triton()
        return "needs Triton, which comes with CUDA builds of torch"
    # Compiled graphs ask again when they run.
    if device.type == "cuda" and not torch.compiler.is_compiling() and torch.cuda.is_available():
        if not _kernels_run(device):
            return f"needs Triton kernels, which do not run on {device}"
        if not _is_current(device):
            return f"needs the current device, {torch.cuda.current_device()}, got {device}"
    return None


def use_triton(x: Tensor, dtypes: Collection[torch.dtype] = SINGLE_OR_HALF) -> bool:
    """Return whether an operator uses Triton kernels for a tensor such as ``x``.

    It does on a GPU, or in Triton's interpreter, if the switch is on and the kernels run there. Traced code
    (``torch.compile``, ``torch.export``, ``torch.func``) takes the torch path, which a compiler fuses itself, or the
    operators of :mod:`kernelfield.ops.kernel_operator`.

    Args:
        x: the signal.
        dtypes: dtypes that the operator's kernels accept.

    >>> use_triton(torch.zeros(3, dtype=torch.float64))
    False
    """
    if x.dtype not in dtypes or torch.compiler.is_compiling() or x.numel() == 0:
        return False
    on_gpu = x.is_cuda
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":  # a quick answer for networks on a CPU
        return False
    if not _enabled.get() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return False
    if not _HAS_TRITON or x.device.type not in _WITH_KERNELS:
        return unavailable(x.device) is None  # this warns if Triton is missing
    if not on_gpu:
        return True
    found = _running.get(x.device)
    return (_kernels_run(x.device) if found is None else found) and _is_current(x.device)


def recompute(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return ``function(*arguments)`` and save only the arguments; the backward pass computes the result again.

    The backward pass uses the same settings of :func:`use_fast_paths` and :func:`recorded_launches`, although autograd
    runs it in another thread.

    >>> x = torch.ones(3, requires_grad=True)
    >>> recompute(torch.exp, x).sum().backward()
    >>> torch.equal(x.grad, x.exp())
    True
    """
    # Checkpoints fail inside torch.func's transforms, which save their intermediate results themselves.
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return function(*arguments)
    if torch.compiler.is_compiling():
        traced: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
        return traced
    enabled, recorded = fast_paths(), not launches_count()

    def run(*arguments: Any) -> Tensor:
        with use_fast_paths(enabled), recorded_launches(recorded):
            return function(*arguments)

    result: Tensor = checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


@functools.cache
def _warn_of_missing_triton() -> None:
    warnings.warn("triton is not installed: kernelfield uses slower torch operations on this GPU", stacklevel=5)


@functools.cache
def _several_gpus() -> bool:
    return torch.cuda.device_count() > 1


def _is_current(device: torch.device) -> bool:
    """Return whether kernels may be launched for tensors on a GPU: Triton launches on the current one; warn if not."""
    if not _several_gpus() or device.index in (None, torch.cuda.current_device()):
        return True
    _warn_of_other_device(device)
    return False


@functools.cache
def _warn_of_other_device(device: torch.device) -> None:
    text = f"Triton kernels run on the current device only, and tensors are on {device}: kernelfield uses slower torch "
    warnings.warn(f"{text}operations there. torch.cuda.set_device({device.index}) makes it current", stacklevel=5)


_running: dict[torch.device, bool] = {}


def _kernels_run(device: torch.device) -> bool:
    """Return whether a Triton kernel can be compiled and launched on a GPU; warn once if not."""
    found = _running.get(device)
    if found is not None:
        return found
    if torch.cuda.is_current_stream_capturing():
        return True  # a test launch would become part of the graph
    try:
        from .triton_probe import probe  # noqa: PLC0415

        probe(device)
        _running[device] = True
    except Exception as error:
        warnings.warn(f"Triton kernels do not run on {device}, so torch operations replace them: {error}", stacklevel=4)
        _running[device] = False
    return _running[device]

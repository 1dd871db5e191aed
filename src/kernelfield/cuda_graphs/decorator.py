"""The decorator ``capture`` for training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from .._arguments import checked
from .._kinds import Int
from .._object_kinds import CALLABLE
from .captured import CapturedFunction

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["capture"]


@overload
def capture(
    function: Callable[..., Any], *, warmup: int = 2, max_graphs: int = 8, enabled: bool = True
) -> CapturedFunction: ...


@overload
def capture(
    function: None = None, *, warmup: int = 2, max_graphs: int = 8, enabled: bool = True
) -> Callable[[Callable[..., Any]], CapturedFunction]: ...


@checked(function=CALLABLE | None, warmup=Int(1), max_graphs=Int(1))
def capture(
    function: Callable[..., Any] | None = None, *, warmup: int = 2, max_graphs: int = 8, enabled: bool = True
) -> Any:
    """Replay a training step as one CUDA graph.

    A step of a small network launches thousands of small kernels, and Python takes longer to launch them than the GPU
    takes to run them. A CUDA graph is a single launch. Decorate the function that takes a step, and call it as before:

    .. code-block:: python

        @kf.capture
        def step(x, y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        for x, y in loader:
            loss = step(x, y)

    The function may clip gradients, step any optimiser and schedule of torch, use a gradient scaler and update
    :class:`torch.optim.swa_utils.AveragedModel`. Its first ``warmup`` + 1 calls run eagerly and show which modules and
    optimisers it uses. The next call captures it. There is one graph for each combination of argument kinds (structure,
    shapes, dtypes and plain values), values of variables that the function reads, learned sizes and modes of the
    modules. The optimisers become ``capturable``, but their learning rates stay floats for schedules and for code
    outside the function.

    Python inside the function runs only in eager calls. The function must not read values of tensors
    (``loss.item()``), change its arguments or Python variables, or draw random numbers on the host. Such a function
    runs eagerly, and so does a function on the CPU; a single :class:`CaptureWarning` gives the reason. A failed capture
    changes no weights, optimiser states or random states. Results are detached.

    Args:
        function: a full step: forward and backward pass and optimiser. Its arguments and results are tensors, plain
            values, or tuples, lists, dictionaries and dataclasses of them. Without it, :func:`capture` returns a
            decorator.
        warmup: number of eager calls with each kind of arguments before the capture.
        max_graphs: number of graphs to keep. Further kinds of arguments run eagerly.
        enabled: whether to capture; False runs the function eagerly, without a warning.

    >>> import torch
    >>> net = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> @capture(enabled=torch.cuda.is_available())
    ... def step(x, y):
    ...     optimizer.zero_grad()
    ...     loss = (net(x) - y).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> x, y = torch.randn(8, 2), torch.zeros(8, 1)
    >>> losses = [step(x, y) for _ in range(5)]
    >>> bool(losses[-1] < losses[0])
    True
    """
    if function is None:
        return lambda given: capture(given, warmup=warmup, max_graphs=max_graphs, enabled=enabled)
    return CapturedFunction(function, warmup=warmup, max_graphs=max_graphs, enabled=enabled)

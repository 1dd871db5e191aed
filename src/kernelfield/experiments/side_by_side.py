"""Several trainings side by side on one device, in one process and one thread.

A step of a small network leaves most of a large GPU idle. Trainings that take turns, each on its own CUDA stream, fill
it: the host only enqueues work, so one thread keeps several streams busy. A training is a generator that yields after
it has enqueued a step. Before each step, :class:`Turn` swaps in the global state of the training, so that it draws the
same random numbers as alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import torch

from .._checks import check_int

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

__all__ = ["Outcome", "Stepwise", "Turn", "exhaust", "matmul_precision", "side_by_side"]

P = ParamSpec("P")
T = TypeVar("T")

# Steps of one training that may wait on the device. With two, a stream stays busy while the host serves the others.
_IN_FLIGHT = 2
# Steps at the beginning of a training after which the host waits. Constants that this training creates for all, such as
# means and deviations of shared data, are then ready before another stream reads them.
_FIRST = 3
# Seconds between two queries of the device while all trainings wait for it.
_PAUSE = 2e-5


def exhaust(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end and return its value.

    >>> def steps():
    ...     yield 1
    ...     return 2
    >>> exhaust(steps())
    2
    """
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


class Stepwise(Generic[P, T]):
    """A generator function that runs to its end when called; ``f.steps(…)`` returns the generator.

    Args:
        steps: a function that yields after each step and returns a value at the end.

    >>> @Stepwise
    ... def train(n):
    ...     for i in range(n):
    ...         yield i
    ...     return "done"
    >>> train(2), list(train.steps(2))
    ('done', [0, 1])
    """

    def __init__(self, steps: Callable[P, Generator[Any, None, T]]) -> None:
        functools.update_wrapper(self, steps)
        self.steps = steps

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run all steps and return the value."""
        return exhaust(self.steps(*args, **kwargs))


class Turn:
    """Global state that belongs to one training: random numbers, precision of matrix products, CUDA stream.

    The state of the training is active inside the ``with`` block, that of the caller outside.

    Args:
        device: device of the training.
        stream: CUDA stream of the training; by default the current one.

    >>> first, second = Turn("cpu"), Turn("cpu")
    >>> drawn = []
    >>> for turn in (first, second, first, second):
    ...     with turn:
    ...         drawn.append(torch.rand(()).item())
    >>> drawn[0] == drawn[1], drawn[2] == drawn[3], drawn[0] == drawn[2]
    (True, True, False)
    """

    def __init__(self, device: torch.device | str, stream: Any = None) -> None:
        self.device, self.stream = torch.device(device), stream
        self._numbers = torch.get_rng_state()
        self._matmul = torch.get_float32_matmul_precision()
        self._cuda: Any = None
        if self.device.type == "cuda":
            # A separate state object, not a copy of its numbers: CUDA graphs refer to the object of their capture.
            self._cuda = torch.Generator(self.device)
        self._caller: list[contextlib.ExitStack] = []

    def __enter__(self) -> Turn:
        """Activate the state of the training."""
        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            torch.set_rng_state(self._numbers)
            stack.callback(_set_matmul, torch.get_float32_matmul_precision())
            _set_matmul(self._matmul)
            if self._cuda is not None:
                default = _default_generator(self.device)
                stack.callback(default.graphsafe_set_state, default.graphsafe_get_state())
                default.graphsafe_set_state(self._cuda)
            if self.stream is not None:
                stack.enter_context(torch.cuda.stream(self.stream))
            self._caller.append(stack.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        """Store the state of the training and restore that of the caller."""
        self._numbers = torch.get_rng_state()
        self._matmul = torch.get_float32_matmul_precision()
        if self._cuda is not None:
            # A failed capture may have replaced the object.
            self._cuda = _default_generator(self.device).graphsafe_get_state()
        self._caller.pop().close()


@dataclass
class Outcome(Generic[T]):
    """The value that a training returned, or the exception that ended it."""

    value: T | None = None
    error: Exception | None = None

    def get(self) -> T:
        """Return the value; raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


@dataclass
class _Running:
    """A training that has begun."""

    index: int
    steps: Generator[Any, None, Any]
    turn: Turn
    taken: int = 0
    events: deque[Any] = field(default_factory=deque)

    def ready(self) -> bool:
        """Return whether another step may be enqueued without waiting for the device."""
        while self.events and self.events[0].query():
            self.events.popleft()
        return len(self.events) < _IN_FLIGHT


def side_by_side(
    trainings: Sequence[Callable[[], Generator[Any, None, T]]],
    device: torch.device | str = "cpu",
    at_once: int | None = None,
    on_end: Callable[[int, Outcome[T]], None] | None = None,
) -> list[Outcome[T]]:
    """Run trainings alternately and return the outcome of each, in their order.

    On a CPU they take turns step by step. On a GPU a training whose last two steps are still waiting is skipped, so
    that slow trainings do not delay fast ones.

    Args:
        trainings: functions that return a generator, which yields after each enqueued step.
        device: device of the trainings.
        at_once: number of trainings that run at the same time; the next one starts when one ends. By default all.
        on_end: called with the position and the outcome of each training as soon as it ends.

    >>> def count(n):
    ...     for i in range(n):
    ...         yield i
    ...     return n
    >>> [outcome.get() for outcome in side_by_side([lambda: count(3), lambda: count(2)])]
    [3, 2]
    """
    device = torch.device(device)
    slots = len(trainings) if at_once is None else min(check_int("at_once", at_once), len(trainings))
    streams: list[Any] = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(slots)]
    outcomes: list[Outcome[T]] = [Outcome() for _ in trainings]
    waiting = deque(enumerate(trainings))
    running: deque[_Running] = deque()
    _wait_for(device)  # data may still be copied on the stream of the caller
    try:
        while waiting or running:
            while waiting and streams:
                index, training = waiting.popleft()
                running.append(_Running(index, training(), Turn(device, streams.pop())))
            job = _next_ready(running)
            if _advance(job, outcomes[job.index]):
                running.append(job)
                continue
            streams.append(job.turn.stream)
            if on_end is not None:
                on_end(job.index, outcomes[job.index])
    finally:
        for job in running:
            with job.turn:
                job.steps.close()
    return outcomes


def _advance(job: _Running, outcome: Outcome[Any]) -> bool:
    """Take a step of ``job``; return whether it continues."""
    try:
        with job.turn:
            next(job.steps)
            if job.turn.stream is not None:
                done = torch.cuda.Event()
                done.record()
                job.events.append(done)
        job.taken += 1
        if job.taken <= _FIRST:
            _wait_for(job.turn.device)
    except StopIteration as end:
        outcome.value = end.value
    except Exception as error:  # the others continue
        outcome.error = error
    else:
        return True
    _wait_for(job.turn.device)
    if job.turn.stream is not None:
        gc.collect()  # frees graphs and their memory, which are in reference cycles
    return False


def _next_ready(running: deque[_Running]) -> _Running:
    """Remove and return the first training that is ready; wait for one if none is."""
    while True:
        for position, job in enumerate(running):
            if job.ready():
                del running[position]
                return job
        time.sleep(_PAUSE)  # waiting for one event could delay another training that is ready first


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _default_generator(device: torch.device) -> Any:
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _set_matmul(precision: str) -> None:
    if torch.get_float32_matmul_precision() != precision:
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def matmul_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices on a GPU with the given precision inside the ``with`` block."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        _set_matmul(precision)
    try:
        yield
    finally:
        _set_matmul(before)

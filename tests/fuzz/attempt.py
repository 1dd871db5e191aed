"""One wrong call: what was called, with what, and how it ended."""

from __future__ import annotations

import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .calls.call import Call, tensors
from .values import VALUES, is_allowed, variants

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SECONDS", "Outcome", "attempt", "cases"]

#: longest time of one call
SECONDS = 20


@dataclass(frozen=True)
class Outcome:
    """How a wrong call ended.

    Args:
        kind: "refused", an error that names the argument; "works"; "raw", another error; "later", accepted and then an
            error or a number that is not finite in use; "silent", accepted although the argument does not take it.
        case: the call.
        detail: the error.
    """

    kind: str
    case: str
    detail: str = ""

    @property
    def fine(self) -> bool:
        """Whether a user is told what was wrong, or nothing was."""
        return self.kind in ("refused", "works")


def cases(call: Call) -> Iterator[tuple[str, str]]:
    """Return the argument and the label of every wrong value of a call."""
    given = call.arguments()
    for name in call.annotations():
        for label in (*VALUES, *variants(given.get(name))):
            yield name, label


def attempt(call: Call, argument: str, label: str | None = None, value: Any = None) -> Outcome:
    """Call with one argument replaced: by the value of ``label``, or by ``value``."""
    if label is not None:
        value = VALUES[label] if label in VALUES else variants(call.arguments()[argument])[label]
    shown = label if label is not None else repr(value)
    case = f"{call.name}({argument}={shown})"
    torch.manual_seed(0)
    try:
        with _in_time():
            result = call(**{argument: value})
    except Exception as error:
        if call.ends_with and _ends_as_before(call, argument, error):
            allowed = is_allowed(argument, call.annotations()[argument], value)
            return Outcome("works" if allowed else "silent", case, str(error))
        return _refusal(case, argument, value, error)
    chosen = label is None and isinstance(value, str)  # a declared choice, or drawn text
    if not chosen and not is_allowed(argument, call.annotations()[argument], value):
        return Outcome("silent", case)
    try:
        with _in_time():
            wrong = _not_finite(call.use(result))
    except Exception as error:
        if isinstance(error, (TypeError, ValueError)) and re.match(
            r"(x|coords|kernels?|shape|method) must ", str(error)
        ):
            return Outcome("works", case)  # the input that the test has does not fit this layer
        return Outcome("later", case, f"{type(error).__name__}: {error}")
    # NaN in, NaN out.
    fair = not (isinstance(value, Tensor) and _not_finite(value))
    return Outcome("later", case, "not finite") if wrong and fair else Outcome("works", case)


def _ends_as_before(call: Call, argument: str, error: Exception) -> bool:
    """Whether a call ended as it may with arguments that are accepted, and not because of this argument."""
    return isinstance(error, call.ends_with) and not re.search(rf"(?<!\w){re.escape(argument)} must ", str(error))


def _refusal(case: str, argument: str, value: Any, error: Exception) -> Outcome:
    detail = f"{type(error).__name__}: {str(error).strip()}"
    named = re.search(rf"(?<![A-Za-z0-9_]){re.escape(argument)}(?![A-Za-z0-9_])", str(error))
    fine = type(error) in (TypeError, ValueError, MemoryError, FileNotFoundError) and named
    # An error about a file names it.
    fine = fine or (
        isinstance(error, (OSError, ValueError)) and isinstance(value, str) and value and value in str(error)
    )
    # What Python says of a call that leaves an argument out, or of a value inside, is no answer.
    if fine and re.search(r"unexpected keyword|object is not|unsupported operand|positional argument", str(error)):
        fine = None
    return Outcome("refused" if fine else "raw", case, detail)


def _not_finite(result: Any) -> bool:
    return any(not bool(t.isfinite().all()) for t in tensors(result) if not t.is_meta)


@contextmanager
def _in_time() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

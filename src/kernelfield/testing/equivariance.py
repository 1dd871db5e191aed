"""Assertions about the symmetry of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .._arguments import checked
from .._kinds import ANY, NOT_NEGATIVE
from .._object_kinds import IterableOf, TensorOf
from ._compare import assert_close, assert_same_shape_and_dtype, check_depends, evaluation, scale_of, signal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["SignalGroup", "assert_equivariant", "equivariance_error"]


@runtime_checkable
class SignalGroup(Protocol):
    """The methods that these assertions need of a group.

    >>> class Mirror:
    ...     def elements(self):
    ...         return (False, True)
    ...     def act(self, element, signal):
    ...         return signal.flip(-1) if element else signal
    >>> isinstance(Mirror(), SignalGroup)
    True
    """

    def elements(self) -> Iterable[Any]:
        """Return the elements to try: all of a finite group, some of a continuous one."""

    def act(self, element: Any, signal: Tensor) -> Tensor:
        r"""Return ``signal`` transformed: (batch, channels, \*space) or (batch, channels, group, \*space)."""


@checked(
    x=TensorOf("float", "batch, channels, …"),
    elements=TensorOf("float", "n, coords", empty=False) | IterableOf(ANY, least=1) | None,
)
def equivariance_error(
    model: Callable[[Tensor], Any],
    group: SignalGroup,
    x: Tensor,
    *,
    invariant: bool = False,
    output_action: Callable[[Any, Tensor], Tensor] | None = None,
    elements: Iterable[Any] | Tensor | None = None,
) -> float:
    r"""Return how far ``model`` is from commuting with ``group``, relative to the size of its output.

    .. math:: \max_g \|f(g x) - g f(x)\|_\infty \,/\, \|f(x)\|_\infty

    An output that is the same for another input has no error to measure, and raises an :class:`AssertionError`.

    Args:
        model: maps a signal to a signal; if it returns a tuple, the first entry is the signal. A module is
            run in evaluation mode.
        group: the elements to try and how they act.
        x: (batch, channels, [group,] \*space) signal, which should have no symmetries of its own.
        invariant: the output should not change at all.
        output_action: how an element acts on the output, ``group.act`` if not given.
        elements: the elements to try, ``group.elements()`` if not given: for a continuous group, or for the elements
            to which a model is partially equivariant.

    >>> class Mirror:
    ...     def elements(self):
    ...         return (False, True)
    ...     def act(self, element, signal):
    ...         return signal.flip(-1) if element else signal
    >>> x = torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> equivariance_error(torch.square, Mirror(), x)
    0.0
    >>> round(equivariance_error(lambda x: x.cumsum(-1), Mirror(), x), 3)
    0.857
    """
    errors = []
    for element, got, wanted in _equivariance_pairs(model, group, x, invariant, output_action, elements):
        assert_same_shape_and_dtype(f"at element {element!r}", got, wanted)
        errors.append(float((got - wanted).abs().amax()) / scale_of(wanted))
    return float(torch.tensor(errors, dtype=torch.float64).amax())  # unlike max, never loses a NaN


@checked(
    x=TensorOf("float", "batch, channels, …"),
    rtol=NOT_NEGATIVE,
    atol=NOT_NEGATIVE,
    elements=TensorOf("float", "n, coords", empty=False) | IterableOf(ANY, least=1) | None,
)
def assert_equivariant(
    model: Callable[[Tensor], Any],
    group: SignalGroup,
    x: Tensor,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    invariant: bool = False,
    output_action: Callable[[Any, Tensor], Tensor] | None = None,
    elements: Iterable[Any] | Tensor | None = None,
) -> None:
    r"""Assert that f(g x) = g f(x), or f(g x) = f(x) if ``invariant``, for every element g of ``group``.

    The assertion also fails if it would compare nothing: if the output is the same for another input, or nowhere above
    ``atol``.

    Args:
        model: maps a signal to a signal; if it returns a tuple, the first entry is the signal. A module is
            run in evaluation mode.
        group: the elements to try and how they act.
        x: (batch, channels, [group,] \*space) signal, which should have no symmetries of its own.
        rtol: difference allowed, relative to the largest entry of the output.
        atol: difference allowed on top of that.
        invariant: the output should not change at all.
        output_action: how an element acts on the output, ``group.act`` if not given.
        elements: the elements to try, ``group.elements()`` if not given: for a continuous group, or for the elements
            to which a model is partially equivariant.

    >>> from kernelfield.groups import Mirror
    >>> x = torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> assert_equivariant(torch.square, Mirror(dim=1), x)
    >>> assert_equivariant(lambda x: x.amax(-1), Mirror(dim=1), x, invariant=True)
    >>> assert_equivariant(lambda x: x.cumsum(-1), Mirror(dim=1), x)
    Traceback (most recent call last):
    AssertionError: not equivariant to element tensor([-1.]): differs by 6 (allowed 7e-05) at (0, 0, 2): got 7, ...
    """
    kind = "invariant" if invariant else "equivariant"
    for element, got, wanted in _equivariance_pairs(model, group, x, invariant, output_action, elements, atol):
        assert_close(f"not {kind} to element {element!r}", got, wanted, rtol, atol)


def _equivariance_pairs(
    model: Callable[[Tensor], Any],
    group: SignalGroup,
    x: Tensor,
    invariant: bool,
    output_action: Callable[[Any, Tensor], Tensor] | None,
    elements: Iterable[Any] | Tensor | None,
    atol: float = 0.0,
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    chosen = list(_listed(group) if elements is None else elements)
    if not chosen:
        raise ValueError(f"group must have elements to try, got none from {group!r}")
    with evaluation(model):
        output = model(x)
        y = signal_of(output)
        check_depends(model, x, y, atol)
        moves = len(chosen) == 1
        for element in chosen:
            try:
                moved = group.act(element, x)
            except (IndexError, RuntimeError, ValueError) as error:
                raise ValueError(
                    f"x must be a signal that the group acts on, got shape {tuple(x.shape)}: {error}"
                ) from error
            except (AttributeError, TypeError) as error:
                raise TypeError(f"elements must be elements of {group!r}, got {element!r}: {error}") from error
            moves = moves or not torch.equal(moved, x)
            got = model(moved)
            if invariant:
                wanted = y
            elif output_action is not None:
                wanted = output_action(element, y)
            else:
                wanted = _acted(group, element, output, got)
            yield element, signal_of(got), wanted
    if not moves:
        raise ValueError(f"x must not be symmetric, got a signal that every element of {group!r} maps to itself")


def _listed(group: SignalGroup) -> Iterable[Any]:
    try:
        return group.elements()
    except TypeError as error:
        raise ValueError(f"elements must be given for {group!r}, got None: {error}") from error


def _acted(group: SignalGroup, element: Any, output: Any, got: Any) -> Tensor:
    """Return ``output`` transformed by ``element``, as ``group`` acts on it; ``got`` has the same sampled elements."""
    y, sampled, theirs = signal_of(output), _sampled_elements(group, output), _sampled_elements(group, got)
    what = f"not equivariant to element {element!r}"
    if len(sampled) != len(theirs) or any(not torch.equal(a, b) for a, b in zip(sampled, theirs, strict=True)):
        raise AssertionError(f"{what}: the output has other elements of its group than that of x")
    try:
        return group.act(element, y, *sampled)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise AssertionError(
            f"{what}: {group!r} does not act on the output, of shape {tuple(y.shape)}: {error}; "
            "an invariant output needs invariant=True, any other an output_action"
        ) from error


def _sampled_elements(group: SignalGroup, output: Any) -> tuple[Tensor, ...]:
    """Return the elements of a signal on ``group`` that has some of them only."""
    some = getattr(output, "group", None) == group and not output.complete
    return (output.elements,) if some else ()

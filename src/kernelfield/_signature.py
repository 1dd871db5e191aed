"""Signatures: arguments that functions take and pass on, and their descriptions."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["accepted_arguments", "argument_texts", "takes_argument", "with_arguments_of"]


def with_arguments_of(*others: Callable[..., Any], without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Show the arguments of ``others`` in the signature of a function, in place of its ``**options``.

    The function passes its ``**options`` on to ``others``. ``inspect.signature`` then lists all arguments that it
    takes, so callers that choose or check arguments by name need no second list. Calls do not change.

    Args:
        others: the functions that take the options; where two have the same argument, the first one takes precedence.
        without: names of arguments that the function sets itself.

    >>> def draw(width, height, *, colour="red"): ...
    >>> @with_arguments_of(draw, without=("width", "height"))
    ... def draw_square(side, **options):
    ...     draw(side, side, **options)
    >>> inspect.signature(draw_square)
    <Signature (side, *, colour='red')>
    """

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        *kept, options = own.parameters.values()
        if options.kind is not options.VAR_KEYWORD:
            raise TypeError(f"{function.__qualname__} must end with **options, got {own}")
        named = {p.name for p in kept} | set(without)
        passed = {p.name: p for other in reversed(others) for p in inspect.signature(other).parameters.values()}
        added = [
            p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY)
            for p in sorted(passed.values(), key=lambda p: p.kind is p.VAR_KEYWORD)
            if p.name not in named
        ]
        function.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def accepted_arguments(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of a function's arguments; None for a function with ``**options``, which takes any name.

    >>> sorted(accepted_arguments(lambda x, step=1: x)), accepted_arguments(lambda x, **options: x)
    (['step', 'x'], None)
    """
    parameters = inspect.signature(function).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else frozenset(parameters)


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function takes an argument of this name, by itself or among its ``**options``.

    >>> takes_argument(lambda x, step=1: x, "mask"), takes_argument(lambda x, **options: x, "mask")
    (False, True)
    """
    accepted = accepted_arguments(function)
    return accepted is None or name in accepted


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument in the section "Args:" of a docstring, as plain text.

    >>> argument_texts(with_arguments_of)["without"]
    'names of arguments that the function sets itself.'
    """
    doc = inspect.getdoc(function) or ""
    found = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", doc, flags=re.DOTALL | re.MULTILINE)
    texts = (
        {}
        if found is None
        else dict(re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", found[1], re.DOTALL | re.MULTILINE))
    )
    plain = {name: re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text) for name, text in texts.items()}
    return {name: " ".join(text.replace("``", "").split()) for name, text in plain.items()}

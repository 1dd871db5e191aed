"""Lengths that an exported program accepts: traced without needless conditions, found, tried, and described."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental import _config as shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn
    from torch.export import ExportedProgram

__all__ = ["Lengths", "describe_lengths", "quiet", "trace"]

#: smallest and largest number of samples ("input") and of queries ("at"); None for no largest number
Lengths = dict[str, "tuple[int, int | None]"]


def trace(
    named: nn.Module, examples: dict[str, Tensor], dynamic: bool
) -> tuple[ExportedProgram, Lengths, list[dict[str, Tensor]]]:
    """Return a program, the lengths that it accepts, and inputs of other lengths with which to compare it.

    An axis whose length torch.export cannot keep dynamic is fixed at the length of the example. A warning names the
    accepted lengths if the network itself accepts more.

    Args:
        named: the network, with positional inputs.
        examples: inputs by name, in their order.
        dynamic: whether lengths are dynamic.
    """
    axes = [name for name in examples if name in ("input", "at")] if dynamic else []
    found: list[tuple[ExportedProgram, Lengths]] = []
    for oblivious in (False, True):
        if axes and (not found or _refused(named, examples, found[0][1])):
            found.append(_widest(named, examples, axes, oblivious))
    if not axes:
        return _traced(named, examples, [], False), {}, []
    program, lengths = min(found, key=lambda one: sum(low for low, _ in one[1].values()))
    refused = _refused(named, examples, lengths)
    if refused:
        warnings.warn(
            f"the exported network accepts {describe_lengths({name: lengths[name] for name in refused})}, and the "
            "network itself more: torch.export cannot express its shapes at other lengths",
            stacklevel=4,
        )
    return program, lengths, [other for name in axes for other in _others(named, examples, name, lengths[name])]


def _widest(
    named: nn.Module, examples: dict[str, Tensor], axes: list[str], oblivious: bool
) -> tuple[ExportedProgram, Lengths]:
    """Return a program with as many dynamic lengths as torch.export can keep, and its accepted lengths."""
    fixed: Lengths = {name: (_count(name, examples), _count(name, examples)) for name in axes}
    while axes:
        try:
            with quiet("torch._subclasses.fake_tensor", logging.CRITICAL):  # the caller handles their errors
                program = _traced(named, examples, axes, oblivious)
        except Exception:  # a length that torch.export cannot keep dynamic; any other error comes again below
            break
        found = {name: _accepted(named, program, examples, name) for name in axes}
        kept = {name: ends for name, ends in found.items() if ends is not None}
        if len(kept) == len(axes):
            return program, fixed | kept
        axes = list(kept)
    return _traced(named, examples, [], oblivious), fixed


def _traced(named: nn.Module, examples: dict[str, Tensor], axes: Sequence[str], oblivious: bool) -> ExportedProgram:
    """Return a program with dynamic lengths along some axes.

    By default, torch.export assumes that no length is 1, without asking for it, and asks the same of intermediate
    lengths. If it is oblivious of that, it asks for more of the input and less of intermediate lengths.
    """
    sizes: list[dict[int, Any]] = []
    for name, tensor in examples.items():
        size: dict[int, Any] = {0: torch.export.Dim.AUTO}
        if name != "lengths" and ("at" if name == "at" else "input") in axes:
            size[_axis(name, tensor)] = torch.export.Dim.AUTO
        sizes.append(size)
    oblivion = shapes.patch(backed_size_oblivious=oblivious)  # type: ignore[attr-defined]
    with torch.no_grad(), warnings.catch_warnings(), oblivion:
        warnings.simplefilter("ignore")
        return torch.export.export(named, tuple(examples.values()), dynamic_shapes=(tuple(sizes),), strict=False)


def _axis(name: str, tensor: Tensor) -> int:
    """Return the axis of an input along which samples, points or queries lie."""
    return tensor.dim() - 1 if name == "input" else 1


def _count(name: str, examples: dict[str, Tensor]) -> int:
    return examples[name].shape[_axis(name, examples[name])]


def _accepted(
    named: nn.Module, program: ExportedProgram, examples: dict[str, Tensor], name: str
) -> tuple[int, int | None] | None:
    """Return the smallest and largest length that program and network accept; None if it is fixed, or no interval."""
    length = _count(name, examples)
    placeholder = program.graph_signature.user_inputs[list(examples).index(name)]
    shape = next(node for node in program.graph.nodes if node.name == placeholder).meta["val"].shape
    symbol = shape[_axis(name, examples[name])]
    if isinstance(symbol, int):
        return None
    ends = program.range_constraints.get(symbol.node.expr)
    low = 1 if ends is None else max(1, int(ends.lower))
    high = int(ends.upper) if ends is not None and ends.upper.is_Integer else None  # of sympy, or infinite
    module = program.module()

    def accepts(count: int) -> bool:
        other = _resized(examples, name, count)
        return _output(module, other) is not None and _output(named, other) is not None

    low = 1 if low == 2 and accepts(1) else low  # assumed, but not asked for
    if not accepts(low):
        refused, low = low, length
        while low - refused > 1:
            middle = (low + refused) // 2
            low, refused = (middle, refused) if accepts(middle) else (low, middle)
    tried = {low + 1, length // 2, 3 * length // 4, length - 1, length, length + 1}
    return (low, high) if all(accepts(count) for count in tried if _within(count, (low, high))) else None


def _within(count: int, ends: tuple[int, int | None]) -> bool:
    return ends[0] <= count and (ends[1] is None or count <= ends[1])


def _output(call: Callable[..., Any], inputs: dict[str, Tensor]) -> Tensor | None:
    """Return an output; None if the call fails."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(*inputs.values())
    except Exception:  # conditions of programs are assertions, those of operators are errors of several kinds
        return None


def _others(
    named: nn.Module, examples: dict[str, Tensor], name: str, ends: tuple[int, int | None]
) -> list[dict[str, Tensor]]:
    """Return inputs of other lengths for which the network has finite outputs."""
    length = _count(name, examples)
    counts = sorted({ends[0], 3 * length // 4, length + 1})
    others = [_resized(examples, name, count) for count in counts if _within(count, ends)]
    return [other for other in others if (y := _output(named, other)) is not None and bool(torch.isfinite(y).all())]


def _refused(named: nn.Module, examples: dict[str, Tensor], lengths: Lengths) -> list[str]:
    """Return the axes along which the network accepts other lengths than those."""
    found = []
    for name, (low, high) in lengths.items():
        beyond = [count for count in (low - 1, 0 if high is None else high + 1) if count]
        if any(_output(named, _resized(examples, name, count)) is not None for count in beyond):
            found.append(name)
    return found


def _resized(examples: dict[str, Tensor], name: str, count: int) -> dict[str, Tensor]:
    """Return the first ``count`` samples or queries of each input; longer inputs repeat the last one."""
    found = {}
    for key, tensor in examples.items():
        if (key == "at") != (name == "at"):
            found[key] = tensor
        elif key == "lengths":
            found[key] = tensor.clamp(max=count)
        else:
            axis = _axis(key, tensor)
            index = torch.arange(count, device=tensor.device).clamp(max=tensor.shape[axis] - 1)
            found[key] = tensor.index_select(axis, index)
    return found


def describe_lengths(lengths: Mapping[str, Any]) -> str:
    """Return accepted lengths in words.

    Args:
        lengths: smallest and largest number of samples and of queries, as in :func:`trace`.

    >>> describe_lengths({"input": [1, None]}), describe_lengths({"input": [17, None], "at": [4, 4]})
    ('inputs of any length', 'inputs of length 17 or more, at of length 4 only')
    """
    names = {"input": "inputs", "at": "at"}
    return ", ".join(f"{names[name]} of {_interval(low, high)}" for name, (low, high) in lengths.items())


def _interval(low: int, high: int | None) -> str:
    if high is None:
        return "any length" if low == 1 else f"length {low} or more"
    return f"length {low} only" if low == high else f"length {low} to {high}"


@contextmanager
def quiet(name: str, level: int = logging.ERROR) -> Iterator[None]:
    """Silence the messages of a logger below ``level`` inside the block."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)

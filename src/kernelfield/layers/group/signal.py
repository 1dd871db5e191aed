"""Signals on a group, the type that layers on groups take and return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..._arguments import checked
from ..._object_kinds import Instance, TensorOf
from .checks import check_elements, check_signal
from .torch_functions import POINTWISE, replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...groups import Group

__all__ = ["SIGNAL", "GroupSignal", "Signal", "ValueLayer", "as_signal", "made_signal", "map_values"]

#: the argument of layers on groups: a signal, or its values at all elements of a finite group
SIGNAL = TensorOf("float", "batch, channels, group, …", empty=False) | Instance("kernelfield.layers.GroupSignal")


class GroupSignal:
    r"""A signal on a group: its values, the elements at which they were sampled, gates, and the group.

    Layers on groups take and return it, so ``nn.Sequential(lift, conv, norm, nn.ReLU(), pool)`` works, also compiled
    and exported. Arithmetic and torch's pointwise functions act on the values, and ``torch.cat(signals, dim=1)`` joins
    channels. Signals that are combined must have the same elements. On a GPU and in compiled programs, where the host
    cannot check this, the result is NaN if elements differ.

    Args:
        values: (batch, channels, group, \*space) values.
        elements: (group, coords) elements of the group axis, in order. None stands for all elements of a finite group
            in its own order; layers use their fastest path for such a signal. With shape (batch, group, coords) each
            sample has its own elements, which :class:`GroupConv` accepts.
        gates: (group,) factors that sums and reductions over the group apply to the elements, or None. Their value is
            1. They carry the gradient to the distribution that selected the elements.
        group: the group.
        gated: whether gates may be 0. Elements with such gates are absent: their values are meaningless, and reductions
            over the group leave them out; see :attr:`present`.

    >>> from kernelfield.groups import SO2, Cyclic
    >>> signal = GroupSignal(torch.randn(2, 3, 4, 8, 8), group=Cyclic(4))
    >>> signal.complete, signal.elements.flatten()
    (True, tensor([0., 1., 2., 3.]))
    >>> torch.relu(2 * signal + 1).shape
    torch.Size([2, 3, 4, 8, 8])
    >>> GroupSignal(torch.randn(2, 3, 5, 8, 8), SO2().sample(5), group=SO2())
    GroupSignal((2, 3, 5, 8, 8), group=SO2(), 5 elements)
    """

    def __init__(
        self,
        values: Tensor,
        elements: Tensor | None = None,
        gates: Tensor | None = None,
        *,
        group: Group,
        gated: bool = False,
    ) -> None:
        if not torch.compiler.is_compiling():
            check_signal(values, elements, gates, group, gated)
        self._set(values, elements, gates, group, gated)
        if elements is not None:
            check_elements(elements, group)

    def _set(self, values: Tensor, elements: Tensor | None, gates: Tensor | None, group: Group, gated: bool) -> None:
        self.values = values
        self.gates = gates
        self.gated = gated
        self.group = group
        self._elements = elements
        if elements is None:
            if group.order is None:
                raise ValueError(f"elements must be given for {group}, which is not finite, got None")
            if values.shape[2] != group.order:
                raise ValueError(
                    f"values must have shape (batch, channels, {group.order}, *space) for {group} without elements, "
                    f"got {tuple(values.shape)}"
                )
        elif elements.shape[-2:] != (values.shape[2], group.coords) or (
            # Compare the batch only if elements have one: a comparison would fix its size in an exported network.
            elements.dim() != 2 and (elements.dim() != 3 or elements.shape[0] != values.shape[0])
        ):
            raise ValueError(
                f"elements must have shape (group, {group.coords}) for {group} and values of shape (batch, channels, "
                f"group, *space), got {tuple(elements.shape)} for {tuple(values.shape)}"
            )

    @property
    def elements(self) -> Tensor:
        """The elements of the group axis: (group, coords), or (batch, group, coords) if samples have their own."""
        if self._elements is not None:
            return self._elements
        # Elements of finite groups are whole numbers, which float32 represents exactly and bfloat16 may not.
        dtype = torch.float64 if self.values.dtype == torch.float64 else torch.float32
        return self.group.elements(dtype, self.values.device)

    @property
    def complete(self) -> bool:
        """Whether the signal holds all elements of a finite group, in order."""
        return self._elements is None

    @property
    def present(self) -> Tensor | None:
        """1 for elements that are present and 0 for absent ones, (1, 1, group, 1, …); None if none can be absent."""
        if not self.gated or self.gates is None:
            return None
        return self.gates.detach().to(self.dtype).view(1, 1, -1, *[1] * (self.dim() - 3))

    def count(self) -> int | Tensor:
        """Return the number of elements that are present."""
        present = self.present
        return self.values.shape[2] if present is None else present.sum()

    @property
    def shape(self) -> torch.Size:
        """Shape of the values."""
        return self.values.shape

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Device of the values."""
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        """Whether the values require a gradient."""
        return self.values.requires_grad

    def dim(self) -> int:
        """Return the number of axes of the values."""
        return self.values.dim()

    def replace(self, values: Tensor) -> GroupSignal:
        r"""Return the signal with other ``values``, (batch, channels, group, \*space), at the same elements."""
        fits = type(values) is Tensor and values.dim() > 2 and values.shape[2] == self.values.shape[2]
        if fits and values.is_floating_point() and (self._elements is None or self._elements.dim() == 2):
            return _unflatten((values, self._elements, self.gates), (self.group, self.gated))
        return made_signal(values, self._elements, self.gates, self.group, self.gated)

    def map(self, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> GroupSignal:
        """Apply ``function`` to the values. It must treat all elements alike and keep their axis.

        >>> from kernelfield.groups import Mirror
        >>> GroupSignal(torch.randn(1, 2, 2, 5, 5), group=Mirror()).map(torch.clamp, min=0).values.min() >= 0
        tensor(True)
        """
        return self.replace(function(self.values, *args, **kwargs))

    def to(self, *args: Any, **kwargs: Any) -> GroupSignal:
        """Move the signal and convert its values, as :meth:`torch.Tensor.to`. Elements keep their precision."""
        values = self.values.to(*args, **kwargs)
        elements, gates = (None if t is None else t.to(values.device) for t in (self._elements, self.gates))
        return made_signal(values, elements, gates, self.group, self.gated)

    def clone(self) -> GroupSignal:
        """Return a copy of the signal; gradients pass through it."""
        copied = self._each(torch.clone)
        copied.gates = self.gates  # a sum with the copy must count the gates once, as a sum with the signal itself
        return copied

    def detach(self) -> GroupSignal:
        """Return the signal detached from the autograd graph."""
        return self._each(torch.detach)

    def _each(self, function: Callable[[Tensor], Tensor]) -> GroupSignal:
        elements, gates = (None if t is None else function(t) for t in (self._elements, self.gates))
        return made_signal(function(self.values), elements, gates, self.group, self.gated)

    def __add__(self, other: GroupSignal | Tensor | float) -> GroupSignal:
        return _pointwise(torch.add, (self, other))

    def __sub__(self, other: GroupSignal | Tensor | float) -> GroupSignal:
        return _pointwise(torch.sub, (self, other))

    def __rsub__(self, other: Tensor | float) -> GroupSignal:
        return _pointwise(torch.rsub, (self, other))

    def __mul__(self, other: GroupSignal | Tensor | float) -> GroupSignal:
        return _pointwise(torch.mul, (self, other))

    def __truediv__(self, other: GroupSignal | Tensor | float) -> GroupSignal:
        return _pointwise(torch.div, (self, other))

    def __pow__(self, exponent: float) -> GroupSignal:
        return self.map(torch.pow, exponent)

    def __neg__(self) -> GroupSignal:
        return self.map(torch.neg)

    __radd__ = __add__
    __rmul__ = __mul__

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Tensor],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> GroupSignal:
        if function.__name__ in ("cat", "concat", "concatenate"):
            return _joined(*args, **(kwargs or {}))
        if function.__name__ not in POINTWISE:
            raise TypeError(
                f"torch.{function.__name__} must be given signal.values, got a GroupSignal: only pointwise functions "
                f"and torch.cat(…, dim=1) accept one{replacement(function.__name__)}"
            )
        return _pointwise(function, args, kwargs)

    def __repr__(self) -> str:
        shape = tuple(self.values.shape) if isinstance(self.values, Tensor) else self.values
        held = "complete" if self._elements is None else f"{self._elements.shape[-2]} elements"
        return f"GroupSignal({shape}, group={self.group}, {held})"


def made_signal(
    values: Tensor, elements: Tensor | None, gates: Tensor | None, group: Group, gated: bool, is_checked: bool = False
) -> GroupSignal:
    """Return a signal on elements that are known to be of the group, without reading them, which may wait.

    If ``is_checked``, all arguments are known to have the right types.
    """
    if not is_checked and not torch.compiler.is_compiling():
        check_signal(values, elements, gates, group, gated)
    signal = GroupSignal.__new__(GroupSignal)
    signal._set(values, elements, gates, group, gated)  # noqa: SLF001
    return signal


def _pointwise(
    function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> GroupSignal:
    """Apply a pointwise function to the values of signals on the same elements, tensors and numbers."""
    named = kwargs or {}
    signals = [a for a in (*args, *named.values()) if isinstance(a, GroupSignal)]
    return _combine(
        signals, lambda: function(*map(_values_of, args), **{name: _values_of(a) for name, a in named.items()})
    )


def _values_of(argument: Any) -> Any:
    return argument.values if isinstance(argument, GroupSignal) else argument


def _joined(tensors: Sequence[GroupSignal], dim: int = 0) -> GroupSignal:
    """Join the channels of signals on the same elements: :func:`torch.cat`."""
    if not all(isinstance(t, GroupSignal) for t in tensors):
        kinds = ", ".join(type(t).__name__ for t in tensors)
        raise TypeError(f"tensors of torch.cat must all be GroupSignals or all be tensors, got {kinds}")
    if dim not in (1, 1 - tensors[0].dim()):
        raise ValueError(f"dim of torch.cat must be 1, the channels, for GroupSignals, got {dim}")
    return _combine(tensors, lambda: torch.cat([t.values for t in tensors], dim=1))


def _combine(signals: Sequence[GroupSignal], compute: Callable[[], Tensor]) -> GroupSignal:
    """Return the values that ``compute`` returns as a signal on the elements of ``signals``, which must be equal."""
    first = signals[0]
    found = [_same_elements(first, other) for other in signals[1:]]
    values = compute()
    for same in found:
        if same is not None:
            values = torch.where(same, values, torch.nan)
    gates: Tensor | None = None
    for gate in {id(s.gates): s.gates for s in signals if s.gates is not None}.values():
        gates = gate if gates is None else gates * gate  # an element that is absent in one signal is absent in the sum
    gated = any(s.gated for s in signals)
    return made_signal(values, first._elements, gates, first.group, gated)  # noqa: SLF001


def _same_group(a: Group, b: Group) -> bool:
    """Return whether two groups are equal.

    Torch 2.11 cannot compare all attributes in a compiled program. There :func:`_same_elements` also compares the
    matrices of the elements.
    """
    if a is b or not torch.compiler.is_compiling():
        return a is b or a == b
    return type(a) is type(b) and a.order == b.order and a.dim == b.dim


def _same_elements(a: GroupSignal, b: GroupSignal) -> Tensor | None:
    """Raise a ValueError if two signals have different elements; return a bool tensor if only the device can tell."""
    if not _same_group(a.group, b.group):
        raise ValueError(f"signals must be on one group, got {a.group} and {b.group}")
    x, y = a._elements, b._elements  # noqa: SLF001
    compared = a.group is b.group or not torch.compiler.is_compiling()
    if x is y and compared:
        return None
    x, y = a.elements, b.elements
    if x.shape == y.shape:
        if torch.compiler.is_compiling() or not x.device.type == y.device.type == "cpu":
            same = (x.to(y.dtype) == y).all()  # reading it would make the host wait, or break a compiled program
            return same if compared else same & (a.group.matrix(x).to(y.dtype) == b.group.matrix(y)).all()
        if torch.equal(x.to(y.dtype), y):
            return None
    hint = "a layer with resample=False keeps those of its input"
    raise ValueError(f"signals must have the same elements, got {x.shape[-2]} and {y.shape[-2]} that differ; {hint}")


def as_signal(
    x: Tensor | GroupSignal, group: Group, channels: int, dim: int | None = None, *, per_sample: bool = False
) -> GroupSignal:
    r"""Return ``x`` as a signal on ``group``, after checking its group, channels and axes.

    A tensor holds the values at all elements of a finite group.

    Args:
        x: the signal, or its values.
        group: the group of the layer.
        channels: channels that the layer takes.
        dim: number of axes after the group axis; those of the group's space by default.
        per_sample: whether the layer accepts a signal whose samples have their own elements.

    >>> from kernelfield.groups import SO2, Cyclic
    >>> as_signal(torch.randn(2, 3, 4, 8, 8), Cyclic(4), 3)
    GroupSignal((2, 3, 4, 8, 8), group=Cyclic(4), complete)
    >>> as_signal(GroupSignal(torch.randn(2, 3, 4, 8, 8), group=Cyclic(4)), SO2(), 3)
    Traceback (most recent call last):
    ValueError: x must be a signal on SO2(), got one on Cyclic(4)
    """
    values = x.values if isinstance(x, GroupSignal) else x
    if not isinstance(values, Tensor):
        raise TypeError(f"x must be a GroupSignal or a tensor, got {type(x).__name__}")
    if values.dim() != (group.dim if dim is None else dim) + 3 or values.shape[1] != channels:
        axes = f"*space) with {group.dim} spatial axes" if dim is None else "points) with coords"
        raise ValueError(f"x must have shape (batch, {channels}, group, {axes}, got {tuple(values.shape)}")
    if not isinstance(x, GroupSignal):
        if group.order is None:
            raise ValueError(f"x must be a GroupSignal with elements for {group}, which is not finite, got a tensor")
        if values.shape[2] != group.order:
            raise ValueError(f"x must have {group.order} elements of {group} along axis 2, got {values.shape[2]}")
        return made_signal(values, None, None, group, False, is_checked=values.is_floating_point())
    if not (per_sample or x.complete) and x.elements.dim() == 3:
        raise ValueError("x must have the same elements for all samples, got different ones per sample")
    if x.group is group or x.group == group:
        return x
    if x.group.kind != group.kind:
        raise ValueError(f"x must be a signal on {group}, got one on {x.group}")
    return made_signal(values, x.elements, x.gates, group, x.gated)  # another window of the same group


#: a signal on a group, or the tensor of its values
Signal = TypeVar("Signal", Tensor, GroupSignal)


def map_values(x: Signal, function: Callable[[Tensor], Tensor]) -> Signal:
    r"""Apply ``function`` to values (batch, channels, group, \*space) of a signal or a tensor; return the same type."""
    if isinstance(x, GroupSignal):
        return x.map(function)
    return function(x)


class ValueLayer(nn.Module):
    """Base class of layers that transform the values of a signal and keep its elements and gates."""

    @checked(x=SIGNAL)
    def forward(self, x: Signal) -> Signal:
        return map_values(x, self.transform)

    def transform(self, x: Tensor) -> Tensor:
        r"""Return the new values of (batch, channels, group, \*space)."""
        raise NotImplementedError


def _flatten(signal: GroupSignal) -> tuple[list[Any], tuple[Group, bool]]:
    return [signal.values, signal._elements, signal.gates], (signal.group, signal.gated)  # noqa: SLF001


def _flatten_with_keys(signal: GroupSignal) -> tuple[list[tuple[Any, Any]], tuple[Group, bool]]:
    children, context = _flatten(signal)
    names = ("values", "elements", "gates")
    return [(pytree.GetAttrKey(name), child) for name, child in zip(names, children, strict=True)], context


def _unflatten(children: Iterable[Any], context: tuple[Group, bool]) -> GroupSignal:
    # Without __init__ and its checks: leaves of a tree may be any object, and parts of a signal are already checked.
    signal = GroupSignal.__new__(GroupSignal)
    signal.values, signal._elements, signal.gates = children  # noqa: SLF001
    signal.group, signal.gated = context
    return signal


pytree.register_pytree_node(
    GroupSignal,
    _flatten,
    _unflatten,
    serialized_type_name="kernelfield.layers.group.GroupSignal",
    flatten_with_keys_fn=_flatten_with_keys,
)

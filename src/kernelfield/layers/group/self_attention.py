"""Self-attention from space to a group, and on a group (chapter 9)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._arguments import checked
from ..._checks import is_symbolic
from ..._kinds import RATE, Choice, Int
from ..._module_state import ComputedBuffers, keep_geometry
from ..._object_kinds import TensorOf
from ...ops.attention import METHODS, attention_map, group_attention
from ...ops.backend import recompute
from ...ops.graph_cache import capturing
from ..pointwise import Pointwise
from .neighborhood import check_points, check_space, dilations, neighborhood_reach, pairs_of
from .relative_encoding import AXIS_FIELD, RelativeEncoding
from .signal import SIGNAL, GroupSignal, as_signal, made_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...fields import Field
    from ...groups import Group

__all__ = ["GroupSelfAttention", "LiftingSelfAttention"]

ENCODINGS = ("relative", "absolute", "none")


class _SelfAttention(ComputedBuffers):
    """Base class of lifting attention and attention on a group."""

    lifts: bool
    all_elements: Tensor

    @checked(
        neighborhood=Int(1, odd=True) | None,
        encoding=Choice(*ENCODINGS),
        dropout=RATE,
        value_dropout=RATE,
        method=Choice(*METHODS),
    )
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        group: Group,
        heads: int = 1,
        head_channels: int | None = None,
        neighborhood: int | None = 5,
        size: int | None = None,
        encoding: str = "relative",
        field: Callable[..., Field] = AXIS_FIELD,
        dropout: float = 0.0,
        value_dropout: float = 0.0,
        chunk: int | None = None,
        method: str = "auto",
    ) -> None:
        super().__init__()
        if not group.finite:
            raise ValueError(f"group must be finite for attention to its elements, got {group}")
        self.group = group
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        codes = group.dim + (not self.lifts) if encoding == "relative" else 1
        inner = max(codes, out_channels // 2) if head_channels is None else head_channels
        Int(codes).check("head_channels", inner)
        self.head_channels = inner
        self.neighborhood, self.reach = neighborhood, neighborhood_reach(neighborhood, size)
        keep_geometry(self, "reach", "group", "heads")
        dilates = not group.isometric and neighborhood is not None
        self.dilations = dilations(group, group.elements(torch.float64)) if dilates else None
        self.encoding = encoding
        self.dropout, self.value_dropout = dropout, value_dropout
        # A buffer on the module's device, because a CUDA graph cannot contain a copy from the host.
        self.register_computed("all_elements", group.elements())
        self._offset_cache: dict[tuple[Any, ...], tuple[Tensor, Tensor | None]] = {}
        self._captured_offsets: dict[tuple[Any, ...], tuple[Tensor, Tensor | None]] = {}
        self.chunk, self.method = chunk, method
        total = self.heads * self.head_channels
        self.project = Pointwise(in_channels, 3 * total)
        self.combine = Pointwise(total, out_channels)
        self.codes = (
            RelativeEncoding(group, self.head_channels, on_group=not self.lifts, field=field)
            if encoding == "relative"
            else None
        )
        self.places = nn.ModuleList(field(1, in_channels) for _ in range(group.dim)) if encoding == "absolute" else None

    def _attend(
        self, x: Tensor, elements: Tensor | None, coords: Tensor | None, mask: Tensor | None, crop: int
    ) -> GroupSignal:
        """Apply attention to (batch, channels, n, *space) values; n = 1 for a signal to lift."""
        here = self.all_elements if elements is None else elements.to(self.all_elements.dtype)
        space = x.shape[3:]
        check_points(x, coords, mask, crop, self.group.dim)
        if crop and not is_symbolic(*space) and min(space) <= 2 * crop:
            raise ValueError(
                f"x must have more than {2 * crop} positions along each axis for crop={crop} at each end, "
                f"got {tuple(space)}"
            )
        alike = self._alike(here, elements)
        if coords is not None:
            y = self._points(x, here, alike, coords, mask)
        else:
            q, k, v = self._parts(x, None)
            y = torch.cat([self._grid(q, k, v, some, here, dilation, crop) for some, dilation in alike], dim=1)
        y = y.unflatten(0, (-1, self.heads)).movedim(-1, 2).flatten(1, 2)
        return made_signal(self.combine(y), elements, None, self.group, False)

    def _maps(self, x: Tensor, elements: Tensor | None) -> Tensor:
        here = self.all_elements if elements is None else elements.to(self.all_elements.dtype)
        q, k, _ = self._parts(x, None)
        found = []
        for some, dilation in self._alike(here, elements):
            codes = self._codes(some, here, q.shape[2:-1], q.dtype, dilation)
            found.append(attention_map(q, k, *codes, neighborhood=self._shape(), dilation=dilation))
        return torch.cat(found, dim=1).unflatten(0, (-1, self.heads))

    def _parts(self, x: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: (batch · heads, n, *space, head_channels) each."""
        projected = self.project(x)
        parts = projected.unflatten(1, (3, self.heads, self.head_channels))
        if self.places is not None:
            moved = self.project(x + self._absolute(x, coords).to(x.dtype))
            parts = torch.cat([moved.unflatten(1, (3, self.heads, self.head_channels))[:, :2], parts[:, 2:]], dim=1)
        # One copy serves all three and makes samples and heads one axis.
        q, k, v = parts.transpose(0, 1).flatten(1, 2).movedim(2, -1).unbind(0)
        if self.value_dropout:
            v = F.dropout(v, self.value_dropout, self.training)
        return q / math.sqrt(self.in_channels), k, v

    def _grid(self, q: Tensor, k: Tensor, v: Tensor, some: Tensor, here: Tensor, dilation: int, crop: int) -> Tensor:
        """Return attention at elements whose neighbourhoods have the same dilation."""
        positions, relative = self._codes(some, here, q.shape[2:-1], q.dtype, dilation, crop)
        queries = math.prod([n - 2 * crop for n in q.shape[2:-1]])
        keys = positions.shape[2] if self.neighborhood is None else self.neighborhood**self.group.dim
        y = group_attention(
            q,
            k,
            v,
            positions,
            relative,
            neighborhood=self._shape(),
            dilation=dilation,
            crop=crop,
            keep=self._keep(q, queries, keys),
            chunk=self.chunk,
            method=self.method,
        )
        return y * self._measure(q)

    def _points(
        self, x: Tensor, here: Tensor, alike: list[tuple[Tensor, int]], coords: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return attention among points, one sample at a time, since each has its own offsets."""
        q, k, v = (part.unflatten(0, (-1, self.heads)) for part in self._parts(x, coords))

        def one(q: Tensor, k: Tensor, v: Tensor, at: Tensor, seen: Tensor | None, keep: Tensor | None) -> Tensor:
            offsets = at[None] - at[:, None]  # (queries, keys, dim)
            found = []
            for some, dilation in alike:
                codes, valid = self._codes_at(some, here, offsets.to(q.dtype)), self._visible(offsets, seen, dilation)
                y = group_attention(q, k, v, *codes, valid=valid, keep=keep, chunk=q.shape[0], method=self.method)
                found.append(y)
            return torch.cat(found, dim=1) * self._measure(q)

        results = []
        for i in range(len(x)):
            at = coords[i if len(coords) > 1 else 0]
            seen, keep = None if mask is None else mask[i], self._keep(q[i], len(at), len(at))
            arguments = (q[i], k[i], v[i], at, seen, keep)
            results.append(recompute(one, *arguments))  # safe to recompute, because it draws no random numbers
        return torch.cat(results)

    def _visible(self, offsets: Tensor, seen: Tensor | None, dilation: int) -> Tensor | None:
        """Return a mask (queries, keys): a point attends to itself and to the observed points of its neighbourhood."""
        near = None
        if self.neighborhood is not None:
            near = offsets.norm(dim=-1) <= dilation * (self.reach + 1e-4)
        if seen is None:
            return near
        near = seen[None].expand(len(seen), -1) if near is None else near & seen[None]
        return near | torch.eye(len(seen), dtype=torch.bool, device=seen.device)

    def _codes(
        self, some: Tensor, here: Tensor, space: Sequence[int], dtype: torch.dtype, dilation: int, crop: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the codes of all offsets of a grid and of all relative elements."""
        moved, pairs = self._offsets(some, space, dilation, crop)
        if self.codes is None:
            n_in = 1 if self.lifts else len(here)
            positions, relative = moved[..., :0], moved.new_zeros(len(some), n_in, 0)
        else:
            everyone = some is self.all_elements and here is self.all_elements
            positions, relative = self.codes.at(moved), self.codes.element(None if everyone else some, here)
        if pairs is not None:
            # Copy the code of each offset to all pairs of positions with that offset.
            flat = positions.flatten(1, len(space))
            positions = flat.index_select(1, pairs.flatten()).unflatten(1, pairs.shape)
        return positions.to(dtype), relative.to(dtype)

    def _offsets(self, some: Tensor, space: Sequence[int], dilation: int, crop: int) -> tuple[Tensor, Tensor | None]:
        """Return a grid's offsets transformed by inverse elements and, for a global layer, the offset of each pair.

        Offsets for the whole group are cached, because computing them takes more launches than the rest of the layer.
        """
        shape = self._shape()
        key = (tuple(space) if shape is None else shape, dilation, crop, some.dtype, some.device)
        kept = some is self.all_elements and type(some) is Tensor and not torch.compiler.is_compiling()
        kept = kept and not torch._C._are_functorch_transforms_active()  # noqa: SLF001  # whose tensors end with them
        if kept and key in self._offset_cache:
            if capturing():  # the graph reads these tensors but does not keep them alive
                self._captured_offsets[key] = self._offset_cache[key]
            return self._offset_cache[key]
        with torch.inference_mode(False), torch.no_grad():
            if shape is None:
                axes = [torch.arange(-(n - 1), n, device=some.device) for n in space]
            else:
                axes = [dilation * (torch.arange(n, device=some.device) - n // 2) for n in shape]
            offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).to(some.dtype) / self.reach
            moved = offsets.expand(len(some), *offsets.shape) if self.codes is None else self.codes.moved(some, offsets)
            found = moved, pairs_of(space, crop, some.device) if shape is None else None
        # Tensors of a graph that is being captured have no values yet.
        if kept and not capturing():
            if len(self._offset_cache) >= 4:
                self._offset_cache.clear()
            self._offset_cache[key] = found
        return found

    def _codes_at(self, some: Tensor, here: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        if self.codes is None:
            n_in = 1 if self.lifts else len(here)
            return offsets.new_zeros(len(some), *offsets.shape[:-1], 0), offsets.new_zeros(len(some), n_in, 0)
        return self.codes.position(some, offsets / self.reach), self.codes.element(some, here)

    def _absolute(self, x: Tensor, coords: Tensor | None) -> Tensor:
        """Return the codes of absolute positions: (batch or 1, channels, 1, *space)."""
        assert self.places is not None
        if coords is None:
            axes = [torch.arange(n, device=x.device, dtype=self.project.weight.dtype) for n in x.shape[3:]]
            coords = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)[None]
        codes = [field(coords[..., i : i + 1] / self.reach) for i, field in enumerate(self.places)]
        return torch.stack(codes).sum(dim=0).movedim(-1, 1).unsqueeze(2)

    def _keep(self, q: Tensor, queries: int, keys: int) -> Tensor | None:
        """Return a mask of the keys that dropout keeps at each position, for all query and output elements alike."""
        if not (self.dropout and self.training):
            return None
        # Query positions are contiguous in memory, as they are in the queries.
        shape = (q.shape[0], q.shape[1], keys, queries)
        return torch.empty(shape, dtype=torch.bool, device=q.device).bernoulli_(1 - self.dropout).permute(0, 3, 1, 2)

    def _measure(self, q: Tensor) -> float:
        """Return the factor that averages over the query's elements and corrects for dropout."""
        return 1 / (q.shape[1] * (1 - self.dropout if self.training else 1.0))

    def _shape(self) -> tuple[int, ...] | None:
        return None if self.neighborhood is None else (self.neighborhood,) * self.group.dim

    def _alike(self, here: Tensor, elements: Tensor | None) -> list[tuple[Tensor, int]]:
        """Group elements by the dilation of their neighbourhood: all together, or one by one if the group dilates."""
        if self.dilations is None:
            return [(here, 1)]
        each = self.dilations if elements is None else dilations(self.group, elements)
        return list(zip(here.split(1), each, strict=True))

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, group={self.group}, heads={self.heads}, "
            f"head_channels={self.head_channels}, neighborhood={self.neighborhood}, encoding={self.encoding!r}"
        )


class LiftingSelfAttention(_SelfAttention):
    r"""Self-attention from space to a group (chapter 9, Eq. 14).

    .. math:: y(x, h) = W \bigcup_{\text{heads}} \sum_{y \in N(x)} \sigma_y\big(\langle q(x),\, k(y) +
        \mathcal{L}_h[\rho](y - x)\rangle\big)\, v(y)

    The group acts on the encoding and never on the image, so an eighth of a turn is as exact as a quarter. The scores
    ⟨q, k⟩ are computed once for all elements.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, at every element.
        group: a finite group: rotations of any number, mirrors, or dilations.
        heads: number of heads.
        head_channels: channels of each head's queries, keys and values; half of ``out_channels`` by default.
        neighborhood: odd number of positions along each axis that a query attends to; None for all of them. Dilations
            must dilate it by whole numbers, as in the dyadic form of the chapter's appendix. All neighbourhoods then
            have the same number of positions, so there is no measure to divide by.
        size: for a global neighbourhood, the number of training steps at which the encoding's coordinate is 1.
        encoding: "relative", "absolute" for codes that are added to queries and keys, or "none". The last two serve for
            comparison.
        field: makes the encoding of one coordinate from (dim, channels).
        dropout: probability to drop an attention weight.
        value_dropout: probability to drop a value.
        chunk: number of pairs of sample and head to compute at once.
        method: how to compute attention; see :func:`kernelfield.ops.attention.group_attention`.

    >>> from kernelfield.groups import Cyclic
    >>> lift = LiftingSelfAttention(3, 8, group=Cyclic(8), heads=2)
    >>> lift(torch.randn(2, 3, 9, 9)).values.shape
    torch.Size([2, 8, 8, 9, 9])
    >>> lift = LiftingSelfAttention(3, 8, group=Cyclic(8), neighborhood=None, size=9)
    >>> lift(torch.randn(2, 3, 50), coords=torch.rand(2, 50, 2)).values.shape
    torch.Size([2, 8, 8, 50])
    """

    lifts = True

    @checked(
        x=TensorOf("float", empty=False),
        coords=TensorOf("float", "…, points, dim") | None,
        mask=TensorOf("bool") | None,
        crop=Int(0),
    )
    def forward(
        self, x: Tensor, *, coords: Tensor | None = None, mask: Tensor | None = None, crop: int = 0
    ) -> GroupSignal:
        r"""Return the lifted signal and its elements.

        Args:
            x: (batch, in_channels, \*space) signal, or (batch, in_channels, points) with ``coords``.
            coords: (batch or 1, points, dim) coordinates in training steps; in a local layer a point sees the points
                within half a neighbourhood, dilated by the element.
            mask: (batch, points) bool, False where there is no point; with ``coords`` only.
            crop: positions at each end of each axis that get no output; 0 with ``coords``.
        """
        check_space(x, self.in_channels, 2 + (self.group.dim if coords is None else 1), self.group.dim)
        return self._attend(x.unsqueeze(2), None, coords, mask, crop)

    @torch.no_grad()
    def maps(self, x: Tensor) -> Tensor:
        r"""Return the attention that each position of (batch, in_channels, \*space) receives.

        The maps have shape (batch, heads, group, \*space) and sum to one over space.
        """
        return self._maps(x.unsqueeze(2), None)


class GroupSelfAttention(_SelfAttention):
    r"""Self-attention on a group (chapter 9, Eq. 16).

    .. math::
        y(x, h) = W \bigcup_{\text{heads}} \sum_{\tilde h} \sum_{\hat h,\, y \in N(x)} \sigma_{\hat h, y}\big(\langle
            q(x, \tilde h),\, k(y, \hat h) + \mathcal{L}_h[\rho](y - x, \hat h)\rangle\big)\, v(y, \hat h)

    with the encoding :math:`\rho(h^{-1}(y - x), h^{-1}\hat h)`, which makes the layer equivariant up to rounding. (With
    the chapter's :math:`h^{-1}\tilde h^{-1}\hat h` it would not be.) The sum over h̃ is divided by the number of
    elements, so initial outputs are of the same size on large and small groups.

    The arguments are those of :class:`LiftingSelfAttention`. :func:`kernelfield.ops.attention.group_attention` gives
    the memory and time.

    >>> from kernelfield.groups import Dihedral
    >>> layer = GroupSelfAttention(8, 6, group=Dihedral(4), heads=2, neighborhood=3)
    >>> layer(torch.randn(2, 8, 8, 9, 9)).values.shape
    torch.Size([2, 6, 8, 9, 9])
    """

    lifts = False

    @checked(x=SIGNAL, coords=TensorOf("float", "…, points, dim") | None, mask=TensorOf("bool") | None, crop=Int(0))
    def forward(
        self,
        x: Tensor | GroupSignal,
        *,
        coords: Tensor | None = None,
        mask: Tensor | None = None,
        crop: int = 0,
    ) -> GroupSignal:
        r"""Attend to a signal on the group; the output has the input's elements.

        Args:
            x: signal of values (batch, in_channels, group, \*space), or (batch, in_channels, group, points) with
                ``coords``; or these values, at all elements of the group.
            coords: (batch or 1, points, dim) coordinates in training steps.
            mask: (batch, points) bool, False where there is no point; with ``coords`` only.
            crop: positions at each end of each axis that get no output; 0 with ``coords``.
        """
        signal = as_signal(x, self.group, self.in_channels, dim=None if coords is None else 1)
        if signal.gates is not None:
            raise ValueError("x must have no gates, because attention has no sum over elements to weight, got gates")
        return self._attend(signal.values, None if signal.complete else signal.elements, coords, mask, crop)

    @torch.no_grad()
    def maps(self, x: Tensor | GroupSignal) -> Tensor:
        r"""Return the attention that each position receives, (batch, heads, group, \*space), with sum 1 over space."""
        signal = as_signal(x, self.group, self.in_channels)
        return self._maps(signal.values, None if signal.complete else signal.elements)

"""Relative positional encodings on a group (chapter 9, section 5.2)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._arguments import checked
from ..._hooks import has_hooks
from ..._kinds import Int
from ..._module_state import ComputedBuffers
from ...fields import MLP, Field, Table, build_field
from .table_lookup import nodes_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...groups import Group

__all__ = ["AXIS_FIELD", "RelativeEncoding"]

#: the published network for one coordinate: 16 hidden units, normalised, Swish
AXIS_FIELD = functools.partial(MLP, hidden=16, layers=2, activation="swish", norm=True)


class RelativeEncoding(ComputedBuffers):
    r"""Codes of an offset and of a relative element, transformed by the elements of a group (chapter 9, section 5.2).

    .. math:: \mathcal{L}_h[\rho](x, \hat h) = \big(\rho_1((h^{-1}x)_1), \ldots, \rho_d((h^{-1}x)_d),\;
        \rho_H(h^{-1}\hat h)\big)

    Each coordinate and the element have their own small field. The encoding is a continuous function of position, so a
    rotation by any angle needs no interpolation. The element's code depends on :math:`h^{-1}\hat h`, which is invariant
    if a group element multiplies both; :math:`h^{-1}\tilde h^{-1}\hat h`, as in the chapter and its code, is not.

    Args:
        group: a finite group.
        channels: length of the whole code, at least one for every coordinate and one for the element.
        on_group: whether to encode the relative element; a lifting layer has none.
        field: builds the field of one coordinate from (dim, channels).

    >>> from kernelfield.groups import Cyclic
    >>> encoding = RelativeEncoding(Cyclic(4), 10)
    >>> h = Cyclic(4).elements()
    >>> encoding.position(h, torch.randn(5, 5, 2)).shape, encoding.element(h, h).shape
    (torch.Size([4, 5, 5, 6]), torch.Size([4, 4, 4]))
    """

    nodes: Tensor | None

    @checked()
    def __init__(
        self, group: Group, channels: int, *, on_group: bool = True, field: Callable[..., Field] = AXIS_FIELD
    ) -> None:
        super().__init__()
        self.group = group
        if group.table_size is None:
            raise ValueError(f"group must be finite for a code of its elements, got {group}")
        parts = group.dim + on_group
        Int(parts).check("channels", channels)
        each = channels // parts
        rest = channels - each * (parts - 1)
        widths = [each] * (group.dim - 1) + [each if on_group else rest]
        self.axes = nn.ModuleList(build_field(field, 1, width) for width in widths)
        self.elements = Table(group.chart_size, rest, size=group.table_size) if on_group else None
        if self.elements is not None:
            nn.init.normal_(self.elements.coefficients)
        self.register_computed("nodes", self._nodes())

    def moved(self, elements: Tensor, offsets: Tensor) -> Tensor:
        """Return offsets transformed by inverse elements: (h, coords) and (…, dim) to (h, …, dim)."""
        back = self.group.matrix(self.group.inverse(elements)).to(offsets.dtype)
        with torch.autocast(offsets.device.type, enabled=False):
            return torch.einsum("hij,...j->h...i", back, offsets)

    def at(self, moved: Tensor) -> Tensor:
        """Return the codes of offsets that are already transformed: (…, dim) to (…, a)."""
        return torch.cat([field(moved[..., i : i + 1]) for i, field in enumerate(self.axes)], dim=-1)

    def position(self, elements: Tensor, offsets: Tensor) -> Tensor:
        """Return the codes of offsets transformed by inverse elements: (h, coords) and (…, dim) to (h, …, a)."""
        return self.at(self.moved(elements, offsets))

    def _nodes(self) -> Tensor | None:
        """Return the row of the table for each pair of elements; None if they lie between rows."""
        if self.elements is None:
            return None
        h = self.group.elements(torch.float64)
        where = self.group.chart(self.group.relative(h[:, None], h[None]))
        assert self.group.table_size is not None
        nodes = nodes_at(where, self.group.table_size)
        table = Table(self.group.chart_size, 1, size=self.group.table_size).double()
        with torch.no_grad():
            table.coefficients.copy_(torch.arange(len(table.coefficients))[:, None])
            exact = bool((table(where)[..., 0] - nodes).abs().max() < 1e-6)
        return nodes if exact else None

    def element(self, out_elements: Tensor | None, in_elements: Tensor) -> Tensor:
        """Return the codes of all relative elements: (h, coords) and (m, coords) to (h, m, b); b = 0 without a code.

        If ``out_elements`` is None, both are all elements in the group's order, and their codes are rows of a table.
        """
        if out_elements is None:
            if self.elements is not None and self.nodes is not None and not has_hooks(self.elements):
                return F.embedding(self.nodes, self.elements.coefficients)
            out_elements = in_elements
        if self.elements is None:
            return out_elements.new_zeros(len(out_elements), 1, 0)
        relative = self.group.relative(out_elements[:, None], in_elements[None])
        return self.elements(self.group.chart(relative))

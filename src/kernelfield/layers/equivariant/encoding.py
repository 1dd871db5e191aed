"""What attention on a group knows of positions and elements (chapter 9, section 4.2)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._checks import check_bool, check_int
from ...fields import MLP, Field, Table, build_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...groups import Group

__all__ = ["AXIS_FIELD", "RelativeEncoding"]

#: the published network of one coordinate: 16 hidden values, normalised, Swish
AXIS_FIELD = functools.partial(MLP, hidden=16, layers=2, activation="swish", norm=True)


class RelativeEncoding(nn.Module):
    r"""Codes of an offset and of a relative element, moved by the elements of a group (chapter 9, Eq. 13).

    .. math:: \mathcal{L}_h[\rho](x, \hat h) = \big(\rho_1((h^{-1}x)_1), \ldots, \rho_d((h^{-1}x)_d),\;
        \rho_H(h^{-1}\hat h)\big)

    One small field for each coordinate, and one for the element: a continuous function of position, so that a turn by
    any angle needs no interpolation. The element's code is that of :math:`h^{-1}\hat h`, which is the same after both
    are moved; the index :math:`h^{-1}\tilde h^{-1}\hat h` of the chapter is not, and neither is that of its code.

    Args:
        group: a finite group.
        channels: length of the whole code, at least one for every coordinate and one for the element.
        on_group: whether there is a code of the element (a lifting layer has none).
        field: builds the field of one coordinate from (dim, channels).

    >>> from kernelfield.groups import Cyclic
    >>> encoding = RelativeEncoding(Cyclic(4), 10)
    >>> h = Cyclic(4).elements()
    >>> encoding.position(h, torch.randn(5, 5, 2)).shape, encoding.element(h, h).shape
    (torch.Size([4, 5, 5, 6]), torch.Size([4, 4, 4]))
    """

    def __init__(
        self, group: Group, channels: int, *, on_group: bool = True, field: Callable[..., Field] = AXIS_FIELD
    ) -> None:
        super().__init__()
        self.group = group
        if group.table_size is None:
            raise ValueError(f"group must be finite for a code of its elements, got {group}")
        parts = group.dim + check_bool("on_group", on_group)
        each = check_int("channels", channels, least=parts) // parts
        rest = channels - each * (parts - 1)
        widths = [each] * (group.dim - 1) + [each if on_group else rest]
        self.axes = nn.ModuleList(build_field(field, 1, width) for width in widths)
        self.elements = Table(group.chart_size, rest, size=group.table_size) if on_group else None
        if self.elements is not None:
            nn.init.normal_(self.elements.coefficients)

    def position(self, elements: Tensor, offsets: Tensor) -> Tensor:
        """Return the codes of offsets moved back by elements: (h, coords) and (…, dim) to (h, …, a)."""
        back = self.group.matrix(self.group.inverse(elements)).to(offsets.dtype)
        with torch.autocast(offsets.device.type, enabled=False):
            moved = torch.einsum("hij,...j->h...i", back, offsets)
        return torch.cat([field(moved[..., i : i + 1]) for i, field in enumerate(self.axes)], dim=-1)

    def element(self, out_elements: Tensor, in_elements: Tensor) -> Tensor:
        """Return the codes of all relative elements: (h, coords) and (m, coords) to (h, m, b); b = 0 without a code."""
        if self.elements is None:
            return out_elements.new_zeros(len(out_elements), 1, 0)
        relative = self.group.relative(out_elements[:, None], in_elements[None])
        return self.elements(self.group.chart(relative))

"""Numbers that stand for a missing value, such as -999: they would shift and stretch the scale of their channel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["compare_fill_values"]

#: usual codes of a missing value, without their sign: nines, eights and sevens, and the ends of integer types
CODES = (
    *(float(digit * count) for digit in "987" for count in range(2, 8)),
    *(99.9, 999.9, 9999.9, 999.25),
    *(32_767.0, 32_768.0, 65_535.0, 2.0**31, 2.0**31 - 1, 2.0**32 - 1),
)
#: sizes from which a number counts as a code too: fill values of file formats are 1e20, 9.97e36, -1e30 and others
HUGE = 1e19
#: distance of a code from the other values, in units of their range from the 1st to the 99th percentile
FAR = 5
#: least number of different other values, and largest number of them to look at
DIFFERENT, LOOKED_AT = 10, 1_000_000


def compare_fill_values(values: Tensor, names: Sequence[str], where: str, stacklevel: int = 3) -> None:
    """Warn of channels whose least or largest value is a usual code of a missing value, far from all others.

    Args:
        values: (n, channels, …) raw values; NaN is ignored.
        names: names of the channels, if known.
        where: description of the values.
        stacklevel: number of calls between the warning and the line that it names.
    """
    if values.dim() < 3 or not values.is_floating_point():
        return
    codes = torch.tensor(CODES, dtype=torch.float64)
    for i in range(values.shape[1]):
        channel = values[:, i].detach().flatten()
        channel = channel[channel.isfinite()]
        if not len(channel):
            continue
        for end in {float(channel.min()), float(channel.max())}:
            if abs(end) < HUGE and not bool(torch.isclose(codes, torch.tensor(abs(end)).double(), rtol=1e-6).any()):
                continue
            others = channel[channel != end]
            others = others[:: len(others) // LOOKED_AT + 1].double()
            if len(others.unique()) < DIFFERENT:
                continue
            low, middle, high = torch.quantile(others, torch.tensor([0.01, 0.5, 0.99], dtype=torch.float64)).tolist()
            if abs(end - middle) <= FAR * (high - low):
                continue
            name = repr(names[i]) if i < len(names) else str(i)
            warnings.warn(
                f"channel {name} of {where} is {end:.6g} in {int((channel == end).sum()):,} places, and elsewhere "
                f"mostly {low:.4g} to {high:.4g}; if this stands for a missing value, write NaN or an empty cell",
                stacklevel=stacklevel,
            )

"""The cost of a lifting and a group convolution, by the form of their input.

    python benchmarks/group_forms.py

Forms, on all elements of a finite group:

- signal: ``conv(lift(x))``, the documented form, which networks use;
- values: ``conv(lift(x).values)``, a plain tensor;
- elements: a signal whose elements are given one by one, as for a continuous group.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from kernelfield import GroupConv, GroupSignal, LiftingConv
from kernelfield.groups import Cyclic, Dihedral

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelfield.groups import Group

ROUNDS = 40


def forms(group: Group, channels: int) -> dict[str, Callable[[], GroupSignal]]:
    """Return both convolutions in each form."""
    torch.manual_seed(0)
    lift, conv = LiftingConv(1, channels, group=group), GroupConv(channels, channels, group=group)
    x, elements = torch.randn(1, 1, 14, 14), group.elements()
    return {
        "signal": lambda: conv(lift(x)),
        "values": lambda: conv(lift(x).values),
        "elements": lambda: conv(GroupSignal(lift(x).values, elements, group=group)),
    }


def main() -> None:
    """Print the table: milliseconds of each form, and ratios to that of plain values."""
    print("| group | channels | signal, ms | values, ms | elements, ms | signal / values | elements / values |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for group, channels in ((Cyclic(4), 10), (Cyclic(4), 32), (Dihedral(4), 10), (Cyclic(8), 10)):
        runs = forms(group, channels)
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):  # in turns, so that all forms see the same machine
            for name, run in runs.items():
                start = time.perf_counter()
                for _ in range(5):
                    run()
                taken[name].append((time.perf_counter() - start) / 5)
        ms = {name: 1e3 * min(statistics.quantiles(times, n=4)) for name, times in taken.items()}
        ratios = f"{ms['signal'] / ms['values']:.2f} | {ms['elements'] / ms['values']:.2f}"
        print(f"| {group} | {channels} | {ms['signal']:.2f} | {ms['values']:.2f} | {ms['elements']:.2f} | {ratios} |")


if __name__ == "__main__":
    main()

"""An architecture in whole numbers, as a table and as one row of a history."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Architecture", "BlockArchitecture"]


@dataclass(frozen=True)
class BlockArchitecture:
    """The sizes of one block.

    Args:
        kernel: points of its kernel along each axis.
        resolution: samples along each axis at which its residual branch is computed.
        widths: numbers of channels that the branch reads, has in its middle, and writes.
        share: share of the block in the network's cost.
    """

    kernel: tuple[int, ...]
    resolution: tuple[int, ...]
    widths: tuple[int, int, int]
    share: float


@dataclass(frozen=True)
class Architecture:
    """The sizes of a network; ``str`` of it is a table.

    Args:
        blocks: the blocks in use.
        complexity: operations of a forward pass, in units of the base network's.
        budget: target of the complexity, or None.

    >>> print(Architecture((BlockArchitecture((5,), (16,), (8, 8, 8), 0.5),), complexity=1.0, budget=None))
    block | kernel | resolution | read | middle | written | share of the cost
        1 |      5 |         16 |    8 |      8 |       8 |               50%
    depth 1, complexity 1.00 of the base network's, budget none
    """

    blocks: tuple[BlockArchitecture, ...]
    complexity: float
    budget: float | None

    @property
    def depth(self) -> int:
        """Return the number of blocks in use."""
        return len(self.blocks)

    def flat(self) -> dict[str, float]:
        """Return all sizes by name, such as block1.kernel.0, as a row of a history."""
        row: dict[str, float] = {"complexity": self.complexity, "depth": float(self.depth)}
        for i, block in enumerate(self.blocks, start=1):
            row |= {f"block{i}.kernel.{d}": float(n) for d, n in enumerate(block.kernel)}
            row |= {f"block{i}.resolution.{d}": float(n) for d, n in enumerate(block.resolution)}
            names = ("read", "middle", "written")
            row |= {f"block{i}.width.{name}": float(n) for name, n in zip(names, block.widths, strict=True)}
        return row

    def __str__(self) -> str:
        head = ["block", "kernel", "resolution", "read", "middle", "written", "share of the cost"]
        rows = [
            [str(i), _times(b.kernel), _times(b.resolution), *map(str, b.widths), f"{b.share:.0%}"]
            for i, b in enumerate(self.blocks, start=1)
        ]
        widths = [max(len(row[c]) for row in (head, *rows)) for c in range(len(head))]
        lines = [" | ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in (head, *rows)]
        budget = "none" if self.budget is None else f"{self.budget:.2f}"
        last = f"depth {self.depth}, complexity {self.complexity:.2f} of the base network's, budget {budget}"
        return "\n".join([*lines, last])


def _times(numbers: tuple[int, ...]) -> str:
    return "×".join(map(str, numbers))

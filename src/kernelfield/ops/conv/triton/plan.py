"""The layout of a convolution for matrix products: transform lengths and tiles.

A signal is arranged as a matrix. Its spectrum takes two products with small tables, one per axis:

- a plane of up to 64 × 64 is that matrix already;
- a line of up to 4,096 samples is written row by row, and twiddle factors between the products make the two small
  transforms one long one;
- larger signals have an *outer* transform first, over the blocks of a long line, the rows of a large plane or the
  slices of a volume. The inner transform is then one of the above, with complex values;
- with more than 256 blocks, rows or slices, or slices larger than a tile, the outer transform is a chain of products
  (:mod:`.outer_chain`), and the inner one that of a line.

A boundary of zeros needs a transform of twice the length. Along the first axis that costs nothing: at the
frequencies k + ¼ of a transform of the signal's own length N, ``z^N = -i``. Samples that wrap around therefore land in
the imaginary part, separate from the real signal.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Plan", "find_digits", "make_plan", "power"]

#: smallest side of a tile: the depth of a tensor-core instruction
LEAST = 16
#: largest tile whose spectrum stays in registers
LARGEST = {False: 64 * 128, True: 64 * 64}
#: bytes of shared memory for tables and transposed tiles on an H200; :mod:`kernelfield.ops.architectures` has others
MEMORY = 227 << 10
LONGEST_OUTER = 256
#: longest line in one tile
LONGEST_LINE = 4096
#: longest product of a chain of two, longest single product, and a common divisor of all lengths
LONGEST_DIGIT, LONGEST_SINGLE, ALIGNMENT = 128, 256, 8
#: largest number of values of one channel, because kernels index the values of a channel in 32 bits
MOST_VALUES = 1 << 31
#: samples of a block of a line in a chain; tiles of 32 × 32 take half as long per sample as larger ones
BLOCK = 1024


@dataclass(frozen=True)
class Plan:
    """Lengths of one convolution by matrix products; see the module's docstring.

    Args:
        outer: length of the outer transform; 1 if there is none.
        outer_step: samples between two blocks of the outer transform.
        phase: whether the outer transform needs twiddle factors, because its blocks are consecutive parts of a line.
        shift: ¼ if the first axis is followed by zeros, 0 if it is periodic.
        m1: length of the transform over rows.
        m2: length of the transform over columns.
        rows: rows of the signal's matrix.
        cols: columns of the signal's matrix.
        length: samples in the matrix; the last row of a line may be short.
        twiddle: whether the rows of the matrix are consecutive parts of a line.
        element: bytes of shared memory per number: 2 for half precision, 4 for tf32, 8 for three tf32 products.
        digits: lengths of the products along the first axis, if the outer transform is a chain of products.
        second: length of the outer transform along the second axis, over rows of a volume or blocks of a plane's rows.
        valid: samples of the signal along both axes.
    """

    outer: int
    outer_step: int
    phase: bool
    shift: float
    m1: int
    m2: int
    rows: int
    cols: int
    length: int
    twiddle: bool
    element: int = 2
    digits: tuple[int, ...] = ()
    second: int = 1
    valid: tuple[int, int] = (1, 1)

    @property
    def first(self) -> int:
        """Length of a chain along the first axis."""
        return math.prod(self.digits)

    @property
    def hop(self) -> int:
        """Number of different inner tables, which outer frequencies use in turn."""
        return (self.second if self.second > 1 else self.outer) if self.phase else 1

    @functools.cached_property
    def complex(self) -> bool:
        """Whether the inner signals are complex."""
        return self.outer > 1

    @property
    def tile(self) -> tuple[int, int, int, int]:
        """Sides of the tiles: rows and columns of the signal, rows and columns of the spectrum."""
        n1, n2, k1, k2 = (max(LEAST, power(n)) for n in (self.rows, self.cols, self.m1, self.m2))
        if self.slim:
            n1 = k1 // 2 if self.rows <= k1 // 2 else k1
        elif self.complex or (self.element == 2 and k1 >= 64 and n1 >= 32):
            # A kernel's inner grid has more rows than the signal. A square table also allows the upright layout.
            n1 = k1
        return n1, n2, k1, k2

    @property
    def slim(self) -> bool:
        """Whether programs have one or two warps, each with 16 rows of a spectrum and the tables in registers."""
        small = self.m2 <= LEAST and (self.m1 <= LEAST or (self.m1 <= 2 * LEAST and self.rows <= LEAST))
        return small and self.complex and self.twiddle and self.element == 2

    @property
    def upright(self) -> bool:
        """Whether the first table is the left factor, because it fills matrix instructions and can be read transposed.

        With fewer columns and complex signals, Triton's code for the second product on an H200 reads shared memory out
        of bounds.
        """
        n1, n2, k1, _ = self.tile
        square = self.element == 2 and n1 == k1 and k1 >= 64
        return self.slim or (square and (n2 >= 64 or (k1 == 128 and not self.complex)))

    @property
    def shared_bytes(self) -> int:
        """Estimated shared memory of a program."""
        n1, n2, k1, k2 = self.tile
        parts = 2 if self.complex else 1
        tables = 2 * parts * n1 * k1 + 4 * n2 * k2
        if self.element > 2:
            tables *= 2  # tables of these dtypes cannot be read transposed, so both are stored
        return self.element * (tables + parts * n1 * n2 + 2 * n2 * k1)

    def fits(self, memory: int = MEMORY) -> bool:
        """Return whether a tile of the spectrum fits in registers and its tables in this many bytes."""
        _, _, k1, k2 = self.tile
        small = max(k1, k2) <= 128 and k1 * k2 <= LARGEST[self.complex]
        # In float32, long lines in one tile or with many blocks were slower than the FFT.
        slow = self.element > 2 and self.twiddle and (k1 * k2 >= 4096 or (self.phase and self.outer > 64))
        small = small and self.shared_bytes <= memory
        if self.digits:  # products of torch in half precision
            return small and self.element == 2
        return small and self.outer <= LONGEST_OUTER and not slow


@functools.lru_cache(maxsize=1024)
def make_plan(
    lengths: tuple[int, ...],
    reaches: tuple[int, ...],
    periodic: tuple[bool, ...],
    element: int = 2,
    memory: int = MEMORY,
) -> Plan | None:
    """Return the layout for a signal of these lengths, or None if there is none.

    Args:
        lengths: length of the signal along each axis.
        reaches: along each axis, the largest distance of a kernel point from offset zero, in samples.
        periodic: whether each axis is periodic.
        element: bytes of shared memory per number.
        memory: bytes of shared memory that a program may use.

    >>> plan = make_plan((784,), (783,), (False,))
    >>> plan.m1, plan.m2, plan.outer
    (32, 32, 1)
    >>> make_plan((32, 32), (31, 31), (False, False)).tile
    (32, 32, 32, 64)
    >>> make_plan((16000,), (15999,), (False,)).outer
    16
    >>> make_plan((1024, 1024), (1023, 1023), (False, False)).digits
    (32, 32)
    """
    for plan in {1: _line, 2: _plane, 3: _space}[len(lengths)](lengths, reaches, periodic):
        plan = replace(plan, element=element)  # noqa: PLW2901
        if plan.fits(memory) and _largest_index(plan, lengths, reaches) < MOST_VALUES:
            return plan
    return None


def _largest_index(plan: Plan, lengths: tuple[int, ...], reaches: tuple[int, ...]) -> int:
    """Return the number of values of one channel, of its outer transform or of its kernel, whichever has more."""
    rows, *others = (2 * max(length, reach) + 1 for length, reach in zip(lengths, reaches, strict=True))
    # Kernels are read at rows of the outer transform, beginning at the centre.
    points = (max(rows, plan.outer // plan.second) + reaches[0]) * math.prod(others)
    return max(2 * plan.outer * plan.m1 * plan.m2, points)


def _line(lengths: tuple[int, ...], _: tuple[int, ...], periodic: tuple[bool, ...]) -> Iterator[Plan]:
    (length,), (wraps,) = lengths, periodic
    shift = 0.0 if wraps else 0.25
    for m1, m2 in _sides(length if wraps else max(LEAST * LEAST, power(length))):
        yield Plan(1, length, False, shift, m1, m2, m1, m2, length, True)
    for inner, most in ((1024, 64), (4096, LONGEST_OUTER)):
        block = inner
        if wraps:
            block = next((n for n in range(inner, 255, -1) if length % n == 0 and next(_sides(n), None)), 0)
        if block and -(-length // block) <= most:
            for m1, m2 in sorted(_sides(block)):  # 64 × 64 rather than 128 × 32: complex tables are four times as large
                yield Plan(-(-length // block), block, True, shift, m1, m2, m1, m2, block, True)
    block = BLOCK
    if wraps:
        block = next((n for n in range(BLOCK, 255, -1) if length % n == 0 and next(_sides(n), None)), 0)
    if block:
        m1, m2 = next(_sides(block))
        yield from _chains(Plan(1, block, True, shift, m1, m2, m1, m2, block, True), (-(-length // block), 1), wraps)


def _chains(plan: Plan, valid: tuple[int, int], exact: bool, second: int = 1) -> Iterator[Plan]:
    """Yield the plan with a chain of products along an axis of ``valid[0]`` samples and any second axis."""
    digits = find_digits(valid[0], exact)
    if digits:
        yield replace(plan, outer=math.prod(digits) * second, digits=digits, second=second, valid=valid)


@functools.lru_cache(1024)
def find_digits(length: int, exact: bool) -> tuple[int, ...]:
    """Return the lengths of products for a transform of at least (or exactly) this length; empty if there are none.

    >>> find_digits(4096, False), find_digits(1000, False), find_digits(270, True), find_digits(257, True)
    ((64, 64), (32, 32), (15, 18), ())
    """
    unit = 1 if exact else ALIGNMENT
    if length <= LONGEST_SINGLE:
        return (unit * -(-length // unit),)
    pairs = []
    for b in range(2 * unit, LONGEST_DIGIT + 1, unit):
        a = unit * -(-length // (unit * b))
        if a <= LONGEST_DIGIT and (not exact or a * b == length):
            pairs.append((a * b, a + b, a > b, (a, b)))
    return min(pairs)[3] if pairs else ()


def _plane(lengths: tuple[int, ...], reaches: tuple[int, ...], periodic: tuple[bool, ...]) -> Iterator[Plan]:
    (height, width), (first, second) = lengths, periodic
    shift = 0.0 if first else 0.25
    size = width if second else max(LEAST, power(width + reaches[1]))
    if height <= 64:
        yield Plan(1, height * width, False, shift, height, size, height, width, height * width, False)
    if height > 1:
        for m1, m2 in _sides(size):
            # Half of the rows are padding, so there may be more rows than columns.
            rows, cols = (m2, m1) if (m1, m2) == (LEAST, 2 * LEAST) else (m1, m2)
            yield Plan(height, width, False, shift, rows, cols, -(-width // cols), cols, width, True)
        for m1, m2 in sorted(_sides(size)):
            plan = Plan(1, width, False, shift, m1, m2, -(-width // m2), m2, width, True)
            yield from _chains(plan, (height, 1), first)
        block = next((n for n in range(BLOCK, 255, -1) if size % n == 0 and next(_sides(n), None)), 0)
        if size > LONGEST_LINE and block and size // block <= LONGEST_DIGIT:
            m1, m2 = next(_sides(block))
            plan = Plan(1, block, True, shift, m1, m2, m1, m2, block, True)
            yield from _chains(plan, (height, -(-width // block)), first, size // block)


def _space(lengths: tuple[int, ...], reaches: tuple[int, ...], periodic: tuple[bool, ...]) -> Iterator[Plan]:
    depth, height, width = lengths
    m1, m2 = (
        n if wraps else max(LEAST, power(n + reach))
        for n, reach, wraps in zip(lengths[1:], reaches[1:], periodic[1:], strict=True)
    )
    if depth > 1:
        shift = 0.0 if periodic[0] else 0.25
        yield Plan(depth, height * width, False, shift, m1, m2, height, width, height * width, False)
        rows = height if periodic[1] else ALIGNMENT * -(-(height + reaches[1]) // ALIGNMENT)
        for tall, wide in _sides(m2):
            plan = Plan(1, width, False, shift, tall, wide, -(-width // wide), wide, width, True)
            if rows <= 4 * LONGEST_SINGLE:
                yield from _chains(plan, (depth, height), periodic[0], rows)


def _sides(length: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of sides whose product is ``length``, best first."""
    if length > LONGEST_LINE:
        return
    if length == power(length):
        # 128 × 32 holds fewer values per thread than 64 × 64, but needs larger tables.
        yield from [(128, 32), (64, 64)] if length == 4096 else [(64, 32)] if length == 2048 else []
        m1 = 1 << (length.bit_length() - 1) // 2
        if length <= 1024:
            yield m1, length // m1
        return
    m1 = next((m for m in range(math.isqrt(length), 0, -1) if length % m == 0), 1)
    if length // m1 <= 64:
        yield m1, length // m1


@functools.lru_cache(1 << 14)
def power(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length()

"""Arithmetic for launch grids. Triton's own functions are made for kernels and are slow outside of them."""

from __future__ import annotations

import functools

__all__ = ["ceil_div", "power_of_2"]


@functools.lru_cache(1 << 14)
def ceil_div(a: int, b: int) -> int:
    """Return ``a / b``, rounded up.

    >>> ceil_div(7, 2)
    4
    """
    return -(-a // b)


@functools.lru_cache(1 << 14)
def power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least ``n``.

    >>> [power_of_2(n) for n in (1, 5, 64)]
    [1, 8, 64]
    """
    return 1 << (n - 1).bit_length()

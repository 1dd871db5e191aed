"""Allocation of CPU memory."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

#: parameters of glibc's mallopt
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: the largest value that mallopt takes, 2 GiB
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the process keep freed memory for its next tensors: training on a CPU becomes up to 1.6 times faster.

    By default the C library of Linux returns the memory of every freed large tensor to the system. The next tensor of
    that size then gets new pages, which the system has to fill with zeros. A training step allocates the same tensors
    again and again, so the zeros cost up to a third of its time. The ``kernelfield`` command calls this function when
    it starts. Call it once at the beginning of your own training script; it changes the whole process.

    The process never keeps more than its peak use. It still returns the memory of tensors of 2 GiB and more.

    Returns:
        True if the setting was changed. False on systems other than Linux with glibc, or if an environment variable
        (``MALLOC_…`` or ``GLIBC_TUNABLES``) already sets how to allocate.

    >>> isinstance(keep_freed_memory(), bool)
    True
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    if chosen or not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL("libc.so.6")
        done = [library.mallopt(option, _LARGEST) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)]
    except (OSError, AttributeError):  # another C library
        return False
    return all(done)

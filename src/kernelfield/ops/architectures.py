"""Resource limits of GPU architectures, and the types that their tensor cores multiply.

Plans of tensor-core kernels depend on these limits only, so plans for a GPU can be made and tested without it.
The numbers come from NVIDIA's tables of compute capabilities.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

__all__ = ["ARCHITECTURES", "Architecture", "architecture", "architecture_of"]


@dataclass(frozen=True)
class Architecture:
    """Limits of one compute capability.

    Args:
        capability: major and minor version.
        shared_bytes: largest shared memory of one program, in bytes.
        threads: number of threads that a multiprocessor can hold.
        registers: number of 32-bit registers of a multiprocessor, also the limit of one program.
        thread_registers: largest number of registers of one thread.
    """

    capability: tuple[int, int]
    shared_bytes: int
    threads: int
    registers: int = 1 << 16
    thread_registers: int = 255

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether tensor cores multiply bfloat16 and tf32; before capability 8.0 they multiply float16 only."""
        return self.capability >= (8, 0)

    def __str__(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


#: limits of an SM, in bytes of shared memory and threads, and the compute capabilities that have them
_LIMITS = {
    (96 << 10, 2048): [(7, 0)],
    (64 << 10, 1024): [(7, 5)],
    (163 << 10, 2048): [(8, 0)],
    (163 << 10, 1536): [(8, 7)],
    (99 << 10, 1536): [(8, 6), (8, 9), (12, 0), (12, 1)],
    (227 << 10, 2048): [(9, 0), (10, 0), (10, 3)],
    (227 << 10, 1536): [(11, 0)],
}
#: Volta to Blackwell, from the oldest
ARCHITECTURES = {
    capability: Architecture(capability, *limits)
    for capability, limits in sorted((c, limits) for limits, known in _LIMITS.items() for c in known)
}


def architecture(capability: tuple[int, int]) -> Architecture:
    """Return the limits of a compute capability, or of the next older one if it is unknown.

    >>> architecture((8, 6)).shared_bytes // 1024
    99
    >>> str(architecture((12, 9)))
    'sm_121'
    """
    known = ARCHITECTURES.get(capability)
    if known is not None:
        return known
    older = [known for known in ARCHITECTURES if known < capability]
    return ARCHITECTURES[max(older)] if older else ARCHITECTURES[min(ARCHITECTURES)]


@functools.lru_cache(maxsize=64)
def _of_gpu(device: torch.device) -> Architecture:
    return architecture(torch.cuda.get_device_capability(device))


def architecture_of(device: torch.device) -> Architecture:
    """Return the limits of a GPU; for a CPU, where an interpreter runs the kernels, those of an H200.

    >>> str(architecture_of(torch.device("cpu")))
    'sm_90'
    """
    return _of_gpu(device) if device.type == "cuda" and torch.cuda.is_available() else ARCHITECTURES[9, 0]

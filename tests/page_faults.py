"""Counts the pages that the system hands out in a few training steps of a small network.

Run in a process of its own: ``python -m tests.page_faults [keep]`` prints the number.
"""

from __future__ import annotations

import resource
import sys

import torch

import kernelfield as kf


def main() -> None:
    if "keep" in sys.argv[1:]:
        assert kf.keep_freed_memory()
    network = torch.nn.Sequential(torch.nn.Conv1d(1, 64, 3), torch.nn.ReLU(), torch.nn.Conv1d(64, 1, 3))
    x = torch.randn(8, 1, 20_000)  # 41 MB between the convolutions
    for step in range(8):
        if step == 4:  # the memory that is kept has been allocated
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        network(x).square().mean().backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)  # noqa: T201


if __name__ == "__main__":
    main()

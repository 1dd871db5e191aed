"""How much faster is a training step on a CPU if the process keeps freed memory (``kf.keep_freed_memory``)?

    OMP_NUM_THREADS=1 python benchmarks/kept_memory.py --out benchmarks/results/kept-memory-cpu.json
    python benchmarks/kept_memory.py --only w5 --steps 4

Each case is measured in two fresh processes, without and with kept memory, in turns; the table has the median of the
steps after the first three, the pages that the system hands out in a step, and the largest memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _measure import machine
from _tables import describe, milliseconds, number, ratio, save, table

import kernelfield as kf

SEED = 0
#: registered network, its arguments, and the shape of a batch
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "w5": ({}, (16, 1, 6000)),
    "m5": ({}, (16, 1, 6000)),
    "ccnn_4_140": ({"dim": 1, "size": 784, "in_channels": 1, "out_channels": 10}, (50, 1, 784)),
    "flextcn_2": ({"size": 784, "in_channels": 1, "out_channels": 10}, (50, 1, 784)),
    "p4cnn": ({}, (128, 1, 28, 28)),
    "full_gcnn_se2": ({}, (32, 1, 28, 28)),
}
#: steps before the measurement, in which the memory that is kept is allocated
WARM = 3


def measure(name: str, keep: bool, steps: int) -> dict[str, float]:
    """Return the time, the page faults and the memory of training steps in this process."""
    if keep and not kf.keep_freed_memory():
        sys.exit("kept_memory.py: needs Linux with glibc, and no MALLOC_ variable in the environment")
    torch.manual_seed(SEED)
    arguments, shape = CASES[name]
    network = kf.create_model(name, **arguments)
    optimizer = torch.optim.Adam(network.parameters())
    x, labels = torch.randn(shape), torch.randint(10, (shape[0],))
    times, faults = [], []
    for _ in range(WARM + steps):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return {
        "seconds": statistics.median(times[WARM:]),
        "page_faults": statistics.median(faults[WARM:]),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_process(name: str, keep: bool, steps: int) -> dict[str, float]:
    """Return what :func:`measure` returns in a fresh process."""
    command = [sys.executable, __file__, "--measure", name, "--steps", str(steps), *(["--keep"] if keep else [])]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", help="measure these alone")
    parser.add_argument("--steps", type=int, default=8, help="steps of each process")
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.keep, options.steps)))
        return
    results: dict[str, Any] = {"machine": machine(torch.device("cpu"), SEED), "rows": []}
    print(describe(results["machine"]))
    rows = []
    for name in options.only or CASES:
        usual, kept = (in_process(name, keep, options.steps) for keep in (False, True))
        results["rows"].append({"network": name, "batch": CASES[name][1], "usual": usual, "kept": kept})
        cells = [
            *(milliseconds(row["seconds"]) for row in (usual, kept)),
            ratio(usual["seconds"] / kept["seconds"]),
            *(number(row["page_faults"]) for row in (usual, kept)),
            ratio(kept["peak_bytes"] / usual["peak_bytes"]),
        ]
        rows.append([f"{name}, {'×'.join(map(str, CASES[name][1]))}", *cells])
        save(results, options.out)
    header = ["training step", "usual, ms", "kept, ms", "faster", "pages", "pages, kept", "memory"]
    print(table(header, rows))


if __name__ == "__main__":
    main()

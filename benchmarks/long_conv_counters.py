r"""Hardware counters of the kernels of long convolutions, read by Nsight Compute: what limits each kernel?

    ncu --clock-control none --profile-from-start off --section SpeedOfLight --section WarpStateStats \
        --section Occupancy --section ComputeWorkloadAnalysis --csv --page raw \
        python benchmarks/long_conv_counters.py --run > counters.csv
    python benchmarks/long_conv_counters.py --csv counters.csv --json benchmarks/results/long-conv-counters-h200.json
    python benchmarks/long_conv_counters.py --from-json benchmarks/results/long-conv-counters-h200.json

Profiles one forward and one backward pass of every row in bfloat16. For each kernel the table has its time, the use of
memory, L2 cache, L1 and shared memory, tensor cores, the two arithmetic pipes and instruction issue in percent of their
peak, and the reasons for which its warps waited.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from _tables import number, table
from long_conv_variants import ROWS

from kernelfield.ops.conv.triton import launch

#: columns of the table and their counters
COUNTERS = {
    "memory": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1 and shared": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "FMA": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "ALU": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "warps": "sm__warps_active.avg.per_cycle_active",
}
STALLED = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
CHOSEN = ("4096", "16384", "65536", "128²", "256²", "1M")
#: part of the name of the kernel that waits, launched before each pass to tell where it begins
MARK = "spin_kernel"
PASSES = ("forward", "backward")


def run(rows: list[str]) -> None:
    """Compute every row once to compile it and once for the profiler."""
    torch.manual_seed(0)
    for row in rows:
        case = ROWS[row]
        x, grad = (torch.randn(case.shape, device="cuda").bfloat16() for _ in range(2))
        kernel = torch.randn(case.kernel_shape, device="cuda").bfloat16()
        how = case.causal, [False] * len(case.lengths), case.channels
        for profiled in (False, True):
            if profiled:
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
            torch.cuda._sleep(1)  # noqa: SLF001
            launch.spectral_conv(x, kernel, *how)
            torch.cuda._sleep(1)  # noqa: SLF001
            launch.spectral_grads(grad, x, kernel, (True, True), *how)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        del x, grad, kernel
        torch.cuda.empty_cache()
        print("row", row, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the kernels of a table that Nsight Compute wrote, with the rows that :func:`run` printed after them."""
    names: list[str] = []
    kernels: list[dict[str, Any]] = []
    rows: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("row "):
            rows.append(line.removeprefix("row "))
        elif line.startswith('"'):
            (cells,) = csv.reader([line])
            if not names:
                names = cells
            elif cells[names.index("ID")]:
                kernels.append(_kernel(dict(zip(names, cells, strict=True))))
    marks = [i for i, k in enumerate(kernels) if MARK in k["kernel"]]
    if len(marks) != len(PASSES) * len(rows):
        raise SystemExit(f"{path} has {len(marks)} passes and {len(rows)} rows")
    which = itertools.product(rows, PASSES)
    return [
        {"row": row, "pass": name, **kernel}
        for (row, name), (begin, end) in zip(which, itertools.pairwise([*marks, len(kernels)]), strict=True)
        for kernel in kernels[begin + 1 : end]
    ]


def _kernel(cells: dict[str, str]) -> dict[str, Any]:
    value = {name: float(cells[counter].replace(",", "")) for name, counter in COUNTERS.items()}
    stalls = {
        name.removeprefix(STALLED[0]).removesuffix(STALLED[1]): float(text.replace(",", ""))
        for name, text in cells.items()
        if name.startswith(STALLED[0]) and name.endswith(STALLED[1])
    }
    stalls.pop("selected", None)  # not a wait
    whole = sum(stalls.values())
    most = sorted(stalls, key=lambda name: -stalls[name])[:3]
    waits = {name: round(stalls[name] / whole, 3) for name in most}
    microseconds = float(cells["gpu__time_duration.sum"].replace(",", "")) / 1e3
    device = {"device_name": cells["device__attribute_display_name"]}
    return {**device, "kernel": cells["Kernel Name"], "microseconds": microseconds, **value, "waits": waits}


def _short(name: str) -> str:
    return "matrix product" if "nvjet" in name or "gemm" in name else name.removesuffix("_kernel")


def show(kernels: list[dict[str, Any]]) -> str:
    """Return a table of the first launch of each kernel of a pass; chunks repeat them."""
    seen, body = set(), []
    for k in kernels:
        key = k["row"], k["pass"], k["kernel"]
        if key in seen or k["microseconds"] < 15:
            continue
        seen.add(key)
        waits = ", ".join(f"{name} {share:.0%}" for name, share in k["waits"].items())
        body.append([*key[:2], _short(key[2]), number(k["microseconds"])])
        body[-1] += [f"{k[name]:.0f}" for name in COUNTERS] + [waits]
    return table(["row", "pass", "kernel", "µs", *COUNTERS, "warps wait for"], body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", choices=ROWS, metavar="ROW", help="rows to compute under the profiler")
    parser.add_argument("--csv", type=Path, help="CSV file of the profiler")
    parser.add_argument("--json", type=Path, help="where to write the counters")
    parser.add_argument("--from-json", type=Path, help="show saved counters")
    options = parser.parse_args()
    if options.run is not None:
        run(options.run or list(CHOSEN))
        return
    if options.csv is None and options.from_json is None:
        parser.error("one of --run, --csv and --from-json is needed")
    kernels = read(options.csv) if options.csv else json.loads(options.from_json.read_text())["kernels"]
    if options.json is not None:
        options.json.write_text(json.dumps({"kernels": kernels}, indent=1) + "\n")
    print(show(kernels))


if __name__ == "__main__":
    main()

"""How long does the first training step take: eager, compiled, and compiled from plain torch operations?

    python benchmarks/first_calls.py --out benchmarks/results/first-calls-h200.json
    python benchmarks/first_calls.py --only p4-CNN --batch 2
    python benchmarks/first_calls.py --at-once 6 --limit 120        # six processes side by side, 120 s at most
    python benchmarks/first_calls.py --from-json --out FILE --markdown docs/benchmarks/training-steps.md

There is a row for each network of the guide to speed. Each entry is measured in a process of its own with empty caches
of kernels and of compiled code. The step is that of ``loops.py``. ``compiled`` is the network under
``torch.compile(mode="reduce-overhead")``, ``plain`` the same with ``KERNELFIELD_FAST=0``: the library's operators are
then torch operations, which the compiler fuses. The entries of one network start together, so that other processes
slow them down alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from _measure import machine
from _steps import CASES, make_step
from _tables import MISSING, describe, number, replace_section, save, table

SEED = 0
WAYS = ("eager", "compiled", "plain")


def measure(name: str, way: str, device: torch.device, batch: int | None) -> float:
    """Return the seconds of the first step in this process."""
    torch.manual_seed(SEED)
    case = CASES[name]
    net = case.build().to(device).train()
    inputs = {key: value.to(device) for key, value in case.inputs(batch or case.batch).items()}
    labels = torch.randint(2, (batch or case.batch,), device=device)
    step = make_step(net)
    if way != "eager":
        net.compile(mode="reduce-overhead")
    _wait(device)
    begin = time.perf_counter()
    step(inputs, labels)
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure_apart(name: str, way: str, options: argparse.Namespace, end: float) -> dict[str, Any]:
    """Return the row of one entry, measured in a new process with empty caches."""
    row: dict[str, Any] = {"network": name, "way": way}
    left = end - time.monotonic()
    if left <= 0:
        return row
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        caches = {f"{what}_CACHE_DIR": f"{folder}/{what}" for what in ("TRITON", "TORCHINDUCTOR")}
        fast = {"KERNELFIELD_FAST": "0"} if way == "plain" else {}
        command = [sys.executable, __file__, "--one", name, way, "--device", options.device]
        command += [] if options.batch is None else ["--batch", str(options.batch)]
        try:
            done = subprocess.run(
                command, env={**os.environ, **caches, **fast}, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired:
            return {**row, "error": "out of time"}
    if done.returncode:
        return {**row, "error": done.stderr.strip().splitlines()[-1][:200]}
    return {**row, "seconds": float(done.stdout.split()[-1])}


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return one line for each network."""
    seconds = {(row["network"], row["way"]): row.get("seconds") for row in rows}
    lines = []
    for name in dict.fromkeys(row["network"] for row in rows):
        eager, compiled, plain = (seconds.get((name, way)) for way in WAYS)
        ratio = MISSING if compiled is None or plain is None else f"{compiled / plain:.2f}"
        lines.append([name, *(number(value) for value in (eager, compiled, plain)), ratio])
    return table(["first training step", "eager, s", "compiled, s", "compiled, plain, s", "compiled / plain"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "WAY"), help="print the seconds of one entry")
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--batch", type=int, help="another batch size")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--at-once", type=int, default=len(WAYS), help="processes that run side by side")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which the measurement ends")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from-json", action="store_true", help="show the file of --out and measure nothing")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.one is not None:
        print(measure(*options.one, device, options.batch))
        return
    if options.from_json:
        report = json.loads(options.out.read_text())
    else:
        report = {"machine": machine(device, SEED), "at_once": options.at_once, "rows": []}
        entries = [(name, way) for name in CASES if options.only in name for way in WAYS]
        end = time.monotonic() + options.limit
        with ThreadPoolExecutor(options.at_once) as pool:
            for row in pool.map(lambda entry: measure_apart(*entry, options, end), entries):
                report["rows"].append(row)
                print(row, flush=True)
                save(report, options.out)
    beside = "" if report["at_once"] == 1 else f" {report['at_once']} processes side by side."
    text = f"{describe(report['machine'])}.{beside}\n\n{make_table(report['rows'])}"
    if options.markdown is not None:
        replace_section(options.markdown, f"first-calls-{report['machine']['device']}", text)
    print(text)


if __name__ == "__main__":
    main()

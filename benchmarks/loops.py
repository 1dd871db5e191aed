"""How long does a training step take in a custom loop: eager, compiled, and captured by ``kf.capture``?

    python benchmarks/loops.py --out benchmarks/results/loops-h200.json          # continues the file
    python benchmarks/loops.py --kinds guide --ways eager,captured --budget 2
    python benchmarks/loops.py --only ccnn --limit 300 --out …                   # at most 300 s, rows with "ccnn"
    python benchmarks/loops.py --ways compiled --rows 0:40:4 --budget 0.01      # some, to fill compilers' caches
    python benchmarks/loops.py --from-json --out … --markdown docs/benchmarks/training-steps.md

There is a row for each network of the guide to speed, for layers, and for every registered network with the batch and
the data shape of a recipe, on noise. A step is forward, loss, backward, and fused AdamW. The loss is the cross-entropy,
or the mean square of outputs that are not classes. ``compiled`` is the step of a network under
``torch.compile(mode="reduce-overhead")``. On a GPU ten steps follow each other before the host waits, as in a loop that
reads its loss now and then.

- ``MiB`` is the peak memory of tensors above the level before the network was made.
- ``launches`` are calls of the CUDA driver that start work on the device in one step, ``Python calls`` are calls of
  Python functions in the thread of the loop.

Each row is printed and saved as soon as it is measured, and rows that the file already has are kept. The kinds are
measured in the order of ``--kinds``, and eager and captured steps of a kind before its compiled ones. The first network
of each family comes before the second of any. After ``--limit`` seconds the process ends with what it has. A step that
fails is saved with its error, and tried again the next time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import Budget, machine, median_seconds, peak_bytes, settle_allocator
from _steps import launches, make_step, python_calls
from _tables import MISSING, describe, mebibytes, number, replace_section, save, table
from _training_cases import KINDS, cases

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _steps import Case

SEED = 0
WAYS = ("eager", "captured", "compiled")
#: steps in a row on a GPU, before the host waits for them
STEPS = 10
#: a compilation that begins with less time than this is left out, in seconds
LEAST_TIME = 10.0


def measure(case: Case, way: str, device: torch.device, budget: float, batch: int, *, bf16: bool) -> dict[str, Any]:
    """Return milliseconds, memory, launches and Python calls of a step."""
    torch.manual_seed(SEED)
    before = _start_memory(device)
    net = case.build().to(device).train()
    inputs = {key: value.to(device) for key, value in case.inputs(batch).items()}
    labels = torch.randint(2, (batch,), device=device)
    step: Any = make_step(net, autocast=device.type if bf16 else None)
    if way == "captured":
        step = kf.capture(step)
    elif way == "compiled":
        net.compile(mode="reduce-overhead")

    def run() -> None:
        step(inputs, labels)
        if device.type == "cuda":
            torch.cuda.synchronize()

    def several() -> None:
        for _ in range(in_a_row):
            step(inputs, labels)

    begin = time.perf_counter()
    run()
    first = time.perf_counter() - begin
    for _ in range(5 if way != "eager" or device.type == "cuda" else 1):
        run()
    in_a_row = STEPS if device.type == "cuda" else 1
    seconds = median_seconds({way: several}, device, budget=budget)[way] / in_a_row
    row: dict[str, Any] = {"milliseconds": 1e3 * seconds, "first_call_seconds": first}
    row["peak_bytes"] = peak_bytes(run, device) if before is None else torch.cuda.max_memory_allocated(device) - before
    row |= {"launches": launches(run, device), "python_calls": python_calls(run)}
    if way == "captured":
        row["refusal"] = step.refusal
    return row


def _start_memory(device: torch.device) -> int | None:
    """Return the bytes in use on a GPU, from which the peak is counted; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def planned(options: argparse.Namespace, rows: list[dict[str, Any]]) -> Iterator[tuple[Case, str]]:
    """Yield what is still to be measured: kind by kind, and eager and captured steps before compiled ones."""
    done = {
        (row["network"], row["way"]) for row in rows if "peak_bytes" in row
    }  # neither failed nor written by an older script
    for kind in options.kinds:
        found = cases((kind,), options.only)[options.rows]
        for some in (WAYS[:2], WAYS[2:]):
            for case in found:
                for way in some:
                    if way in options.ways and (case.name, way) not in done:
                        yield case, way


def run(options: argparse.Namespace, report: dict[str, Any], device: torch.device, spent: Budget) -> None:
    """Add the missing measurements to the report."""
    rows: list[dict[str, Any]] = report["rows"]
    for case, way in planned(options, rows):
        if spent.spent or (way == "compiled" and spent.elapsed > options.limit - LEAST_TIME):
            break
        batch = options.batch or case.batch
        row: dict[str, Any] = {"network": case.name, "batch": batch, "way": way, "recipe": case.recipe}
        try:
            row |= measure(case, way, device, options.budget, batch, bf16=options.bf16)
        except Exception as error:  # whatever a network or a compiler raises, the others are measured
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        rows[:] = [old for old in rows if (old["network"], old["way"]) != (case.name, way)] + [row]
        spent.log(f"{case.name}, {way}: {row}")
        save(report, options.out)
        torch.compiler.reset()
        gc.collect()


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return the measurements as a table, one line for each network or layer."""
    found = {(row["network"], row["way"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of = [found.get((name, way), {}) for way in WAYS]
        cells = [name, str(next(row["batch"] for row in of if row))]
        cells += [number(row.get("milliseconds")) + ("*" if row.get("refusal") else "") for row in of]
        cells += [mebibytes(row.get("peak_bytes")) for row in of]
        for key in ("launches", "python_calls"):
            cells += [MISSING if row.get(key) is None else f"{row[key]:,}" for row in of[:2]]
        lines.append(cells)
    header = [
        "training step",
        "batch",
        *(f"{way}, ms" for way in WAYS),
        *(f"{way}, MiB" for way in WAYS),
    ]
    header += [f"{what}, {way}" for what in ("launches", "Python calls") for way in WAYS[:2]]
    return table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="of rows: guide, layers, networks")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--rows", default=":", metavar="A:B:C", help="rows of each kind, as a slice of Python")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--budget", type=float, default=1.0, help="seconds to time each entry")
    parser.add_argument("--limit", type=float, default=85.0, help="seconds after which the process ends")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="another batch size, to see that it runs")
    parser.add_argument("--bf16", action="store_true", help="under autocast to bfloat16")
    parser.add_argument("--out", type=Path, help="where to write the measurements; those already there are kept")
    parser.add_argument("--from-json", action="store_true", help="show the file of --out and measure nothing")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    options.kinds, options.ways = (tuple(text.split(",")) for text in (options.kinds, options.ways))
    options.rows = slice(*(int(n) if n else None for n in options.rows.split(":")))
    for name, known in (("kinds", KINDS), ("ways", WAYS)):
        if unknown := set(getattr(options, name)) - set(known):
            parser.error(f"--{name} must be among {', '.join(known)}, got {', '.join(sorted(unknown))}")
    spent, device = Budget(options.limit), torch.device(options.device)
    report = _read(options, device)
    if not options.from_json:
        settle_allocator()
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, options.limit - spent.elapsed))
        try:
            run(options, report, device, spent)
        except _OutOfTimeError:
            print(f"stopped after {options.limit} s", flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
    precision = "bfloat16" if report["bf16"] else "float32"
    text = f"{describe(report['machine'])}, {precision}.\n\n{make_table(report['rows'])}"
    if options.markdown is not None:
        kind = "-bf16" if report["bf16"] else ""
        replace_section(options.markdown, f"loops-{report['machine']['device']}{kind}", text)
    print(text)


def _read(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the report of the file that is to be continued, or a new one."""
    report: dict[str, Any] = {
        "machine": machine(device, SEED),
        "budget": options.budget,
        "bf16": options.bf16,
        "rows": [],
    }
    if options.out is None or not options.out.exists():
        return report
    old = {"bf16": False, **json.loads(options.out.read_text())}
    same = old["machine"]["device_name"] == report["machine"]["device_name"] and old["bf16"] == options.bf16
    if not (same or options.from_json):
        where = f"{old['machine']['device_name']}, {'bfloat16' if old['bf16'] else 'float32'}"
        raise SystemExit(f"--out must be a file of this device and precision, got one of {where}")
    return old if options.from_json else {**old, "machine": report["machine"]}


class _OutOfTimeError(BaseException):
    """The time is over. Not an Exception, since the compiler would wrap it in one of its own."""


def _out_of_time(*_: object) -> None:
    raise _OutOfTimeError


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a compilation that was stopped leaves workers, for which an ordinary exit would wait

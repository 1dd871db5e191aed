"""How long does a training step take in a custom loop: eager, captured by ``kf.capture``, compiled, by plain formulas?

    python benchmarks/loops.py --out benchmarks/results/loops-h200.json          # continues the file
    python benchmarks/loops.py --kinds networks --ways eager,captured --budget 0.1 --row 30 --limit 570 --out …
    python benchmarks/loops.py --only ccnn --limit 300 --out …                   # at most 300 s, rows with "ccnn"
    python benchmarks/loops.py --ways compiled --warm 3/8 --limit 300            # only fill the caches of compilers
    python benchmarks/loops.py --from-json --out … --markdown docs/benchmarks/training-steps.md

There is a row for each network of the guide to speed, for layers, for networks that the authors' code was timed with,
and for every registered network with the batch and the data shape of a recipe, on noise. A step is forward, loss,
backward, and fused AdamW. The loss is the cross-entropy, or the mean square of outputs that are not classes.

- ``eager`` is the step as written, ``captured`` the same under ``kf.capture``.
- ``compiled`` is the step of a network under ``torch.compile(mode="reduce-overhead")``.
- ``formula`` is the eager step by plain formulas: torch operations alone (``kf.ops.use_fast_paths(False)``),
  convolutions by ``torch.fft`` padded to twice the length, or by torch's own for kernels of at most 15 points, and all
  pairs of points.
- ``authors`` are time and memory of the authors' code for a network and a batch of the same shape (``_authors.py``).
- ``MiB`` is the peak memory of tensors above the level before the network was made.
- ``launches`` are calls of the CUDA driver that start work on the device in one step, ``Python calls`` are calls of
  Python functions in the thread of the loop.

On a GPU up to ten steps follow each other before the host waits, as in a loop that reads its loss now and then; at
least two, and fewer than ten if they take longer than 0.2 s.

Each row is printed and saved as soon as it is measured, and rows that the file already has are kept. The kinds are
measured in the order of ``--kinds``, and eager and captured steps of a kind before the others. The first network of
each family comes before the second of any. After ``--limit`` seconds the process ends with what it has. A step that
fails is saved with its error, and tried again when nothing else is left; not so one that needs more memory than there
is, or more than ``--row`` seconds. If the eager step does not fit into memory, the others are left out.

``--warm I/N`` takes every N-th case and runs a few steps of each way, so that several processes fill the caches of
Triton and of the compiler together. It saves nothing. The measurement that follows on the same machine finds the
kernels there.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _authors import published_step
from _formula import formula
from _measure import Budget, OutOfTimeError, machine, peak_bytes, sample_seconds, settle_allocator, time_limit
from _steps import launches, make_step, python_calls
from _tables import MISSING, describe, mebibytes, number, replace_section, save, table
from _training_cases import KINDS, cases

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _steps import Case

SEED = 0
WAYS = ("eager", "captured", "compiled", "formula")
#: ways that are measured one after the other for each case, before the next ones
GROUPS = (("eager", "captured"), ("formula",), ("compiled",))
#: the most and the fewest steps in a row on a GPU before the host waits for them, and the seconds that they may take
MOST_STEPS, LEAST_STEPS, ROW_SECONDS = 10, 2, 0.2
#: further steps before the measurement; a captured one needs four, one under a compiler's CUDA graph three
WARM_UP = {"eager": 1, "captured": 5, "compiled": 3, "formula": 1}
#: a compilation that begins with less time than this is left out, in seconds
LEAST_TIME = 10.0


class Stepping:
    """A training step of a case, ready to be measured.

    Args:
        case: the network or the layer.
        way: how it runs.
        device: where.
        batch: number of samples.
        bf16: whether under autocast to bfloat16.
    """

    def __init__(self, case: Case, way: str, device: torch.device, batch: int, *, bf16: bool) -> None:
        torch.manual_seed(SEED)
        self.way, self.device = way, device
        net = case.build().to(device).train()
        self.inputs = {key: value.to(device) for key, value in case.inputs(batch).items()}
        self.labels = torch.randint(2, (batch,), device=device)
        self.step: Any = make_step(net, autocast=device.type if bf16 else None)
        if way == "captured":
            self.step = kf.capture(self.step)
        elif way == "compiled":
            net.compile(mode="reduce-overhead")

    def __call__(self) -> None:
        """Take one step, without waiting for the device."""
        self.step(self.inputs, self.labels)

    def wait(self) -> None:
        """Take one step and wait for it."""
        self()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def warm_up(self) -> tuple[float, float]:
        """Return the seconds of the first step, and of the last one before the measurement."""
        seconds = []
        for _ in range(1 + WARM_UP[self.way]):
            begin = time.perf_counter()
            self.wait()
            seconds.append(time.perf_counter() - begin)
        return seconds[0], seconds[-1]

    def seconds(self, budget: float, expected: float) -> float:
        """Return the median time of a step, from rows of several on a GPU.

        Args:
            budget: seconds to spend, after the first two rows.
            expected: seconds of a step, roughly.
        """
        in_a_row = min(MOST_STEPS, max(LEAST_STEPS, int(ROW_SECONDS / expected))) if self.device.type == "cuda" else 1
        samples: list[float] = []
        end = time.perf_counter() + budget
        while len(samples) < 2 or (time.perf_counter() < end and len(samples) < 50):
            samples.append(sample_seconds(self, in_a_row, self.device))
        return statistics.median(samples)


def measure(case: Case, way: str, device: torch.device, budget: float, batch: int, *, bf16: bool) -> dict[str, Any]:
    """Return milliseconds, memory, launches and Python calls of a step."""
    before = _start_memory(device)
    with formula() if way == "formula" else contextlib.nullcontext():
        stepping = Stepping(case, way, device, batch, bf16=bf16)
        first, last = stepping.warm_up()
        row: dict[str, Any] = {"milliseconds": 1e3 * stepping.seconds(budget, last), "first_call_seconds": first}
        row["peak_bytes"] = (
            peak_bytes(stepping.wait, device) if before is None else torch.cuda.max_memory_allocated(device) - before
        )
        row |= {"launches": launches(stepping.wait, device), "python_calls": python_calls(stepping.wait)}
    if way == "captured":
        row["refusal"] = stepping.step.refusal
    return row


def _start_memory(device: torch.device) -> int | None:
    """Return the bytes in use on a GPU, from which the peak is counted; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def planned(options: argparse.Namespace, rows: list[dict[str, Any]]) -> Iterator[tuple[Case, str]]:
    """Yield what is still to be measured, in order; last what has failed before."""
    # Rows of an older script have no "peak_bytes".
    done = {(row["network"], row["way"]) for row in rows if "peak_bytes" in row or row.get("final")}
    failed = {(row["network"], row["way"]) for row in rows} - done
    again: list[tuple[Case, str]] = []
    for kind in options.kinds:
        found = cases((kind,), options.only)[options.rows]
        for group in GROUPS:
            for case in found:
                for way in group:
                    if way not in options.ways or (case.name, way) in done:
                        continue
                    if (case.name, way) in failed:
                        again.append((case, way))
                    elif not _does_not_fit(case.name, rows):
                        yield case, way
    yield from (entry for entry in again if not _does_not_fit(entry[0].name, rows))


def _does_not_fit(name: str, rows: list[dict[str, Any]]) -> bool:
    """Return whether the eager step needs more memory than there is: the other ways need as much."""
    return any(row["network"] == name and row["way"] == "eager" and row.get("fits") is False for row in rows)


def run(options: argparse.Namespace, report: dict[str, Any], device: torch.device, spent: Budget) -> None:
    """Add the missing measurements to the report."""
    rows: list[dict[str, Any]] = report["rows"]
    for case, way in planned(options, rows):
        left = options.limit - spent.elapsed
        if left <= (LEAST_TIME if way == "compiled" else 0):
            break
        batch = options.batch or case.batch
        row: dict[str, Any] = {"network": case.name, "batch": batch, "way": way, "recipe": case.recipe}
        try:
            with time_limit(min(left, options.row)):
                row |= measure(case, way, device, options.budget, batch, bf16=options.bf16)
        except OutOfTimeError:
            if left <= options.row:
                spent.log(f"{case.name}, {way}: stopped after {options.limit:g} s")
                break
            row |= {"error": f"more than {options.row:g} s", "final": True}
        except torch.OutOfMemoryError:
            row |= {"error": "more memory than there is", "fits": False, "final": True}
        except Exception as error:  # whatever a network or a compiler raises, the others are measured
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        rows[:] = [old for old in rows if (old["network"], old["way"]) != (case.name, way)] + [row]
        spent.log(f"{case.name}, {way}: {row}")
        save(report, options.out)
        _clean_up(way, device)


def warm(options: argparse.Namespace, device: torch.device, spent: Budget) -> None:
    """Run the first steps of every n-th case in each way, which compiles their kernels."""
    first, count = options.warm
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # several such processes share the cores
    chosen = [case for kind in options.kinds for case in cases((kind,), options.only)[options.rows]][first::count]
    for case in chosen:
        for way in options.ways:
            left = options.limit - spent.elapsed
            if left <= 0:
                return
            begin = time.perf_counter()
            try:
                with time_limit(min(left, options.row)), formula() if way == "formula" else contextlib.nullcontext():
                    Stepping(case, way, device, options.batch or case.batch, bf16=options.bf16).warm_up()
                ended = "done"
            except (OutOfTimeError, Exception) as error:  # the measurement will show it
                ended = f"{type(error).__name__}: {error}".splitlines()[0]
            spent.log(f"{case.name}, {way}: {ended}, {time.perf_counter() - begin:.1f} s")
            _clean_up(way, device)


def _clean_up(way: str, device: torch.device) -> None:
    """Free what a step has left. An error of the device, after which nothing can run, ends the process here."""
    if way == "compiled":
        torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()


def make_tables(rows: list[dict[str, Any]]) -> str:
    """Return the measurements as two tables, times and costs, with one line for each network or layer."""
    found = {(row["network"], row["way"]): row for row in rows}
    times, costs = [], []
    for name in dict.fromkeys(row["network"] for row in rows):
        of = [found.get((name, way), {}) for way in WAYS]
        batch = next(row["batch"] for row in of if row)
        cells = [name, str(batch)]
        ms = [row.get("milliseconds") for row in of]
        best = min((value for value in ms[:3] if value is not None), default=None)
        published = published_step(name, batch)
        authors, gib = (None, None) if published is None else (published.milliseconds, published.gib)
        times.append(
            [*cells]
            + [number(value) + ("*" if row.get("refusal") else "") for value, row in zip(ms, of, strict=True)]
            + [_times(ms[3], best), number(authors), _times(authors, ms[0]), _times(authors, best)]
        )
        counts = [
            MISSING if row.get(key) is None else f"{row[key]:,}"
            for key in ("launches", "python_calls")
            for row in of[:2]
        ]
        memory = [*(row.get("peak_bytes") for row in of), None if gib is None else int(gib * 2**30)]
        costs.append([*cells, *map(mebibytes, memory), *counts])
    start = ["training step", "batch"]
    compared = ["× formula", "authors, ms", "× authors, eager", "× authors"]
    counted = [f"{what}, {way}" for what in ("launches", "Python calls") for way in WAYS[:2]]
    return "\n\n".join(
        [
            table([*start, *(f"{way}, ms" for way in WAYS), *compared], times),
            table([*start, *(f"{way}, MiB" for way in (*WAYS, "authors")), *counted], costs),
        ]
    )


def _times(other: float | None, ours: float | None) -> str:
    """Return how many times as long the other one takes."""
    return MISSING if other is None or ours is None else f"{other / ours:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of rows: {', '.join(KINDS)}")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--rows", default=":", metavar="A:B:C", help="rows of each kind, as a slice of Python")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--budget", type=float, default=1.0, help="seconds to time each entry")
    parser.add_argument("--row", type=float, default=120.0, help="seconds after which an entry is given up")
    parser.add_argument("--limit", type=float, default=85.0, help="seconds after which the process ends")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="another batch size, to see that it runs")
    parser.add_argument("--bf16", action="store_true", help="under autocast to bfloat16")
    parser.add_argument("--warm", metavar="I/N", help="only compile the kernels of every N-th case")
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
    if options.warm is not None:
        options.warm = tuple(int(n) for n in options.warm.split("/"))
        warm(options, device, spent)
        return
    report = _read(options, device)
    if not options.from_json:
        settle_allocator()
        run(options, report, device, spent)
    precision = "bfloat16" if report["bf16"] else "float32"
    text = f"{describe(report['machine'])}, {precision}.\n\n{make_tables(report['rows'])}"
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


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a compilation that was stopped leaves workers, for which an ordinary exit would wait

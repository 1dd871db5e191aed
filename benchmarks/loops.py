"""How long does a training step take in a loop of one's own: eager, compiled, and captured by ``kf.capture``?

    python benchmarks/loops.py --out benchmarks/results/loops-h200.json
    python benchmarks/loops.py --networks p4-CNN --ways eager,captured --budget 2

A step is forward, cross-entropy, backward, and fused AdamW. ``compiled`` is the eager step of a network under
``torch.compile(mode="reduce-overhead")``; its first call is given apart. ``launches`` are calls of the CUDA driver that
start work on the device in one step, ``Python calls`` are calls of Python functions in the thread of the loop.

Each row is printed and saved as soon as it is measured. Eager and captured steps of all networks come first, compiled
ones after them while there is time: after ``--limit`` seconds the process ends with what it has.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import Budget, machine, median_seconds, settle_allocator
from _tables import number, save, table
from torch.nn import functional as F

import kernelfield as kf

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

SEED = 0
WAYS = ("eager", "captured", "compiled")
#: a compilation that begins with less time than this is left out, in seconds
LEAST_TIME = 10.0
#: functions of the driver and of the runtime that start work on the device
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


@dataclass(frozen=True)
class Case:
    """A registered network and a batch of its recipe.

    Args:
        model: name in the registry.
        options: arguments of the network.
        shape: of the batch.
    """

    model: str
    options: dict[str, Any]
    shape: tuple[int, ...]


def _case(model: str, *shape: int, **options: Any) -> Case:
    return Case(model, {"in_channels": shape[1], "out_channels": 10, **options}, shape)


CASES = {
    "CCNN_4,140": _case("ccnn_4_140", 100, 1, 784, dim=1, size=784, dropout=0.1, dropout_kind="channels"),
    "FlexTCN-2": _case("flextcn_2", 64, 1, 784, size=784, norm="batch", dropout=0.1),
    "FlexNet-16": _case("flexnet_16", 64, 3, 32, 32, size=32),
    "p4-CNN": _case("p4cnn", 128, 1, 28, 28),
    "attentive p4-CNN": _case("p4cnn", 128, 1, 28, 28, attention="full"),
}


def make_step(net: nn.Module, autocast: str | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a training step of a network, in bfloat16 where ``autocast`` names a kind of device."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(autocast or "cpu", torch.bfloat16, enabled=autocast is not None):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def measure(case: Case, way: str, device: torch.device, budget: float, *, bf16: bool = False) -> dict[str, Any]:
    """Return milliseconds, launches and Python calls of a step."""
    torch.manual_seed(SEED)
    net = kf.create_model(case.model, **case.options).to(device)
    x, y = torch.randn(case.shape, device=device), torch.randint(10, case.shape[:1], device=device)
    step: Any = make_step(net, autocast=device.type if bf16 else None)
    if way == "captured":
        step = kf.capture(step)
    elif way == "compiled":
        net.compile(mode="reduce-overhead")
    begin = time.perf_counter()
    _run(step, x, y, device)
    first = time.perf_counter() - begin
    for _ in range(5):
        _run(step, x, y, device)
    seconds = median_seconds({way: lambda: step(x, y)}, device, budget=budget)[way]
    row: dict[str, Any] = {"milliseconds": 1e3 * seconds, "first_call_seconds": first}
    row |= {"launches": launches(lambda: step(x, y), device), "python_calls": python_calls(lambda: step(x, y))}
    if way == "captured":
        row["refusal"] = step.refusal
    return row


def _run(step: Any, x: Tensor, y: Tensor, device: torch.device) -> None:
    step(x, y)
    if device.type == "cuda":
        torch.cuda.synchronize()


def launches(call: Callable[[], object], device: torch.device) -> int | None:
    """Return how many calls of the driver start work on the device; None on a CPU."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in profiler.key_averages() if event.key.startswith(LAUNCHES))


def python_calls(call: Callable[[], object]) -> int:
    """Return how many Python functions are called in this thread."""
    count = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(name.replace(",", "_") for name in CASES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--budget", type=float, default=1.0, help="seconds to time each entry")
    parser.add_argument("--limit", type=float, default=85.0, help="seconds after which the process ends")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="another batch size, to see that it runs")
    parser.add_argument("--bf16", action="store_true", help="under autocast to bfloat16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spent, device = Budget(options.limit), torch.device(options.device)
    names = {name.replace(",", "_"): name for name in CASES}
    chosen = [names[name] for name in options.networks.split(",")]
    settle_allocator()
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, options.limit - spent.elapsed))
    rows: list[dict[str, Any]] = []
    settings = {"machine": machine(device, SEED), "budget": options.budget, "bf16": options.bf16}
    wanted = options.ways.split(",")
    try:
        for name, way in [(n, w) for ways in (WAYS[:2], WAYS[2:]) for n in chosen for w in ways if w in wanted]:
            if way == "compiled" and spent.elapsed > options.limit - LEAST_TIME:
                break
            case = CASES[name]
            if options.batch:
                case = Case(case.model, case.options, (options.batch, *case.shape[1:]))
            row = {"network": name, "batch": case.shape[0], "way": way}
            row |= measure(case, way, device, options.budget, bf16=options.bf16)
            rows.append(row)
            spent.log(f"{name}, {way}: {row}")
            if options.out is not None:
                save({**settings, "rows": rows}, options.out)
            torch.compiler.reset()
            gc.collect()
    except _OutOfTimeError:
        print(f"stopped after {options.limit} s", flush=True)
    _print_table(rows)
    sys.stdout.flush()
    os._exit(0)  # a compilation that was stopped leaves workers, for which an ordinary exit would wait


class _OutOfTimeError(BaseException):
    """The time is over; not an Exception, which the compiler would wrap in one of its own."""


def _out_of_time(*_: object) -> None:
    raise _OutOfTimeError


def _print_table(rows: list[dict[str, Any]]) -> None:
    found = {(row["network"], row["way"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of = [found.get((name, way), {}) for way in WAYS]
        cells = [number(row.get(key)) for key in ("milliseconds", "launches", "python_calls") for row in of]
        lines.append([name, *cells])
    header = ["network", *(f"{way} {what}" for what in ("ms", "launches", "Python calls") for way in WAYS)]
    print(table(header, lines))


if __name__ == "__main__":
    main()

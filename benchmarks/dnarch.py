"""The cost of learning an architecture, and the savings of a learned one: chapter 6's two claims.

    python benchmarks/dnarch.py                           # on the GPU if there is one
    python benchmarks/dnarch.py --quick                   # tiny shapes, to see that it runs
    python benchmarks/dnarch.py --json benchmarks/results/dnarch-cpu.json
    python benchmarks/dnarch.py --from-json benchmarks/results/dnarch-cpu.json \
        --markdown docs/benchmarks/architectures.md

The first table compares a training step (forward, loss, backward, optimiser) of DNArch with that of the base network.
Masks have the size of the base network, so the budget is 1.0. "fixed shapes" is the mode in which masks multiply and
nothing is cropped. The second table has networks of 0.75 and 0.5 of the base network's complexity, reached by all
masks, by resolution or by width. Each is materialised, and its prediction and training step are compared with the
base's.

Times of a row are measured in turns in one process; on a GPU also as CUDA graphs, if shapes are fixed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import graphed, least_seconds, machine, median_seconds, peak_bytes, settle_allocator
from _tables import describe, number, ratio, replace_section, save, table

from kernelfield import CCNN, DNArch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

SEED = 0
LEARN = {
    "K": ("kernel",),
    "K+R": ("kernel", "resolution"),
    "K+R+W+D": ("kernel", "resolution", "width", "depth"),
}


def base_network(dim: int, size: int, channels: int, blocks: int) -> CCNN:
    torch.manual_seed(SEED)
    # The base has the mask that DNArch would add, so that both convolve with kernels of one size.
    return CCNN(3, 10, dim=dim, size=size, channels=channels, blocks=blocks, sigma=0.25, causal=False)


def training_step(net: nn.Module, x: Tensor, graph: bool = False) -> Callable[[], object]:
    capturable = {"capturable": True} if graph else {}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-9, fused=True, **capturable)
    target = torch.zeros(len(x), dtype=torch.long, device=x.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(net(x), target)
        if isinstance(net, DNArch):
            loss = loss + 0.1 * net.complexity_loss()
        loss.backward()
        optimizer.step()

    return graphed(step) if graph else step


def steps(case: dict[str, Any], device: torch.device, budget: float) -> dict[str, Any]:
    """Time training steps of the base and of every kind of DNArch around it."""
    shape = (case["batch"], 3, *(case["size"],) * case["dim"])
    x = torch.randn(shape, device=device)
    base = base_network(case["dim"], case["size"], case["channels"], case["blocks"]).to(device)
    nets: dict[str, nn.Module] = {"base": base}
    for name, learn in LEARN.items():
        nets[name] = DNArch(base, learn=learn)
    nets["K+R+W+D, fixed shapes"] = DNArch(base, fixed_shapes=True)
    calls = {name: training_step(net, x) for name, net in nets.items()}
    if device.type == "cuda":
        for name in ("base", "K", "K+R+W+D, fixed shapes"):
            calls[f"{name}, graphed"] = training_step(nets[name], x, graph=True)
        fixed = DNArch(base, learn=LEARN["K+R"], fixed_shapes=True)
        calls["K+R, fixed shapes, graphed"] = training_step(fixed, x, graph=True)
    measure = median_seconds if device.type == "cuda" else least_seconds
    seconds = measure(calls, device, budget=budget)
    relative = {n: float(net.relative_complexity().detach()) for n, net in nets.items() if isinstance(net, DNArch)}
    return {
        "name": case["name"],
        "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
        "complexity": relative,
        "peak_mib": {name: peak_bytes(calls[name], device) / 2**20 for name in nets},
    }


def shrunk(base: CCNN, target: float, how: str) -> DNArch:
    """Return a DNArch whose masks were closed until its complexity is the target: all alike, or of one kind only."""
    net = DNArch(base, max_width=1, max_depth=1, budget=target)
    with torch.no_grad():
        for mask in (net.width, net.resolution, net.depth):
            mask.offset.fill_(mask.limits()[1])  # type: ignore[union-attr]
    moved = {"all": (net.width, net.resolution), "resolution": (net.resolution,), "width": (net.width,)}[how]
    low, high = 0.0, 2.0
    for _ in range(40):  # by bisection
        shift = (low + high) / 2
        with torch.no_grad():
            for mask in moved:
                mask.offset.fill_(mask.limits()[1] - shift)  # type: ignore[union-attr]
        low, high = (shift, high) if float(net.relative_complexity().detach()) > target else (low, shift)
    return net


def savings(case: dict[str, Any], device: torch.device, budget: float) -> list[dict[str, Any]]:
    """Time materialised networks of 0.75 and 0.5 of the base's complexity against the base."""
    shape = (case["batch"], 3, *(case["size"],) * case["dim"])
    x = torch.randn(shape, device=device)
    base = base_network(case["dim"], case["size"], case["channels"], case["blocks"]).to(device)
    rows = []
    for target in (0.75, 0.5):
        for how in ("all", "resolution", "width"):
            net = shrunk(base, target, how)
            small = net.materialize()
            calls: dict[str, Callable[[], object]] = {}
            for name, network in (("base", base), ("small", small)):
                calls[f"{name}, training"] = training_step(network, x)
                frozen = (
                    network.eval()
                    if name == "small"
                    else base_network(case["dim"], case["size"], case["channels"], case["blocks"]).to(device).eval()
                )
                calls[name] = predictor(frozen, x)
            seconds = least_seconds(calls, device, budget=budget)
            made = net.architecture()
            rows.append(
                {
                    "name": f"{case['name']}, {target:g} of the budget by {how}",
                    "complexity": made.complexity,
                    "resolution": made.blocks[0].resolution,
                    "widths": made.blocks[0].widths,
                    "parameters": sum(p.numel() for p in small.parameters()),
                    "base_parameters": sum(p.numel() for p in base.parameters()),
                    "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
                }
            )
    return rows


def predictor(net: nn.Module, x: Tensor) -> Callable[[], object]:
    def predict() -> Tensor:
        with torch.no_grad():
            return net(x)

    return predict


def cases(device: torch.device, quick: bool) -> list[dict[str, Any]]:
    def case(dim: int, size: int, batch: int, channels: int = 140, blocks: int = 4) -> dict[str, Any]:
        name = f"CCNN_{blocks},{channels}, {dim}D, {size}, batch {batch}"
        return {"name": name, "dim": dim, "size": size, "batch": batch, "channels": channels, "blocks": blocks}

    if quick:
        return [case(2, 8, 2, channels=8, blocks=2)]
    if device.type != "cuda":
        return [case(2, 32, 8), case(1, 1024, 8)]
    return [case(2, 32, 50), case(2, 32, 200), case(1, 1024, 50)]


STEP_HEADER = ("training step", "ms", "against the base", "complexity", "peak, MiB")
SAVING_HEADER = (
    *("materialised", "complexity", "resolution", "widths", "parameters"),
    *("prediction, ms", "base, ms", "faster", "training step, faster"),
)


def step_cells(row: dict[str, Any]) -> list[list[str]]:
    lines = []
    for name, ms in row["milliseconds"].items():
        against = row["milliseconds"]["base, graphed" if name.endswith("graphed") else "base"]
        relative = row["complexity"].get(name, 1.0 if name == "base" else None)
        lines.append(
            [
                f"{row['name']}: {name}",
                number(ms),
                ratio(ms / against),
                ratio(relative),
                number(row["peak_mib"].get(name)),
            ]
        )
    return lines


def saving_cells(row: dict[str, Any]) -> list[str]:
    ms = row["milliseconds"]
    return [
        row["name"],
        ratio(row["complexity"]),
        "×".join(map(str, row["resolution"])),
        "/".join(map(str, row["widths"])),
        f"{row['parameters'] / row['base_parameters']:.2f}",
        number(ms["small"]),
        number(ms["base"]),
        f"{ms['base'] / ms['small']:.2f}×",
        f"{ms['base, training'] / ms['small, training']:.2f}×",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--budget", type=float, default=None, help="seconds to spend on each time")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the tables into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        device = torch.device(options.device)
        budget = options.budget or (0.05 if options.quick else 1.0 if device.type == "cuda" else 4.0)
        settle_allocator()
        begin = time.perf_counter()
        report = {"machine": machine(device, SEED), "steps": [], "savings": []}
        for case in cases(device, options.quick):
            report["steps"].append(steps(case, device, budget))
            for line in step_cells(report["steps"][-1]):
                print(*line, sep="   ", flush=True)
            save(report, options.json)
        for row in savings(cases(device, options.quick)[0], device, budget):
            report["savings"].append(row)
            print(*saving_cells(row), sep="   ", flush=True)
        report["seconds"] = round(time.perf_counter() - begin, 1)
        save(report, options.json)
    text = "\n\n".join(
        [
            f"{describe(report['machine'])}.",
            table(STEP_HEADER, [line for row in report["steps"] for line in step_cells(row)]),
            table(SAVING_HEADER, [saving_cells(row) for row in report["savings"]]),
        ]
    )
    if options.markdown is not None:
        replace_section(options.markdown, f"dnarch-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

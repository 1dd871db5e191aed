"""Time and memory of inference on point clouds: gridified networks, a CCNN on points, and PointNet++.

    python benchmarks/points.py                           # on the GPU if there is one
    python benchmarks/points.py --quick                   # few points, to see that it runs
    python benchmarks/points.py --budget 0.08 --limit 40  # short: no row starts after 40 s
    python benchmarks/points.py --json benchmarks/results/points-h200.json     # keeps the rows that are there already
    python benchmarks/points.py --from-json benchmarks/results/points-h200.json --markdown docs/benchmarks/points.md

Three tables: time and memory by the number of points (chapter 4's first figure), with the grid that the network was
published with and with one that grows with the cloud; by the number of neighbours and channels (its second); and of
finding the edges alone, by cell lists and by all distances. The growth of a column is the slope of its logarithm over
that of the number of points, from 5,000 points on, or from the middle of the sizes: 1 is linear, 2 quadratic.

PointNet++ takes its farthest points and balls from torch-geometric if that is installed; the table says which.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import exponent, machine, median_seconds, peak_bytes, settle_allocator
from _pointnet2 import PARTS, PointNet2
from _tables import MISSING, describe, number, replace_section, save, table

from kernelfield import GridifiedNet, create_model
from kernelfield.ops import bilateral_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

SEED = 0
SIZES = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
NEIGHBORS = (4, 9, 16, 32, 64)
CHANNELS = (32, 64, 128, 256)
#: points beyond which a column takes minutes on a CPU
MOST_ON_CPU = {
    "PointNet++": 20_000,
    "CCNN_4,32 on points": 2_000,
    "all distances": 10_000,
    "gridified, grid grows": 20_000,
}
#: a CCNN on points is for clouds of chapter 3's size
MOST = {"CCNN_4,32 on points": 5_000}


def cloud(batch: int, points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points on the surfaces of boxes, as of objects, and their normals; most of the grid is far from them."""
    generator = torch.Generator().manual_seed(SEED)
    coords = 2 * torch.rand(batch, points, 3, generator=generator) - 1
    axis = torch.randint(3, (batch, points, 1), generator=generator)
    side = 2.0 * torch.randint(2, (batch, points, 1), generator=generator) - 1
    coords = coords.scatter(2, axis, side) * torch.tensor([0.5, 0.8, 1.0])
    normals = torch.zeros(batch, points, 3).scatter_(2, axis, side)
    return torch.cat([coords, normals], dim=-1).mT.contiguous().to(device), coords.to(device)


def networks(points: int) -> dict[str, Callable[[], nn.Module]]:
    grown = max(9, round(points ** (1 / 3)))
    return {
        "gridified, 9³": lambda: create_model("gridified_modelnet40"),
        "gridified, grid grows": lambda: create_model("gridified_modelnet40", grid=grown),
        "PointNet++": lambda: PointNet2(6, 40),
        "CCNN_4,32 on points": lambda: create_model("ccnn_4_32"),
    }


def measure(calls: dict[str, Callable[[], object]], device: torch.device, budget: float) -> dict[str, dict[str, float]]:
    with torch.inference_mode():
        seconds = median_seconds(calls, device, budget=budget)
        return {
            name: {"ms": 1e3 * seconds[name], "mib": peak_bytes(call, device) / 2**20} for name, call in calls.items()
        }


def allowed(name: str, points: int, device: torch.device) -> bool:
    most = MOST.get(name, math.inf)
    return points <= (min(most, MOST_ON_CPU.get(name, math.inf)) if device.type == "cpu" else most)


def by_points(sizes: tuple[int, ...], batch: int, device: torch.device, budget: float) -> Iterator[dict[str, Any]]:
    for points in sizes:
        x, coords = cloud(batch, points, device)
        torch.manual_seed(SEED)
        built = {
            name: build().eval().to(device) for name, build in networks(points).items() if allowed(name, points, device)
        }
        calls = {name: partial(net, x, coords=coords) for name, net in built.items()}
        yield {"points": points, **measure(calls, device, budget)}
        del built, calls


def by_edges(sizes: tuple[int, ...], batch: int, device: torch.device, budget: float) -> Iterator[dict[str, Any]]:
    for points in sizes:
        _, coords = cloud(batch, points, device)
        filled = 2 * torch.rand(coords.shape, device=device) - 1
        grown = (max(9, round(points ** (1 / 3))),) * 3
        calls = {
            "cells, 9³": partial(bilateral_edges, coords, (9, 9, 9), 9, method="cells"),
            "cells, grid grows": partial(bilateral_edges, coords, grown, 9, method="cells"),
            "cells, grid grows, volume": partial(bilateral_edges, filled, grown, 9, method="cells"),
            "all distances": partial(bilateral_edges, coords, grown, 9, method="all"),
        }
        calls = {name: call for name, call in calls.items() if allowed(name, points, device)}
        yield {"points": points, **measure(calls, device, budget)}


def by_neighbors(
    neighbors: tuple[int, ...], channels: tuple[int, ...], batch: int, device: torch.device, budget: float
) -> Iterator[dict[str, Any]]:
    x, coords = cloud(batch, 1_000, device)
    for k in neighbors:
        calls = {}
        for width in channels:
            torch.manual_seed(SEED)
            net = GridifiedNet(6, 40, channels=width, neighbors=k).eval().to(device)
            calls[f"{width} channels"] = partial(net, x, coords=coords)
        yield {"neighbors": k, **measure(calls, device, budget)}


def growth(rows: list[dict[str, Any]], name: str, what: str) -> float | None:
    """Return the exponent of growth with the number of points, over the larger half of the sizes."""
    found = [(row["points"], row[name][what]) for row in rows if name in row]
    found = [pair for pair in found if pair[0] >= 5_000] if len([p for p in found if p[0] >= 5_000]) > 1 else found[-3:]
    if len(found) < 2 or min(value for _, value in found) <= 0:
        return None
    return exponent([points for points, _ in found], [value for _, value in found])


def tables(report: dict[str, Any]) -> str:
    where = describe(report["machine"])
    parts = [f"{where}. Batches of {report['batch']}; farthest points and balls: {report['parts']}."]
    titles = {
        "points": ("Inference, ms / MiB:", "points"),
        "neighbors": ("A gridified network on 1,000 points, ms / MiB:", "neighbors"),
        "edges": ("The edges between cloud and grid alone, ms / MiB:", "points"),
    }
    for part, (title, key) in titles.items():
        rows = report[part]
        names = list(dict.fromkeys(name for row in rows for name in row if name != key))
        cells = [[f"{row[key]:,}", *(cell(row.get(name)) for name in names)] for row in rows]
        if key == "points":
            slopes = [[growth(rows, name, what) for what in ("ms", "mib")] for name in names]
            shown = [[MISSING if slope is None else f"{slope:.2f}" for slope in pair] for pair in slopes]
            cells.append(["growth", *(" / ".join(pair) for pair in shown)])
        parts += [title, table([key, *names], cells)]
    return "\n\n".join(parts)


def cell(measured: dict[str, float] | None) -> str:
    return MISSING if measured is None else f"{number(measured['ms'])} / {number(measured['mib'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="clouds at once; 8 on a GPU, 1 on a CPU")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each cell of a table")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no row starts")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the tables into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        begin = time.perf_counter()
        deadline = begin + options.limit
        device = torch.device(options.device)
        settle_allocator()
        batch = options.batch or (8 if device.type == "cuda" else 1)
        few = 3 if options.quick else None
        sizes, neighbors, channels = SIZES[:few], NEIGHBORS[:few], CHANNELS[:few]
        report = {"machine": machine(device, SEED), "batch": batch, "parts": PARTS}
        report |= {"points": [], "neighbors": [], "edges": []}
        if options.json is not None and options.json.exists():
            before = json.loads(options.json.read_text())
            if before["machine"]["device_name"] != report["machine"]["device_name"]:
                parser.error(f"--json: {options.json} holds measurements of {before['machine']['device_name']}")
            report |= {part: before[part] for part in ("points", "neighbors", "edges")}
        left = {
            part: tuple(n for n in all_of_them if n not in [row[key] for row in report[part]])
            for part, key, all_of_them in (
                ("points", "points", sizes),
                ("neighbors", "neighbors", neighbors),
                ("edges", "points", sizes),
            )
        }
        parts = {
            "points": by_points(left["points"], batch, device, options.budget),
            "neighbors": by_neighbors(left["neighbors"], channels, batch, device, options.budget),
            "edges": by_edges(left["edges"], batch, device, options.budget),
        }
        # One row of each table in turn, so that a limit leaves out the largest rows and not a whole table.
        while parts and time.perf_counter() < deadline:
            for part, rows in list(parts.items()):
                row = next(rows, None)
                if row is None:
                    del parts[part]
                    continue
                report[part].append(row)
                shown = {name: number(v["ms"]) if isinstance(v, dict) else v for name, v in row.items()}
                print(part, shown, f"{time.perf_counter() - begin:.0f} s", flush=True)
                save(report, options.json)
    text = tables(report)
    if options.markdown is not None:
        replace_section(options.markdown, f"points-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

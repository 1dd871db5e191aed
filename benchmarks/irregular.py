"""How do time and memory of a convolution between points grow with their number?

    python benchmarks/irregular.py                                   # 1,000 to 16,000 points, CPU or GPU
    python benchmarks/irregular.py --points 4000 16000 64000 256000 --out irregular.json
    python benchmarks/irregular.py --dim 3 --points 1000 4000
    python benchmarks/irregular.py --points                          # whole networks alone
    python benchmarks/irregular.py --device cpu --channels 2 --hidden 8 --once --network-points 0   # pairs in minutes

One training step (forward and backward) of one depthwise layer, with a kernel as long as the input or one under a mask,
by each method of ``kernelfield.ops.point_conv``. Times are ratios to all pairs in the same run. Above ``--most-pairs``
all pairs are left out, and their time is extrapolated from the largest number that ran. Memory is the peak of the step:
of the GPU, or of tensors that the profiler saw on a CPU. With ``--once`` all pairs are computed once on a CPU, after a
warm-up on 64 points, and their memory is not measured: the profiler would hold a record of each chunk. With one thread,
times on a CPU are CPU seconds, which do not include other programs. Exponents are fitted over the given numbers of
points.

On a CPU, all pairs fragment the heap of glibc 2.36: the process grows to 5 GB on 4,000 points, far more than its
tensors, and would grow to 70 GB on 16,000. ``MALLOC_MMAP_THRESHOLD_=1000000`` in the environment avoids it.

First, one training step of a whole CCNN on ``--network-points`` points: of a cloud, and of a series with global
kernels. ``--network-points 0`` leaves it out. Results are written after each part.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from _measure import exponent, machine

import kernelfield as kf


def layer_of(kind: str, dim: int, points: int, channels: int, hidden: int) -> kf.layers.ContinuousConv:
    """Return a depthwise layer with a kernel over all points, or one whose mask reaches about 32 of them."""
    side = points ** (1 / dim)
    field = functools.partial(kf.fields.MAGNet, hidden=hidden)
    if kind == "global":
        return kf.CKConv(channels, channels, dim=dim, size=math.ceil(side), field=field, depthwise=True)
    sigma = 32 ** (1 / dim) / (2 * 2.146 * side)
    return kf.FlexConv(channels, channels, dim=dim, size=math.ceil(side), field=field, depthwise=True, sigma=sigma)


def step_of(layer: torch.nn.Module, x: torch.Tensor, coords: torch.Tensor) -> None:
    layer.zero_grad()
    layer(x, coords=coords).square().mean().backward()


def measure(
    layer: torch.nn.Module, x: torch.Tensor, coords: torch.Tensor, seconds: float, *, once: bool = False
) -> dict[str, float | None]:
    """Return the median time of a step, and its peak memory; with ``once``, the time of a single step on a CPU."""
    cuda = x.device.type == "cuda"
    clock = time.process_time if not cuda and torch.get_num_threads() == 1 else time.perf_counter
    if once and not cuda:
        step_of(layer, x[..., :64], coords[:, :64])
        start = clock()
        step_of(layer, x, coords)
        return {"seconds": clock() - start, "bytes": None}
    step_of(layer, x, coords)
    times: list[float] = []
    while sum(times) < seconds and len(times) < 20:
        if cuda:
            torch.cuda.synchronize()
        start = clock()
        step_of(layer, x, coords)
        if cuda:
            torch.cuda.synchronize()
        times.append(clock() - start)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        step_of(layer, x, coords)
        peak = float(torch.cuda.max_memory_allocated())
    else:
        peak = _peak_on_cpu(layer, x, coords)
    return {"seconds": sorted(times)[len(times) // 2], "bytes": peak}


def _peak_on_cpu(layer: torch.nn.Module, x: torch.Tensor, coords: torch.Tensor) -> float:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step_of(layer, x, coords)
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return float(peak)


def networks(points: int, device: str, seconds: float) -> list[dict[str, Any]]:
    """Return time and peak memory of a training step of CCNNs on a cloud and on a series at irregular times."""
    makers = {
        "CCNN_4,32 on a cloud": (3, 2.0, lambda: kf.create_model("ccnn_4_32")),
        "CCNN_4,32 on a series": (
            1,
            float(points),
            lambda: kf.CCNN(6, 40, size=points, channels=32, hidden=8, sigma=None, causal=False),
        ),
    }
    rows = []
    for name, (dim, side, make) in makers.items():
        torch.manual_seed(0)
        network = make().to(device)
        x, coords = torch.randn(1, 6, points, device=device), side * torch.rand(1, points, dim, device=device)
        coords = coords.sort(dim=1).values if dim == 1 else coords - 1
        row = {"network": name, "points": points, **measure(network, x, coords, seconds)}
        print(f"{name}, {points:,} points: {1e3 * row['seconds']:.1f} ms, {row['bytes'] / 2**30:.2f} GiB", flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="*", default=[1000, 4000, 16000])
    parser.add_argument("--dim", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32, help="width of the kernels' networks")
    parser.add_argument("--once", action="store_true", help="compute all pairs once, on a CPU")
    parser.add_argument(
        "--most-pairs", type=int, help="largest number of points for all pairs: 16,000 on a GPU, 4,000 on a CPU"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each measurement")
    parser.add_argument("--network-points", type=int, default=20000, help="points of the whole network; 0 for none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = options.device
    if options.most_pairs is None:
        options.most_pairs = 16000 if device == "cuda" else 4000
    settings = {name: getattr(options, name) for name in ("dim", "channels", "hidden", "once")}
    result = {"machine": machine(torch.device(device), 0), **settings}
    result["networks"] = networks(options.network_points, device, options.seconds) if options.network_points else []
    _write(options.out, result)
    result["rows"] = rows = layers(options)
    result["summary"] = {kind: summarise(rows, kind) for kind in ("global", "masked")} if rows else {}
    for kind, summary in result["summary"].items():
        print(kind, summary)
    _write(options.out, result)


def layers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return time and peak memory of a training step of one layer, by each method and for each number of points."""
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for kind in ("global", "masked"):
        for n in options.points:
            coords = torch.rand(1, n, options.dim, device=options.device) * n ** (1 / options.dim)
            x = torch.randn(1, options.channels, n, device=options.device)
            layer = layer_of(kind, options.dim, n, options.channels, options.hidden).to(options.device)
            for method in ("pairs", "auto"):
                if method == "pairs" and n > options.most_pairs:
                    continue
                layer.point_method = method
                found = measure(layer, x, coords, options.seconds, once=options.once and method == "pairs")
                row = {"kind": kind, "method": method, "points": n, **found}
                rows.append(row)
                memory = "" if row["bytes"] is None else f"{row['bytes'] / 2**20:9.1f} MiB"
                print(f"{kind:7} {method:6} {n:8,} points: {1e3 * row['seconds']:10.1f} ms {memory}", flush=True)
    return rows


def summarise(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return how much faster than all pairs a kind of layer is, and how its time and memory grow."""
    fast = [row for row in rows if row["kind"] == kind and row["method"] == "auto"]
    slow = {row["points"]: row for row in rows if row["kind"] == kind and row["method"] == "pairs"}
    known = [row["points"] for row in fast]
    return {
        "speedup": {
            row["points"]: slow[row["points"]]["seconds"] / row["seconds"] for row in fast if row["points"] in slow
        },
        "time exponent": exponent(known, [row["seconds"] for row in fast]) if len(known) > 1 else None,
        "memory exponent": exponent(known, [row["bytes"] for row in fast]) if len(known) > 1 else None,
    }


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

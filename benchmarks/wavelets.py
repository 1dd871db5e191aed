"""The cost of a bank of dilated kernels: one direct convolution per scale, or the cheapest method for each.

    python benchmarks/wavelets.py                       # on the GPU if there is one
    python benchmarks/wavelets.py --quick               # two small rows, to see that it runs
    python benchmarks/wavelets.py --json benchmarks/results/wavelets-cpu.json
    python benchmarks/wavelets.py --from-json benchmarks/results/wavelets-cpu.json \
        --markdown docs/benchmarks/wavelets.md

Every row lifts a raw signal to n octaves with the splines of chapter 10, 79 coefficients, forward and as a training
step: the first layer of its W11-Net, with all of its 51 channels on a GPU, and 8 on a CPU, where torch's direct
convolution with a kernel of 20,000 points takes minutes. In one run:

- naive: one direct convolution (torch's own) with the sampled kernel of each scale,
- direct and FFT: the same sampled kernels, short ones by direct sums and long ones by FFTs that share the spectrum of
  the signal, as for any other field,
- bank: the layer's own method for splines, each scale by its cheapest path.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine, median_seconds, peak_bytes, settle_allocator
from _tables import MISSING, describe, mebibytes, milliseconds, replace_section, save, table
from torch.nn import functional as F

from kernelfield.ops import Dilated, conv_bank
from kernelfield.ops.filter_bank import _paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SEED, TAPS = 0, 79
LENGTHS = (8_000, 16_000, 32_000, 64_000, 80_200)
SCALES = range(1, 10)
PATHS = ("naive", "direct and FFT", "bank")
# A naive training step of more multiplications than this takes minutes, and is left out.
MOST_NAIVE = {"cpu": 1e10, "cuda": 3e11}


def bank(weights: Tensor, scales: int) -> list[Dilated]:
    return [Dilated(weights / 2**j, 2**j) for j in range(scales)]


def naive(x: Tensor, kernels: list[Dilated]) -> list[Tensor]:
    sampled = [kernel.sampled().flip(-1) for kernel in kernels]
    return [F.conv1d(x, kernel, padding=kernel.shape[-1] // 2) for kernel in sampled]


def dense(x: Tensor, kernels: list[Dilated]) -> list[Tensor]:
    return conv_bank(x, [kernel.sampled() for kernel in kernels])


METHODS: dict[str, Callable[[Tensor, list[Dilated]], list[Tensor]]] = {
    "naive": naive,
    "direct and FFT": dense,
    "bank": conv_bank,
}


def measure(scales: int, length: int, batch: int, channels: int, device: torch.device, budget: float) -> dict[str, Any]:
    torch.manual_seed(SEED)
    x = torch.randn(batch, 1, length, device=device)
    weights = torch.randn(channels, 1, TAPS, device=device, requires_grad=True)

    def forward(method: Callable[..., list[Tensor]]) -> Callable[[], object]:
        def call() -> None:
            with torch.no_grad():
                method(x, bank(weights, scales))

        return call

    def step(method: Callable[..., list[Tensor]]) -> Callable[[], object]:
        def call() -> None:
            weights.grad = None
            torch.stack([y.square().mean() for y in method(x, bank(weights, scales))]).sum().backward()

        return call

    work = batch * channels * length * TAPS * (2**scales - 1)
    dear = work > MOST_NAIVE[device.type]
    row: dict[str, Any] = {"scales": scales, "length": length, "batch": batch, "channels": channels}
    with torch.no_grad():
        row["paths"] = _paths(x, bank(weights, scales), "zero", "auto")
        truth = (dense if dear else naive)(x, bank(weights, scales))
        found = conv_bank(x, bank(weights, scales))
        size = max(float(y.abs().max()) for y in truth)
        row["error"] = max(float((a - b).abs().max()) for a, b in zip(truth, found, strict=True)) / size
        del truth, found
    for kind, make in (("forward", forward), ("training", step)):
        calls = {
            name: make(method)
            for name, method in METHODS.items()
            if not (kind == "training" and dear and name == "naive")
        }
        row[kind] = median_seconds(calls, device, budget=budget)
        # Counting memory by the CPU profiler slows down only the naive way.
        row[f"{kind}_peak"] = {
            name: peak_bytes(call, device) for name, call in calls.items() if row[kind][name] < 20 * budget
        }
    return row


HEADER = (
    *(
        "scales × samples (batch × channels)",
        "naive, ms",
        "direct and FFT",
        "bank",
        "naive / bank",
        "peak: naive, MiB",
        "bank",
    ),
    *("training: naive, ms", "direct and FFT", "bank", "naive / bank", "peak: naive, MiB", "bank"),
)


def cells(row: dict[str, Any]) -> list[str]:
    found = [f"{row['scales']} × {row['length']:,} ({row['batch']} × {row['channels']})"]
    for kind in ("forward", "training"):
        times, peak = row[kind], row[f"{kind}_peak"]
        found += [milliseconds(times.get(name)) for name in PATHS]
        found.append(f"{times['naive'] / times['bank']:.1f}×" if "naive" in times else MISSING)
        found += [mebibytes(peak.get(name)) for name in ("naive", "bank")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="16 on a GPU, 1 on a CPU if not given")
    parser.add_argument("--channels", type=int, help="51 on a GPU, 8 on a CPU if not given")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each time in the table")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        device = torch.device(options.device)
        settle_allocator()
        cases = [(n, LENGTHS[-1]) for n in SCALES] + [(SCALES[-1], length) for length in LENGTHS[:-1]]
        if options.quick:
            cases = [(2, 4_000), (4, 4_000)]
        batch = options.batch or (16 if device.type == "cuda" else 1)
        channels = options.channels or (51 if device.type == "cuda" else 8)
        report = {"machine": machine(device, SEED), "rows": []}
        for scales, length in cases:
            report["rows"].append(measure(scales, length, batch, channels, device, options.budget))
            print(*cells(report["rows"][-1]), sep="   ", flush=True)
            save(report, options.json)
    text = f"{describe(report['machine'])}.\n\n{table(HEADER, [cells(row) for row in report['rows']])}"
    if options.markdown is not None:
        replace_section(options.markdown, f"wavelets-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

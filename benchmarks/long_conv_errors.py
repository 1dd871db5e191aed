"""Relative errors of the convolution on tensor cores on this GPU, against float64, for every layout and precision.

    for i in $(seq 0 10); do python benchmarks/long_conv_errors.py --share $i/11 & done; wait   # compile in parallel
    python benchmarks/long_conv_errors.py --json benchmarks/results/long-conv-errors-h200.json
    python benchmarks/long_conv_errors.py --large          # the last of more than 2³¹ elements, and a kernel's gradient
    compute-sanitizer --tool memcheck --kernel-name kns=_kernel python benchmarks/long_conv_errors.py --bare

Outputs and gradients are poisoned with NaN before every call. Exits with an error if a relative error is larger
than its precision allows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from _measure import machine

from kernelfield.ops import conv
from kernelfield.ops.conv.triton import selfcheck

#: signal, kernel points, other arguments; no side fills a tile, but blocks of 294,912 and rows of the planes of 96 and
#: 200 columns are whole vectors, of which torch's matrix products do the outer transform
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "band of 100": ((50, 2, 100), (100,), {"causal": True}),
    "band of 300": ((50, 2, 300), (599,), {}),
    "line of 200": ((3, 5, 200), (200,), {"causal": True}),
    "line of 784": ((3, 5, 784), (1567,), {}),
    "line of 2,000": ((2, 3, 2000), (700,), {"causal": True}),
    "line of 4,000": ((2, 3, 4000), (4000,), {"causal": True}),
    "line of 16,000": ((2, 2, 16000), (16000,), {"causal": True}),
    "line of 300,000": ((1, 2, 300_000), (300_000,), {"causal": True}),
    "line of 294,912": ((2, 2, 294_912), (100_000,), {}),
    "circle of 1,000": ((2, 3, 1000), (2000,), {"boundary": "periodic"}),
    "plane of 28 × 30": ((3, 5, 28, 30), (55, 59), {}),
    "plane of 60 × 50": ((2, 3, 60, 50), (119, 99), {}),
    "plane of 100 × 90": ((2, 2, 100, 90), (33, 179), {}),
    "plane of 104 × 96": ((3, 3, 104, 96), (207, 191), {}),
    "plane of 72 × 200": ((2, 3, 72, 200), (143, 399), {}),
    "torus of 20 × 24": ((2, 3, 20, 24), (7, 48), {"boundary": "periodic"}),
    "volume of 9 × 20 × 30": ((2, 2, 9, 20, 30), (17, 39, 59), {}),
}
#: results whose errors are measured
RESULTS = ("output", "gradient of x", "gradient of the kernel")
#: more than 2³¹ elements, by bands, by one tile and by blocks
LARGE = ((30_200, 140, 512), (16_400, 128, 1024), (1000, 140, 16_384))
#: elements whose exact gradient is computed at a time, 128 MiB in float64
SLICE = 1 << 24
#: name: dtype, torch's setting, largest relative error
PRECISIONS = {
    "bf16": (torch.bfloat16, "high", 2e-2),
    "fp16": (torch.float16, "high", 4e-3),
    "tf32": (torch.float32, "high", 4e-3),
    "fp32": (torch.float32, "highest", 1e-5),
}


def errors(layout: str, precision: str, device: torch.device, bare: bool = False) -> list[float]:
    """Return the relative errors of the output and of both gradients; with ``bare``, the share of them that is NaN."""
    shape, points, how = LAYOUTS[layout]
    dtype, setting, _ = PRECISIONS[precision]
    torch.set_float32_matmul_precision(setting)
    x = torch.randn(shape, device=device).to(dtype).requires_grad_()
    kernel = torch.randn(shape[1], 1, *points, device=device).to(dtype).requires_grad_()
    grad = torch.randn(shape, device=device).to(dtype)
    if not bare:
        # The next memory of the caching allocator is filled with NaN.
        poison = [torch.full((1 << 24,), float("nan"), device=device) for _ in range(4)]
        del poison
    y = conv(x, kernel, **how, groups=shape[1], method="triton")
    got = y, *torch.autograd.grad(y, (x, kernel), grad)
    if bare:
        return [t.isnan().float().mean().item() for t in got]
    exact_x, exact_kernel = (t.detach().double().requires_grad_() for t in (x, kernel))
    exact = conv(exact_x, exact_kernel, **how, groups=shape[1], method="fft")
    expected = exact, *torch.autograd.grad(exact, (exact_x, exact_kernel), grad.double())
    return [((a - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True)]


def errors_of_the_last(shape: tuple[int, ...], device: torch.device) -> list[float]:
    """Return the relative errors of a large batch in bfloat16: the last signal's output and gradient, the kernel's."""
    channels, length = shape[1:]
    x, grad = (torch.empty(shape, device=device, dtype=torch.bfloat16).normal_() for _ in range(2))
    kernel = (torch.randn(channels, 1, length, device=device) / length**0.5).bfloat16().requires_grad_()
    how = {"causal": True, "groups": channels}
    x.requires_grad_()
    y = conv(x, kernel, **how, method="triton")
    grad_x, grad_kernel = torch.autograd.grad(y, (x, kernel), grad)
    got = y[-1:].detach().clone(), grad_x[-1:].clone(), grad_kernel
    del y, grad_x
    last = x.detach()[-1:].double().requires_grad_()
    exact = conv(last, kernel.detach().double(), **how, method="fft")
    expected = (
        exact,
        *torch.autograd.grad(exact, last, grad[-1:].double()),
        exact_gradient(x.detach(), kernel, grad, how),
    )
    return [((a - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True)]


def exact_gradient(x: torch.Tensor, kernel: torch.Tensor, grad: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    """Return the kernel's gradient in float64, summed over slices of the batch to save memory."""
    kernel = kernel.detach().double().requires_grad_()
    total = torch.zeros_like(kernel)
    signals = max(1, SLICE // x[0].numel())
    for some, weights in zip(x.split(signals), grad.split(signals), strict=True):
        y = conv(some.double(), kernel, **how, method="fft")
        total += torch.autograd.grad(y, kernel, weights.double())[0]
    return total


def run(device: torch.device, options: argparse.Namespace) -> list[str]:
    """Print the requested errors, and save them after every row; return those that are too large."""
    first, count = (int(n) for n in options.share.split("/"))
    report: dict[str, Any] = {"machine": machine(device, 0), "rows": []}
    bad = []

    def note(layout: str, precision: str, shape: tuple[int, ...], points: tuple[int, ...], found: list[float]) -> None:
        what = "parts that are no numbers" if options.bare else "errors"
        row = {"layout": layout, "precision": precision, "shape": shape, "points": points}
        report["rows"].append(row | {what: dict(zip(RESULTS, found, strict=True))})
        print(f"{layout}, {precision}:", " ".join(f"{e:.1e}" for e in found), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        if not max(found) <= PRECISIONS[precision][2]:
            bad.append(f"{layout} {precision}")

    print("errors of", ", ".join(RESULTS))
    if options.large:
        for shape in LARGE:
            note(f"last of {shape}", "bf16", shape, shape[2:], errors_of_the_last(shape, device))
        return bad
    for layout in list(LAYOUTS)[first::count]:
        for precision in options.precisions:
            try:
                found = errors(layout, precision, device, options.bare)
            except ValueError as error:  # no tile layout in this precision
                print(f"{layout}, {precision}:", error, flush=True)
                continue
            note(layout, precision, *LAYOUTS[layout][:2], found)
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", action="store_true", help="compare with nothing, for memory checkers")
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--large", action="store_true", help="only large batches")
    parser.add_argument("--share", metavar="I/N", default="0/1", help="every N-th layout, from the I-th on")
    parser.add_argument("--json", metavar="PATH", type=Path, help="where to write the errors")
    options = parser.parse_args()
    torch.manual_seed(0)
    selfcheck.CHECKS = False  # show errors instead of using another method
    bad = run(torch.device("cuda" if torch.cuda.is_available() else "cpu"), options)
    if bad:
        sys.exit(f"too far off: {', '.join(bad)}")


if __name__ == "__main__":
    main()

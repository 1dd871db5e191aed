"""Relative errors of the convolution on tensor cores on this GPU, against float64, for every layout and precision.

    python benchmarks/long_conv_errors.py
    for i in $(seq 0 10); do python benchmarks/long_conv_errors.py --share $i/11 & done; wait   # compile in parallel
    python benchmarks/long_conv_errors.py --large          # the last of more than 2³¹ elements
    compute-sanitizer --tool memcheck --kernel-name kns=_kernel python benchmarks/long_conv_errors.py --bare

Outputs and gradients are poisoned with NaN before every call. Exits with an error if one is further off than its
precision allows.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

from kernelfield.ops import conv
from kernelfield.ops.tensorcore import trust

#: signal, kernel points, other arguments; none of the sides fills a tile
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "band of 100": ((50, 2, 100), (100,), {"causal": True}),
    "band of 300": ((50, 2, 300), (599,), {}),
    "line of 200": ((3, 5, 200), (200,), {"causal": True}),
    "line of 784": ((3, 5, 784), (1567,), {}),
    "line of 2,000": ((2, 3, 2000), (700,), {"causal": True}),
    "line of 4,000": ((2, 3, 4000), (4000,), {"causal": True}),
    "line of 16,000": ((2, 2, 16000), (16000,), {"causal": True}),
    "circle of 1,000": ((2, 3, 1000), (2000,), {"boundary": "periodic"}),
    "plane of 28 × 30": ((3, 5, 28, 30), (55, 59), {}),
    "plane of 60 × 50": ((2, 3, 60, 50), (119, 99), {}),
    "plane of 100 × 90": ((2, 2, 100, 90), (33, 179), {}),
    "torus of 20 × 24": ((2, 3, 20, 24), (7, 48), {"boundary": "periodic"}),
    "volume of 9 × 20 × 30": ((2, 2, 9, 20, 30), (17, 39, 59), {}),
}
#: more than 2³¹ elements, by bands, by one tile and by blocks
LARGE = ((30_200, 140, 512), (16_400, 128, 1024), (1000, 140, 16_384))
#: name: dtype, torch's setting, largest relative error
PRECISIONS = {
    "bf16": (torch.bfloat16, "high", 2e-2),
    "fp16": (torch.float16, "high", 4e-3),
    "tf32": (torch.float32, "high", 4e-3),
    "fp32": (torch.float32, "highest", 1e-5),
}


def errors(layout: str, precision: str, device: torch.device, bare: bool = False) -> list[float]:
    """Return the relative errors of the output and of both gradients; ``bare``: which part of them are no numbers."""
    shape, points, how = LAYOUTS[layout]
    dtype, setting, _ = PRECISIONS[precision]
    torch.set_float32_matmul_precision(setting)
    x = torch.randn(shape, device=device).to(dtype).requires_grad_()
    kernel = torch.randn(shape[1], 1, *points, device=device).to(dtype).requires_grad_()
    grad = torch.randn(shape, device=device).to(dtype)
    if not bare:
        # What the caching allocator hands out next was filled with NaN.
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
    """Return the relative errors of output and input gradient of the last signal of a large batch in bfloat16."""
    channels, length = shape[1:]
    x, grad = (torch.empty(shape, device=device, dtype=torch.bfloat16).normal_() for _ in range(2))
    kernel = torch.randn(channels, 1, length, device=device).bfloat16() / length**0.5
    how = {"causal": True, "groups": channels}
    x.requires_grad_()
    y = conv(x, kernel, **how, method="triton")
    got = y[-1:], torch.autograd.grad(y, x, grad)[0][-1:]
    last = x.detach()[-1:].double().requires_grad_()
    exact = conv(last, kernel.double(), **how, method="fft")
    expected = exact, *torch.autograd.grad(exact, last, grad[-1:].double())
    return [((a - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", action="store_true", help="compare with nothing, for memory checkers")
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--large", action="store_true", help="the last signals of large batches alone")
    parser.add_argument("--share", metavar="I/N", default="0/1", help="every N-th layout, from the I-th on")
    options = parser.parse_args()
    torch.manual_seed(0)
    trust.CHECKS = False  # errors are to be seen, not replaced
    first, count = (int(n) for n in options.share.split("/"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.large:
        for shape in LARGE:
            print(shape, " ".join(f"{e:.1e}" for e in errors_of_the_last(shape, device)), flush=True)
        return
    bad = []
    print("errors of output, gradients of x and kernel")
    for layout in list(LAYOUTS)[first::count]:
        for precision in options.precisions:
            try:
                found = errors(layout, precision, device, options.bare)
            except ValueError as error:  # no tiles for it in this precision
                print(f"{layout}, {precision}:", error, flush=True)
                continue
            print(f"{layout}, {precision}:", " ".join(f"{e:.1e}" for e in found), flush=True)
            if not max(found) <= PRECISIONS[precision][2]:
                bad.append(f"{layout} {precision}")
    if bad:
        sys.exit(f"too far off: {', '.join(bad)}")


if __name__ == "__main__":
    main()

"""Times of variants of the tensor-core convolution, in total and kernel by kernel.

    python benchmarks/long_conv_variants.py --json benchmarks/results/long-conv-variants-h200.json
    python benchmarks/long_conv_variants.py --rows 256 1024 --profile
    python benchmarks/long_conv_variants.py --rows 4096 --float32 --change '{"hold_backward": true}'
    python benchmarks/long_conv_variants.py --from-json benchmarks/results/long-conv-variants-h200.json

Forward and backward pass are captured as CUDA graphs and timed separately, without autograd; errors are those of the
first two signals against our FFT in float32. The chosen variants are in ``ops/conv/triton/tuning.py`` and
``toeplitz_launch.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _convolutions import Case
from _measure import machine
from _tables import table
from continuous import graphed

from kernelfield.ops import conv
from kernelfield.ops.conv.triton import launch, plan
from kernelfield.ops.conv.triton.toeplitz_launch import ToeplitzTile, toeplitz_conv, toeplitz_grads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

ROWS = {
    "256": Case(64, 140, (256,), (256,), causal=True),
    "512": Case(64, 140, (512,), (512,), causal=True),
    "1024": Case(64, 140, (1024,), (1024,), causal=True),
    "4096": Case(64, 140, (4096,), (4096,), causal=True),
    "16384": Case(32, 140, (16384,), (16384,), causal=True),
    "65536": Case(8, 140, (65536,), (65536,), causal=True),
    "1M": Case(1, 140, (1 << 20,), (1 << 20,), causal=True),
    "32²": Case(64, 140, (32, 32), (63, 63)),
    "64²": Case(64, 140, (64, 64), (127, 127)),
    "128²": Case(16, 140, (128, 128), (255, 255)),
    "256²": Case(4, 140, (256, 256), (511, 511)),
    "32³": Case(8, 32, (32,) * 3, (63,) * 3),
}
TILES = [
    ToeplitzTile(outputs=64),
    ToeplitzTile(),
    ToeplitzTile(outputs=64, copies=True, stages=3),
    ToeplitzTile(copies=True, stages=3),
    ToeplitzTile(window=256, copies=True, warps=8, stages=3),
    ToeplitzTile(inputs=128, copies=True),
    ToeplitzTile(outputs=256, copies=True, warps=8, stages=3),
]
#: by row, changes of what tuning.py chooses; "upright", "slim" and "sides" are the plan's
CHANGES: dict[str, list[dict[str, Any]]] = {
    "1024": [{"packed": False}, {"split_grads": True}, {"stack": 4, "warps": 8, "resident": 1}],
    "4096": [{"split_grads": True}, {"hold_backward": True}, {"sides": (64, 64), "warps": 4, "split_grads": True}],
    "16384": [
        {"packed": False},
        {"split_grads": True},
        {"fused_batch_backward": 64},
        {"columns": 64},
        {"by_library": True},
    ],
    "65536": [{"packed": False}, {"fused_batch_backward": 0}, {"columns": 64}, {"by_library": True}],
    "1M": [{"by_library": False}, {"fused_batch": 0, "fused_batch_backward": 0}, {"split_grads": False}],
    "32²": [{"packed": False}, {"split_grads": False}],
    "64²": [{"split_columns": 1}, {"split_columns": 4}, {"hold": True}],
    "128²": [{"slim": False}, {"by_library": False}, {"packed": True, "packed_backward": True}, {"stack": 1}],
    "256²": [
        {"slim": False},
        {"by_library": False},
        {"packed": True, "packed_backward": True},
        {"warps": 1, "stack": 1},
    ],
    "32³": [{"split_grads": False}, {"hold": False}],
}


@contextlib.contextmanager
def changed(
    upright: bool | None = None, slim: bool | None = None, sides: tuple[int, int] | None = None, **fields: Any
) -> Iterator[None]:
    """Change the choices of every launch."""
    tuning, usual_sides = launch.tuning, plan._sides  # noqa: SLF001
    properties = {"upright": upright, "slim": slim}
    usual = {name: getattr(plan.Plan, name) for name in properties}
    caches = plan.make_plan, launch.make_call, launch.inner_tables

    def other_sides(length: int) -> Iterator[tuple[int, int]]:
        if sides is not None and length == sides[0] * sides[1]:
            yield sides
        yield from usual_sides(length)

    for name, value in properties.items():
        if value is not None:
            setattr(plan.Plan, name, property(lambda _, value=value: value))  # type: ignore[misc]
    plan._sides = other_sides  # noqa: SLF001
    launch.tuning = lambda *how: replace(tuning(*how), **fields)
    for cache in caches:
        cache.cache_clear()
    try:
        yield
    finally:
        launch.tuning, plan._sides = tuning, usual_sides  # noqa: SLF001
        for name, value in usual.items():
            setattr(plan.Plan, name, value)
        for cache in caches:
            cache.cache_clear()


class Problem:
    """The tensors of a row, and the expected results of the first two signals."""

    def __init__(self, case: Case, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.case = case
        self.x, self.grad = (torch.randn(case.shape, device=device).to(dtype) for _ in range(2))
        self.kernel = (torch.randn(case.kernel_shape, device=device) / case.work.side**0.5).to(dtype)
        x = self.x[:2].float().requires_grad_()
        y = conv(x, self.kernel.float(), causal=case.causal, groups=case.groups, method="fft")
        self.exact = y.detach(), *torch.autograd.grad(y, x, self.grad[:2].float())

    def calls(self, tile: ToeplitzTile | None) -> tuple[Callable[[], Tensor], Callable[[], tuple[Tensor, Tensor]]]:
        """Return forward and backward, by a tile or by transforms."""
        x, kernel, grad, causal = self.x, self.kernel, self.grad, self.case.causal
        if tile is not None:
            return (
                lambda: toeplitz_conv(x, kernel, causal, tile),
                lambda: toeplitz_grads(grad, x, kernel, (True, True), causal, tile),
            )
        how = causal, [False] * (x.dim() - 2), x.shape[1]
        return (
            lambda: launch.spectral_conv(x, kernel, *how),
            lambda: launch.spectral_grads(grad, x, kernel, (True, True), *how),
        )


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of replays of a captured call."""
    replay = graphed(call)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(15):
        start.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[7]


def measure(problem: Problem, tile: ToeplitzTile | None) -> dict[str, Any]:
    """Return errors and times of one variant."""
    forward, backward = problem.calls(tile)
    got = forward()[:2], backward()[0][:2]
    errors = [((a.float() - b).norm() / b.norm()).item() for a, b in zip(got, problem.exact, strict=True)]
    return {"err": errors, "fwd": milliseconds(forward), "bwd": milliseconds(backward)}


def profile(problem: Problem) -> dict[str, dict[str, list[float]]]:
    """Return, for forward and backward, the number of launches and the total time of every kernel."""
    result = {}
    for name, call in zip(("fwd", "bwd"), problem.calls(None), strict=True):
        call()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as events:
            call()
            torch.cuda.synchronize()
        known = [e for e in events.key_averages() if e.self_device_time_total > 0]
        result[name] = {e.key[:60]: [e.count, round(e.self_device_time_total / 1e3, 4)] for e in known}
    return result


def run(options: argparse.Namespace) -> dict[str, Any]:
    device, dtype = torch.device("cuda"), torch.float32 if options.float32 else torch.bfloat16
    torch.set_float32_matmul_precision("high")
    report: dict[str, Any] = {"machine": machine(device, 0), "variants": [], "profile": {}}
    for row in options.rows or ROWS:
        problem = Problem(ROWS[row], device, dtype)
        tiles = TILES if not options.float32 and row in ("256", "512", "1024") else []
        changes = CHANGES.get(row, []) if options.change is None else options.change
        variants = [("transform", {}, None), *((f"transform {c}", c, None) for c in changes)]
        for name, change, tile in [*variants, *((str(tile), {}, tile) for tile in tiles)]:
            with changed(**change):
                report["variants"].append({"row": row, "name": name, **measure(problem, tile)})
            print(row, name, report["variants"][-1], flush=True)
        if options.profile:
            report["profile"] |= {f"{row} {name}": kernels for name, kernels in profile(problem).items()}
        del problem
        torch.cuda.empty_cache()
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=ROWS, help="these alone")
    parser.add_argument("--float32", action="store_true", help="in float32 rather than bfloat16")
    parser.add_argument("--change", nargs="*", type=json.loads, metavar="JSON", help="these rather than the usual ones")
    parser.add_argument("--profile", action="store_true", help="also the times of single kernels")
    parser.add_argument("--json", type=Path, help="where to write the measurements")
    parser.add_argument("--from-json", type=Path, help="show saved measurements instead of making new ones")
    options = parser.parse_args()
    report = json.loads(options.from_json.read_text()) if options.from_json else run(options)
    body = [
        [v["row"], v["name"], *(f"{v[k]:.4f}" for k in ("fwd", "bwd")), f"{v['fwd'] + v['bwd']:.4f}"]
        for v in report["variants"]
        if "fwd" in v
    ]
    print(table(["row", "variant", "forward, ms", "backward, ms", "both, ms"], body))
    for name, kernels in report["profile"].items():
        print(name, kernels)


if __name__ == "__main__":
    main()

"""What does it cost to read a signal sample by sample: exactly, distilled, from a cache, or by recomputation?

    python benchmarks/streaming.py --samples 4000 --channels 32 --blocks 2 --out benchmarks/results/streaming-cpu.json
    python benchmarks/streaming.py --device cuda --out benchmarks/results/streaming-h200.json

A causal CCNN with global kernels, as long as the signal, predicts after every sample:

- ``exact``: ``kf.stream`` of the network, convolutions in blocks of growing size,
- ``distilled``: ``kf.stream`` of ``kf.distil`` of it,
- ``compiled``: that too, with ``torch.compile`` of its step,
- ``cache``: the samples so far are kept for each layer, and each new output is one sum over all of them,
- ``recompute``: a forward pass over all samples so far.

The first three read all samples. The cost of the others per sample grows with the number of samples: it is measured at
some of them, and the total is the area under the line through these. ``operations`` are counted, of the convolutions
alone: additions and multiplications, 2.5 n log₂ n for a real FFT of n points. Times are also given for one convolution
without the rest of the network, whose time per sample is mostly that of calling its many small layers.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import number, ratio, save, table
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.streaming import OnlineConv, RecurrentConv, StreamStep
from kernelfield.streaming.layers import OnlineLayer, RecurrentLayer
from kernelfield.streaming.online_conv import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ("exact", "distilled", "compiled", "cache", "recompute")


class CacheLayer(nn.Module):
    """A convolution that keeps all samples and sums over them for each output."""

    def __init__(self, kernel: Tensor, samples: int, bias: Tensor | None = None) -> None:
        super().__init__()
        self.bias, self.time = bias, 0
        self.reversed = kernel.squeeze(1).flip(-1).contiguous().unsqueeze(-1)  # (channels, points, 1)
        self.samples = kernel.new_zeros(kernel.shape[0], 1, samples)

    def forward(self, x: Tensor, *, add_bias: bool = True, **_: Any) -> Tensor:
        self.samples[:, 0, self.time] = x[0, :, 0]
        self.time += 1
        y = torch.bmm(self.samples[..., : self.time], self.reversed[:, -self.time :]).view(1, -1, 1)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1)


def clock(device: torch.device) -> float:
    """Return CPU seconds of this process on a CPU, which a busy machine disturbs less, else time on the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def push_all(push: Callable[[Tensor], object], x: Tensor) -> float:
    """Return the seconds to read all samples one by one."""
    pieces = x.split(1, dim=-1)
    begin = clock(x.device)
    for piece in pieces:
        push(piece)
    return clock(x.device) - begin


def total(cost: Callable[[int], float], samples: int, points: int = 9) -> float:
    """Return the sum of a cost per sample that grows with the samples so far, by trapezoids."""
    at = [max(1, round(samples * i / (points - 1))) for i in range(points)]
    costs = [cost(t) for t in at]
    return sum((b - a) * (p + q) / 2 for a, b, p, q in zip(at, at[1:], costs, costs[1:], strict=False)) + costs[0]


def cached_cost(layers: list[CacheLayer], push: Callable[[Tensor], object], x: Tensor) -> Callable[[int], float]:
    def cost(t: int) -> float:
        repeats = min(20, t)
        for layer in layers:
            layer.time = t - repeats
        return push_all(push, x[..., :repeats]) / repeats

    return cost


def network_seconds(net: nn.Module, small: nn.Module, x: Tensor) -> tuple[dict[str, float], dict[str, int]]:
    """Return seconds to read all samples with the whole network, and the bytes of state after them."""
    samples, seconds, memory = x.shape[-1], {}, {}
    for name, network in (("exact", net), ("distilled", small)):
        online = kf.stream(network)
        push_all(online.push, x[..., :BLOCK])
        online.reset()
        seconds[name] = push_all(online.push, x)
        memory[name] = online.memory
    seconds["compiled"], memory["compiled"] = compiled_seconds(small, x), memory["distilled"]
    online = kf.stream(net)
    caches = []
    for name, layer in list(online.network.named_modules()):
        if isinstance(layer, OnlineLayer):
            caches.append(CacheLayer(layer.conv.kernel, samples, layer.bias))
            online.network.set_submodule(name, caches[-1])
    seconds["cache"] = total(cached_cost(caches, online.network, x), samples)
    memory["cache"] = sum(layer.samples.numel() * layer.samples.element_size() for layer in caches)

    def recompute(t: int) -> float:
        begin = clock(x.device)
        net(x[..., :t])
        return clock(x.device) - begin

    recompute(samples)
    seconds["recompute"] = total(recompute, samples, points=5)
    memory["recompute"] = x.numel() * x.element_size()
    return seconds, memory


def compiled_seconds(small: nn.Module, x: Tensor) -> float:
    """Return seconds to read all samples with the compiled step of a distilled network."""
    one = StreamStep(small).to(x.device)
    step = torch.compile(one)
    states = [state.to(x.device) for state in one.states.values()]

    def push(sample: Tensor) -> None:
        _, *states[:] = step(sample, *states)

    push_all(push, x[..., :3])
    return push_all(push, x)


def layer_seconds(conv: Any, recurrent: RecurrentConv, x: Tensor) -> dict[str, float]:
    """Return seconds to read all samples with one convolution."""
    kernel = conv.kernel()
    wide = x.expand(-1, kernel.shape[0], -1).contiguous()
    online = OnlineConv(kernel, groups=kernel.shape[0])
    small = RecurrentLayer(recurrent, step=1.0, batch=1)
    for layer in (online, small):
        push_all(layer, wide[..., :BLOCK])
    online.reset()
    online.time = 0
    cache = CacheLayer(kernel, x.shape[-1])
    return {
        "exact": push_all(online, wide),
        "distilled": push_all(small, wide),
        "cache": total(cached_cost([cache], cache, wide), x.shape[-1]),
        "recompute": total(lambda t: _timed(conv, wide[..., :t]), x.shape[-1], points=5),
    }


def _timed(call: Callable[[Tensor], object], x: Tensor) -> float:
    call(x)
    begin = clock(x.device)
    call(x)
    return clock(x.device) - begin


def operations(samples: int, order: int) -> dict[str, float]:
    """Return how many additions and multiplications one kernel takes for all samples."""

    def fft(n: float) -> float:
        return 2.5 * n * math.log2(n)

    sizes = OnlineConv(torch.ones(1, 1, samples)).sizes[1:]
    exact = samples * (BLOCK + 1) + samples / BLOCK * (2 * fft(4 * BLOCK) + 14 * BLOCK)
    exact += sum(samples / size * (2 * fft(2 * size) + 8 * size) for size in sizes)
    return {
        "exact": exact,
        "distilled": samples * order * 11.0,
        "cache": samples * (samples + 1.0),
        "recompute": sum(3 * fft(2 * max(2, t)) + 6 * t for t in range(1, samples + 1)),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16_000)
    parser.add_argument("--channels", type=int, default=140)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--order", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    arguments = {"size": options.samples, "channels": options.channels, "blocks": options.blocks, "sigma": None}
    net = kf.CCNN(1, 10, field=kf.fields.SIREN, **arguments).eval().to(device)
    small = kf.distil(net, order=options.order, refine=0).network
    x = torch.randn(1, 1, options.samples, device=device)
    seconds, memory = network_seconds(net, small, x)
    alone = layer_seconds(net.blocks[0].conv.depthwise, small.blocks[0].conv.depthwise, x)
    counted = operations(options.samples, options.order)
    rows = [
        [
            name,
            number(seconds[name]),
            ratio(seconds[name] / seconds["exact"]),
            number(alone.get(name)),
            ratio(alone[name] / alone["exact"] if name in alone else None),
            ratio(counted.get(name, counted["distilled"]) / counted["exact"]),
            number(memory[name] / 2**10),
        ]
        for name in METHODS
    ]
    header = ["method", "network s", "/ exact", "one convolution s", "/ exact", "operations / exact", "state KiB"]
    print(table(header, rows))
    if options.out:
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        found = {"network_seconds": seconds, "conv_seconds": alone, "operations": counted, "state_bytes": memory}
        save({"machine": machine(device, options.seed), "settings": settings, **found}, options.out)


if __name__ == "__main__":
    main()

"""What does it cost to read a signal sample by sample: exactly, distilled, from a cache, or by recomputation?

    python benchmarks/streaming.py --out benchmarks/results/streaming-cpu.json
    python benchmarks/streaming.py --device cuda --out benchmarks/results/streaming-h200.json

CCNN_4,140 with global causal kernels, as long as the signal of 16,000 samples, predicts after every sample:

- ``exact``: ``kf.stream`` of the network, convolutions in blocks of growing size; on a GPU as CUDA graphs,
- ``distilled``: ``kf.stream`` of the network with 16 oscillations in place of each kernel. They are random: the time
  does not depend on their values; on a GPU as a CUDA graph,
- ``compiled``: the step of the distilled network as one function: by AOTInductor on a CPU; by torch.compile, as a CUDA
  graph, on a GPU,
- ``cache``: the samples so far are kept for each layer, and each new output is one sum over all of them,
- ``recompute``: a forward pass over all samples so far,
- on a GPU also ``exact_eager``, without graphs, and ``cache_replayed``, a cache of the full length as a CUDA graph.

On a GPU the streams and the graphs read all samples, one by one. Other totals are extrapolated. On a CPU the streams
are timed over ``--measured`` samples and the total is in proportion; for the exact stream these samples end with the
largest of its blocks, so that no FFT is left out. The cost per sample of the cache and of forward passes grows with the
number of samples: it is measured at 9 and 5 lengths, and the total is the area under the line through these.

``operations`` are counted, of the convolutions alone: additions and multiplications, 2.5 n log₂ n for a real FFT of n
points. Times are also given for one convolution without the rest of the network, whose time per sample is mostly that
of calling its many small layers.

``state_bytes`` is what each method keeps between samples, after several numbers of them, without weights and kernels.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import number, ratio, save, table
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.cuda_graphs.recording import capture, capture_stream
from kernelfield.streaming import OnlineConv, RecurrentConv, StreamStep
from kernelfield.streaming.causality import convolutions
from kernelfield.streaming.clock import Clock
from kernelfield.streaming.layers import OnlineLayer, RecurrentLayer
from kernelfield.streaming.online_conv import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ("exact", "exact_eager", "distilled", "compiled", "cache", "cache_replayed", "recompute")
#: methods that do and keep the same as others, but are called in another way
_SAME_WORK = {"exact_eager": "exact", "compiled": "distilled", "cache_replayed": "cache"}


class CacheLayer(nn.Module):
    """A convolution that keeps all samples and sums over them for each output."""

    def __init__(self, kernel: Tensor, samples: int, bias: Tensor | None = None) -> None:
        super().__init__()
        self.kernel, self.bias, self.time = kernel, bias, 0
        self.reversed = kernel.squeeze(1).flip(-1).contiguous().unsqueeze(-1)  # (channels, points, 1)
        self.samples = kernel.new_zeros(kernel.shape[0], 1, samples)

    def forward(self, x: Tensor, *, add_bias: bool = True, **_: Any) -> Tensor:
        self.samples[:, 0, self.time] = x[0, :, 0]
        self.time += 1
        y = torch.bmm(self.samples[..., : self.time], self.reversed[:, -self.time :]).view(1, -1, 1)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1)


class ReplayedCacheLayer(CacheLayer):
    """The same with the position in a tensor: a sum over all places, with zeros for samples to come."""

    def __init__(self, kernel: Tensor, samples: int, bias: Tensor | None, clock: Clock) -> None:
        super().__init__(kernel, samples, bias)
        self.clock = clock
        kernel = nn.functional.pad(kernel.squeeze(1), (0, samples))[:, :samples].flip(-1)
        self.table = nn.functional.pad(kernel, (0, samples - 1)).T.contiguous()
        self.samples = kernel.new_zeros(samples, kernel.shape[0])

    def forward(self, x: Tensor, *, add_bias: bool = True, **_: Any) -> Tensor:
        length = len(self.samples)
        self.samples.index_copy_(0, self.clock.places(length), x[..., 0])
        y = (self.samples * self.table.index_select(0, self.clock.lags(length))).sum(0).view(1, -1, 1)
        return y if self.bias is None or not add_bias else y + self.bias.unsqueeze(-1)


def clock(device: torch.device) -> float:
    """Return CPU seconds on a CPU, which a busy machine disturbs less, and wall-clock time otherwise."""
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


class Clocked:
    """Totals for all samples, extrapolated from the time of some."""

    def __init__(self, x: Tensor, measured: int) -> None:
        self.x, self.measured, self.samples = x, min(measured, x.shape[-1]), x.shape[-1]

    def replayed(self, push: Callable[[Tensor], object]) -> float:
        """Return seconds for all samples on a GPU, after samples in which all graphs are captured."""
        push_all(push, self.x[..., :1000])
        return push_all(push, self.x)

    def stream(self, online: Any, push: Callable[[Tensor], object], largest: int) -> float:
        """Return seconds for all samples with an object that remembers; its last samples end at ``largest``."""
        end = max(self.measured, largest)
        warm = min(BLOCK, end - self.measured)
        begin = end - self.measured - warm
        if begin:
            online(self.x[..., :begin])
        push_all(push, self.x[..., begin : begin + warm])
        return push_all(push, self.x[..., begin + warm : end]) * self.samples / self.measured

    def step(self, push: Callable[[Tensor], object]) -> float:
        """Return seconds for all samples with a function whose cost does not depend on time."""
        push_all(push, self.x[..., :20])
        return push_all(push, self.x[..., : self.measured]) * self.samples / self.measured


def network_seconds(net: nn.Module, small: nn.Module, clocked: Clocked) -> dict[str, float]:
    """Return seconds to read all samples with the whole network."""
    x, gpu = clocked.x, clocked.x.is_cuda
    online, recurrent = kf.stream(net), kf.stream(small)
    layers = [layer for layer in online.network.modules() if isinstance(layer, OnlineLayer)]
    largest, seconds = layers[-1].conv.sizes[-1], {}
    if gpu:
        seconds["exact_eager"] = clocked.stream(online.network, online.network, largest)
        online = kf.stream(net)
        push_all(online.push, x)  # the largest block is captured when it is completed for the second time
        seconds["exact"] = clocked.replayed(online.push)
        seconds["distilled"] = clocked.replayed(recurrent.push)
    else:
        seconds["exact"] = clocked.stream(online.push, online.push, largest)
        seconds["distilled"] = clocked.step(recurrent.push)
    seconds["compiled"] = (clocked.replayed if gpu else clocked.step)(compiled(small, x[..., :1]))
    caches = []
    for name, layer in list(online.network.named_modules()):
        if isinstance(layer, OnlineLayer):
            caches.append(CacheLayer(layer.conv.kernel, clocked.samples, layer.bias))
            online.network.set_submodule(name, caches[-1])
    seconds["cache"] = total(cached_cost(caches, online.network, x), clocked.samples)
    if gpu:
        ticks = Clock(x.device)
        for name, layer in list(online.network.named_modules()):
            if isinstance(layer, CacheLayer):
                made = ReplayedCacheLayer(layer.kernel, clocked.samples, layer.bias, ticks)
                online.network.set_submodule(name, made)
        seconds["cache_replayed"] = clocked.replayed(replayed(ticking(online.network, ticks), x[..., :1]))
    seconds["recompute"] = total(lambda t: _timed(net, x[..., :t]), clocked.samples, points=5)
    return seconds


def ticking(network: Callable[[Tensor], Tensor], ticks: Clock) -> Callable[[Tensor], Tensor]:
    """Return a step of a network whose layers read a clock."""

    def step(sample: Tensor) -> Tensor:
        y = network(sample)
        ticks.advance()
        return y

    return step


def state_bytes(net: nn.Module, small: nn.Module, samples: int) -> dict[str, dict[str, int]]:
    """Return the bytes that each method keeps after some numbers of samples."""
    exact, distilled = kf.stream(net), kf.stream(small)
    found: dict[str, dict[str, int]] = {}
    convolutions = [layer for layer in exact.network.modules() if isinstance(layer, OnlineLayer)]
    width = sum(layer.conv.channels for layer in convolutions)
    x = torch.randn(1, 1, samples, device=next(net.parameters()).device)
    before = 0
    for n in (samples // 16, samples // 4, samples):
        exact.push(x[..., before:n])
        distilled.push(x[..., before:n])
        before = n
        kept = {"exact": exact.memory, "distilled": distilled.memory}
        found[str(n)] = {**kept, "cache": 4 * n * width, "recompute": 4 * n}
    return found


def compiled(small: nn.Module, sample: Tensor) -> Callable[[Tensor], object]:
    """Return the step of a distilled network as one function that keeps its states."""
    one = StreamStep(small).to(sample.device)
    states = [state.to(sample.device) for state in one.states.values()]
    if sample.device.type != "cuda":
        program = torch.export.export(one, (sample, *states), strict=False)
        with tempfile.TemporaryDirectory() as folder:
            path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/step.pt2")  # noqa: SLF001
            step = torch._inductor.aoti_load_package(path)  # noqa: SLF001

        def push(sample: Tensor) -> Tensor:
            y, *states[:] = step(sample, *states)
            return y

        return push
    program = torch.export.export(one, (sample, *states), strict=False).module()

    def advance(sample: Tensor, *states: Tensor) -> Tensor:
        y, *after = program(sample, *states)
        for state, new in zip(states, after, strict=True):
            state.copy_(new)
        return y  # type: ignore[no-any-return]

    fused = torch.compile(advance, fullgraph=True)
    return replayed(lambda held: fused(held, *states), sample)


def replayed(work: Callable[[Tensor], Tensor], sample: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a step on a GPU as a CUDA graph."""
    held, aside = sample.clone(), capture_stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work(held)
    graph, y = capture(lambda: work(held), pool=torch.cuda.graph_pool_handle(), stream=aside)

    def push(sample: Tensor) -> Tensor:
        held.copy_(sample)
        graph.replay()
        return y  # type: ignore[no-any-return]

    return push


def layer_seconds(conv: Any, recurrent: RecurrentConv, clocked: Clocked) -> dict[str, float]:
    """Return seconds to read all samples with one convolution."""
    kernel = conv.kernel()
    wide = Clocked(clocked.x.expand(-1, kernel.shape[0], -1).contiguous(), clocked.measured)
    cache = CacheLayer(kernel, wide.samples)
    sample, seconds = wide.x[..., :1], {}
    if wide.x.is_cuda:
        ticks = Clock(wide.x.device)
        static = ticking(ReplayedCacheLayer(kernel, wide.samples, None, ticks), ticks)
        alone = kf.stream(conv)
        push_all(alone.push, wide.x)
        seconds["exact"] = wide.replayed(alone.push)
        seconds["distilled"] = wide.replayed(kf.stream(recurrent).push)
        seconds["compiled"] = wide.replayed(compiled(recurrent, sample))
        seconds["cache_replayed"] = wide.replayed(replayed(static, sample))
    else:
        seconds["distilled"] = wide.step(RecurrentLayer(recurrent, step=1.0, batch=1))
        seconds["compiled"] = wide.step(compiled(recurrent, sample))
    online = OnlineConv(kernel, groups=kernel.shape[0])
    seconds["exact_eager" if wide.x.is_cuda else "exact"] = wide.stream(online, online, online.sizes[-1])
    seconds["cache"] = total(cached_cost([cache], cache, wide.x), wide.samples)
    seconds["recompute"] = total(lambda t: _timed(conv, wide.x[..., :t]), wide.samples, points=5)
    return seconds


def with_oscillations(net: nn.Module, order: int) -> nn.Module:
    """Return a copy of a network with random oscillations in place of each kernel, as ``kf.distil`` would fit them."""
    small = copy.deepcopy(net)
    for name, layer in convolutions(net).items():
        options: dict[str, Any] = {"order": order, "depthwise": layer.groups > 1, "bias": layer.bias is not None}
        made = RecurrentConv(layer.in_channels, layer.out_channels, **options)
        small.set_submodule(name, made.to(layer.reach.device).eval())
    return small


def _timed(call: Callable[[Tensor], object], x: Tensor) -> float:
    if x.device.type == "cuda" or x.shape[-1] < BLOCK:  # plans and caches; a pass of seconds needs no warm-up
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
    parser.add_argument("--measured", type=int, default=2_048, help="samples that the streams read one by one")
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
    small = with_oscillations(net, options.order)
    clocked = Clocked(torch.randn(1, 1, options.samples, device=device), options.measured)
    seconds = network_seconds(net, small, clocked)
    alone = layer_seconds(net.blocks[0].conv.depthwise, small.blocks[0].conv.depthwise, clocked)
    counted = operations(options.samples, options.order)
    memory = state_bytes(net, small, options.samples)
    rows = [
        [
            name,
            number(seconds[name]),
            ratio(seconds[name] / seconds["exact"]),
            number(alone[name]),
            ratio(alone[name] / alone["exact"]),
            ratio(counted[_SAME_WORK.get(name, name)] / counted["exact"]),
            *(number(kept[_SAME_WORK.get(name, name)] / 2**10) for kept in memory.values()),
        ]
        for name in METHODS
        if name in seconds
    ]
    header = ["method", "network s", "/ exact", "one convolution s", "/ exact", "operations / exact"]
    print(table([*header, *(f"KiB after {n}" for n in memory)], rows))
    if options.out:
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        found = {"network_seconds": seconds, "conv_seconds": alone, "operations": counted, "state_bytes": memory}
        save({"machine": machine(device, options.seed), "settings": settings, **found}, options.out)


if __name__ == "__main__":
    main()

r"""Chapter 3's tables of one layer's time and memory: a CCNN layer beside S4 and LSSL, over lengths and widths.

    python benchmarks/state_spaces.py                     # on the GPU if there is one; else small shapes
    python benchmarks/state_spaces.py --quick             # tiny shapes, to see that it runs
    python benchmarks/state_spaces.py --json benchmarks/results/state-spaces-cpu.json \
        --markdown docs/benchmarks/training-steps.md

Each row times forward and backward of a mean of squares through one layer. Both state spaces are written out here in
plain torch, from their definitions:

- S4 with a diagonal state matrix (S4D): the kernel of channel h is the sum of N/2 complex exponentials,
  :math:`K_h(t) = 2\,\mathrm{Re} \sum_n C_{hn} \frac{e^{\Delta_h A_{hn}} - 1}{A_{hn}} e^{\Delta_h A_{hn} t}`.
- LSSL: the state matrix is dense, of the layer's own size, and the Krylov matrix :math:`C \bar A^t \bar B` is formed
  by repeated squaring: time and memory grow with N² per channel.

S4 forms all its exponentials, which its authors' fused kernel avoids: its time and memory here are upper bounds.

``--blocks`` adds chapter 3's other table: training steps of whole networks by length, with as many blocks of local
kernels as their receptive field needs to cover the input.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from _measure import machine, median_seconds, peak_bytes, settle_allocator
from _tables import describe, mebibytes, milliseconds, replace_section, save, table
from torch import Tensor, nn

from kernelfield import CCNN, SeparableConv
from kernelfield.fields import Table
from kernelfield.ops import conv


class S4(nn.Module):
    """A diagonal state space per channel, convolved by FFT, and a map of the channels."""

    def __init__(self, channels: int, states: int = 64) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(channels) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.log_decay = nn.Parameter(torch.full((channels, states // 2), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(states // 2).float().expand(channels, -1).clone())
        self.readout = nn.Parameter(torch.randn(channels, states // 2, 2) / math.sqrt(states))
        self.skip, self.mix = nn.Parameter(torch.randn(channels)), nn.Conv1d(channels, channels, 1)

    def kernel(self, length: int) -> Tensor:
        a = torch.complex(-self.log_decay.exp(), self.frequency)
        exponent = a * self.log_step.exp()[:, None]
        c = torch.view_as_complex(self.readout) * (exponent.exp() - 1) / a
        powers = torch.exp(exponent[..., None] * torch.arange(length, device=a.device))
        return 2 * torch.einsum("hn,hnl->hl", c, powers).real

    def forward(self, x: Tensor) -> Tensor:
        y = conv(x, self.kernel(x.shape[-1])[:, None], causal=True, groups=x.shape[1], method="fft")
        return self.mix(y + self.skip[:, None] * x)


class LSSL(nn.Module):
    """One dense state space of as many states as channels, its Krylov matrix formed by repeated squaring."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        i = torch.arange(channels)
        hippo = torch.where(i[:, None] > i, -torch.sqrt((2.0 * i[:, None] + 1) * (2 * i + 1)), torch.zeros(()))
        self.a = nn.Parameter(hippo - torch.diag(i + 1.0))
        self.b = nn.Parameter(torch.sqrt(2.0 * i + 1))
        self.c = nn.Parameter(torch.randn(channels, channels) / channels)
        self.log_step = nn.Parameter(torch.full((channels,), math.log(0.01)))
        self.mix = nn.Conv1d(channels, channels, 1)

    def kernel(self, length: int) -> Tensor:
        # Every channel has a step of its own, and with it a discrete state matrix of its own: N³ numbers per layer.
        step, eye = self.log_step.exp()[:, None, None], torch.eye(len(self.b), device=self.b.device)
        matrix = torch.linalg.solve(eye - step / 2 * self.a, eye + step / 2 * self.a)
        krylov = torch.linalg.solve(eye - step / 2 * self.a, step * self.b[:, None])
        power = matrix
        while krylov.shape[-1] < length:
            krylov = torch.cat([krylov, power @ krylov], dim=-1)
            power = power @ power
        return torch.einsum("hn,hnl->hl", self.c, krylov[..., :length])

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(conv(x, self.kernel(x.shape[-1])[:, None], causal=True, groups=x.shape[1], method="fft"))


def layer(name: str, channels: int, length: int) -> nn.Module:
    """Return one layer by its name."""
    if name == "LSSL":
        return LSSL(channels)
    if name == "S4":
        return S4(channels)
    return SeparableConv(channels, channels, size=length, causal=True, sigma=None)


def network(name: str, channels: int, blocks: int, length: int) -> nn.Module:
    """Return a network with continuous kernels, with tables as long as the input, or with local kernels."""
    options: dict[str, Any] = {"channels": channels, "blocks": blocks, "sigma": None}
    if name == "CCNN":
        return CCNN(1, 10, size=length, **options)
    return CCNN(1, 10, size=length if name == "global" else LOCAL, field=Table, **options)


#: points of local kernels
LOCAL = 33


def local_blocks(length: int) -> int:
    """Return how many blocks of local kernels cover the input, at most 20."""
    return min(20, math.ceil((length - 1) / (LOCAL - 1)) - 1)


def step_of(model: nn.Module, x: Tensor) -> Any:
    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        model(x).square().mean().backward()

    return step


def cost(model: nn.Module, x: Tensor, device: torch.device, budget: float) -> dict[str, float | None]:
    """Return seconds and bytes of a training step; None where the memory does not suffice."""
    try:
        step = step_of(model, x)
        seconds = median_seconds({"step": step}, device, budget=budget)["step"]
        return {"seconds": seconds, "bytes": peak_bytes(step, device)}
    except torch.OutOfMemoryError:
        return {"seconds": None, "bytes": None}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    lengths, widths = ((128, 1024, 4096, 16000), (256, 512, 1024)) if cuda else ((128, 1024, 4096), (32, 64))
    if options.quick:
        lengths, widths = (32,), (8,)
    settle_allocator()
    torch.manual_seed(0)
    report: dict[str, Any] = {"machine": machine(device, 0), "batch": 1, "layers": [], "networks": []}
    for length in lengths:
        for width in widths:
            for name in ("LSSL", "S4", "CCNN"):
                if name == "LSSL" and width**3 * 4 * 8 > options.memory * 2**30:
                    found: dict[str, float | None] = {"seconds": None, "bytes": None}
                else:
                    model = layer(name, width, length).to(device)
                    found = cost(model, torch.randn(1, width, length, device=device), device, options.budget)
                report["layers"].append({"layer": name, "length": length, "width": width, **found})
                print(report["layers"][-1], flush=True)
                save(report, options.json)
    for length in lengths if options.blocks else ():
        for name, blocks in (("local", local_blocks(length)), ("global", 4), ("CCNN", 4)):
            width = 8 if options.quick else 140 if cuda else 32
            model = network(name, width, blocks, length).to(device)
            found = cost(model, torch.randn(1, 1, length, device=device), device, options.budget)
            report["networks"].append({"network": name, "blocks": blocks, "length": length, "width": width, **found})
            print(report["networks"][-1], flush=True)
            save(report, options.json)
    return report


def tables(report: dict[str, Any]) -> str:
    text = f"{describe(report['machine'])}. Forward and backward of one layer, batch 1: milliseconds (MiB).\n\n"
    columns = list(dict.fromkeys((row["length"], row["width"]) for row in report["layers"]))
    cells = {(row["layer"], row["length"], row["width"]): row for row in report["layers"]}
    rows = [
        [name, *(_cell(cells[(name, *column)]) for column in columns)]
        for name in dict.fromkeys(row["layer"] for row in report["layers"])
    ]
    text += table(["layer", *(f"{length:,}, {width} ch" for length, width in columns)], rows)
    if report["networks"]:
        lengths = list(dict.fromkeys(row["length"] for row in report["networks"]))
        nets = {(row["network"], row["length"]): row for row in report["networks"]}
        rows = [
            [name, *(f"{_cell(nets[name, n])}, {nets[name, n]['blocks']} blocks" for n in lengths)]
            for name in dict.fromkeys(row["network"] for row in report["networks"])
        ]
        width = report["networks"][0]["width"]
        text += f"\n\nA training step of whole networks of {width} channels; local kernels have {LOCAL} points.\n\n"
        text += table(["kernels", *(f"{n:,}" for n in lengths)], rows)
    return text


def _cell(row: dict[str, Any]) -> str:
    return f"{milliseconds(row['seconds'])} ({mebibytes(row['bytes'])})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--blocks", action="store_true", help="whole networks too")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds to time each row")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB that an LSSL may take")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--from-json", type=Path, help="show saved numbers instead of measuring")
    parser.add_argument("--markdown", type=Path, help="put the tables into this file")
    options = parser.parse_args()
    report = json.loads(options.from_json.read_text()) if options.from_json else measured(options)
    text = tables(report)
    if options.markdown is not None:
        replace_section(options.markdown, "state spaces", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

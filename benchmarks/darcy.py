"""Darcy flow at 16², and at 32² without training there: a CCNN, its DNArch, and a Fourier neural operator.

    python benchmarks/darcy.py --data darcy_small.npz                 # on the GPU if there is one
    python benchmarks/darcy.py --quick                                # solved in code, a few steps, to see that it runs
    python benchmarks/darcy.py --data darcy_small.npz --channels 32 --epochs 15 --device cpu
    python benchmarks/darcy.py --from-json benchmarks/results/darcy-cpu.json \
        --markdown docs/benchmarks/architectures.md

All networks see the same batches, with the same optimiser, schedule and loss, the mean relative l² error. The operator
comes from the package neuraloperator, and is left out if that is not installed. Errors are those on the test set after
the last epoch; the test set is not used to choose anything.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _measure import machine
from _tables import describe, number, replace_section, table

from kernelfield import CCNN, DNArch
from kernelfield.data import load

if TYPE_CHECKING:
    from torch import Tensor, nn

    from kernelfield.data import Data, Split


def networks(channels: int, blocks: int, device: torch.device, seed: int) -> dict[str, nn.Module]:
    def base() -> CCNN:
        torch.manual_seed(seed)
        return CCNN(
            3, 1, dim=2, size=16, channels=channels, blocks=blocks, readout="dense", stem="linear", sigma=None,
            norm="batch-statistics",
        ).to(device)  # fmt: skip

    found: dict[str, nn.Module] = {
        f"CCNN_{blocks},{channels} (global kernels)": base(),
        f"DNArch_K(CCNN_{blocks},{channels})": DNArch(base(), learn=("kernel",)),
        f"DNArch_K,R,W,D(CCNN_{blocks},{channels})": DNArch(base(), resolution_temperature=50.0),
    }
    operator = fourier_operator(channels, seed)
    if operator is not None:
        found["FNO of neuraloperator"] = operator.to(device)
    return found


def fourier_operator(channels: int, seed: int) -> nn.Module | None:
    try:
        from neuralop.models import FNO  # noqa: PLC0415
    except ImportError as error:
        print(f"no Fourier neural operator: {error}")
        return None
    torch.manual_seed(seed)
    return FNO(
        n_modes=(8, 8), in_channels=3, out_channels=1, hidden_channels=min(32, channels), positional_embedding=None
    )


def relative(prediction: Tensor, target: Tensor) -> Tensor:
    errors = (prediction - target).flatten(1).norm(dim=1)
    return (errors / target.flatten(1).norm(dim=1)).mean()


def call(net: nn.Module, x: Tensor, step: float) -> Tensor:
    return net(x, step=step) if isinstance(net, (CCNN, DNArch)) else net(x)


@torch.no_grad()
def error(net: nn.Module, split: Split, device: torch.device) -> float:
    net.eval()
    total = 0.0
    for start in range(0, len(split), 50):
        batch = split.batch(slice(start, start + 50)).to(device)
        total += float(relative(call(net, batch.inputs, split.step), batch.target)) * len(batch)
    net.train()
    return total / len(split)


def train(net: nn.Module, data: Data, fine: Data, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    steps = options.epochs * (len(data.train) // options.batch)
    masks = [p for name, p in net.named_parameters() if name.endswith((".sigma", ".offset"))]
    others = [p for p in net.parameters() if all(p is not m for m in masks)]
    groups = [{"params": others, "weight_decay": 1e-4}, *([{"params": masks, "weight_decay": 0.0}] if masks else [])]
    optimizer = torch.optim.AdamW(groups, lr=options.lr)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / warmup) * (1 + math.cos(math.pi * min(1.0, s / steps))) / 2,
    )
    generator = torch.Generator().manual_seed(options.seed)
    whole = data.train.to(device)
    begin, done = time.perf_counter(), 0
    for _ in range(options.epochs):
        order = torch.randperm(len(whole), generator=generator).to(device)
        for start in range(0, len(whole) - options.batch + 1, options.batch):
            batch = whole.batch(order[start : start + options.batch], training=True)
            loss = relative(call(net, batch.inputs, 1.0), batch.target)
            if isinstance(net, DNArch) and (net.width is not None or net.depth is not None):
                loss = loss + options.weight * net.complexity_loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
    seconds = time.perf_counter() - begin
    row: dict[str, Any] = {"l2_16": error(net, data.test, device), "l2_32": error(net, fine.test, device)}
    row |= {"seconds": round(seconds, 1), "steps": done, "train_loss": float(loss.detach())}
    row["parameters"] = sum(p.numel() for p in net.parameters())
    if isinstance(net, DNArch):
        learned = net.architecture()
        row |= {"complexity": learned.complexity, "architecture": str(learned).splitlines()}
        small = net.materialize()
        row |= {"materialised_parameters": sum(p.numel() for p in small.parameters())}
        row["materialised_l2_16"] = error(small, data.test, device)
    return row


HEADER = ("network", "parameters", "complexity", "relative l², 16²", "32², never seen", "training, s")


def cells(name: str, row: dict[str, Any]) -> list[str]:
    held = f"{row['parameters']:,}"
    if "materialised_parameters" in row:
        held += f", materialised {row['materialised_parameters']:,}"
    return [
        name,
        held,
        number(row.get("complexity")),
        f"{row['l2_16']:.4f}",
        f"{row['l2_32']:.4f}",
        number(row["seconds"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder or .npz file; without it samples are solved in code")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--channels", type=int, default=140)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--weight", type=float, default=0.1, help="of the complexity loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--from-json", type=Path, help="show saved results instead of making new ones")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    if options.from_json is not None:
        report = json.loads(options.from_json.read_text())
    else:
        device = torch.device(options.device)
        if options.quick:
            options.channels, options.blocks, options.epochs = 8, 2, 2
        if options.data is not None:
            data = load("darcy", options.data, resolution=16, validation=0)
            fine = load("darcy", options.data, resolution=16, test_resolution=32, validation=0)
        else:
            count = {"train": 40, "test": 10} if options.quick else {"train": 1000, "test": 50}
            made = {n: load("darcy_synthetic", resolution=n, validation=0, **count) for n in (16, 32)}
            # The step is set as by a loader of files.
            data, fine = made[16], replace(made[32], test=replace(made[32].test, step=0.5))
        rows = {}
        for name, net in networks(options.channels, options.blocks, device, options.seed).items():
            rows[name] = train(net, data, fine, options, device)
            print(*cells(name, rows[name]), sep="   ", flush=True)
        settings = {
            k: v for k, v in vars(options).items() if k in ("channels", "blocks", "epochs", "batch", "lr", "weight")
        }
        source = "solved in code" if options.data is None else options.data.name
        report = {"machine": machine(device, options.seed), "data": source, "settings": settings, "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    told = ", ".join(f"{k} {v:g}" for k, v in report["settings"].items())
    text = f"{describe(report['machine'])}; {report['data']}; {told}.\n\n" + table(
        HEADER, [cells(name, row) for name, row in report["rows"].items()]
    )
    if options.markdown is not None:
        replace_section(options.markdown, f"darcy-{report['machine']['device']}", text)
    print("\n" + text)


if __name__ == "__main__":
    main()

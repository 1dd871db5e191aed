"""How long does a training step on a group take, and how much memory, against e2cnn and against a plain CNN?

    python benchmarks/groups.py --device cuda --batch 128
    python benchmarks/groups.py --device cpu --batch 16 --quick

One run prints a table and writes benchmarks/results/groups-<device>.json. e2cnn needs numpy 1; where it is missing its
rows are left out and the table says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from kernelfield.groups import O2, SO2, Cyclic, Dihedral, Trivial
from kernelfield.models.gcnn import GCNN, GroupAllCNN
from kernelfield.models.partial_gcnn import PartialGCNN

try:
    from e2cnn import gspaces
    from e2cnn import nn as enn
except ImportError:
    enn = None


def plain_cnn(width: int) -> nn.Module:
    """The layers of GCNN on the plane, in torch's own modules, with as many channels as the group net has in all."""
    layers: list[nn.Module] = []
    channels = 1
    for i in range(6):
        layers += [nn.Conv2d(channels, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i == 1 else [nn.Dropout(0.3)]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(width, 10, 4, bias=False), nn.Flatten(1))


def e2cnn_net(n: int, mirrored: bool, width: int) -> nn.Module:
    """The layers of GCNN in e2cnn's modules."""
    space = gspaces.FlipRot2dOnR2(n) if mirrored else gspaces.Rot2dOnR2(n)
    regular = enn.FieldType(space, width * [space.regular_repr])
    classes = enn.FieldType(space, 10 * [space.regular_repr])
    source = enn.FieldType(space, [space.trivial_repr])
    layers: list[nn.Module] = []
    here = source
    for i in range(6):
        layers += [enn.R2Conv(here, regular, 3, bias=False), enn.InnerBatchNorm(regular), enn.ReLU(regular)]
        layers += [enn.PointwiseMaxPool(regular, 2, 2)] if i == 1 else [enn.PointwiseDropout(regular, 0.3)]
        here = regular
    layers += [enn.R2Conv(regular, classes, 5, padding=1, bias=False), enn.GroupPooling(classes)]
    net = enn.SequentialModule(*layers)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(enn.GeometricTensor(x, source)).tensor.amax(dim=(-2, -1))

    return Net()


def rows(quick: bool) -> dict[str, tuple[int, int, object]]:
    """Return name: (input channels, input size, how to build it)."""
    table: dict[str, tuple[int, int, object]] = {
        "plain CNN, 40 channels": (1, 28, lambda: plain_cnn(40)),
        "Z2CNN, 40 channels": (1, 28, lambda: GCNN(group=Trivial(), channels=40)),
        "p4-CNN": (1, 28, lambda: GCNN(group=Cyclic(4), channels=10)),
        "e2cnn p4-CNN": (1, 28, lambda: e2cnn_net(4, False, 10)),
        "p4m-CNN": (1, 28, lambda: GCNN(group=Dihedral(4), channels=7)),
        "e2cnn p4m-CNN": (1, 28, lambda: e2cnn_net(4, True, 7)),
        "C8-CNN": (1, 28, lambda: GCNN(group=Cyclic(8), channels=7)),
        "e2cnn C8-CNN": (1, 28, lambda: e2cnn_net(8, False, 7)),
    }
    if quick:
        return table
    table |= {
        "p4 All-CNN": (3, 32, lambda: GroupAllCNN(group=Cyclic(4), channels=48)),
        "p4m All-CNN": (3, 32, lambda: GroupAllCNN(group=Dihedral(4), channels=32)),
        "T(2) network": (1, 28, lambda: PartialGCNN(group=Trivial(), partial=False)),
        "SE(2) network, 16 samples": (1, 28, lambda: PartialGCNN(group=SO2(), samples=16, partial=False)),
        "partial SE(2), 16 samples": (1, 28, lambda: PartialGCNN(group=SO2(), samples=16)),
        "partial SE(2), half width": (1, 28, lambda: narrow(PartialGCNN(group=SO2(), samples=16))),
        "E(2) network, 16 samples": (1, 28, lambda: PartialGCNN(group=O2(), samples=16, partial=False)),
    }
    return table


def narrow(net: PartialGCNN) -> PartialGCNN:
    with torch.no_grad():
        for distribution in net.distributions():
            distribution.width.fill_(0.5)
    return net.train()


def measure(net: nn.Module, x: torch.Tensor, repeats: int) -> tuple[float, float]:
    """Return the median milliseconds of a training step and the peak memory in MiB (0 on a CPU)."""
    y = torch.randint(10, (len(x),), device=x.device)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    cuda = x.is_cuda

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), y).backward()
        optimiser.step()

    for _ in range(3 if not cuda else 10):
        step()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), torch.cuda.max_memory_allocated() / 2**20 if cuda else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="small networks only")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile, where one graph is possible")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    results = []
    print(f"{'network':30} {'ms/step':>9} {'MiB':>8} {'parameters':>11}")
    for name, (channels, size, build) in rows(arguments.quick).items():
        if name.startswith("e2cnn") and enn is None:
            print(f"{name:30} {'e2cnn is not installed':>30}")
            continue
        torch.manual_seed(0)
        net = build().to(device).train()  # type: ignore[operator]
        x = torch.randn(arguments.batch, channels, size, size, device=device)
        for compiled in (False, True) if arguments.compile and not name.startswith("e2cnn") else (False,):
            runs = torch.compile(net) if compiled else net
            label = f"{name} (compiled)" if compiled else name
            milliseconds, memory = measure(runs, x, arguments.repeats)
            count = sum(p.numel() for p in net.parameters())
            print(f"{label:30} {milliseconds:9.2f} {memory:8.0f} {count:11,}", flush=True)
            results.append({"network": label, "ms": milliseconds, "mib": memory, "parameters": count})
        del net
    place = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {
        "question": "training step and peak memory on groups",
        "device": place,
        "torch": torch.__version__,
        "batch": arguments.batch,
        "e2cnn": enn is not None,
        "rows": results,
    }
    file = arguments.out / f"groups-{device.type}.json"
    file.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {file}")


if __name__ == "__main__":
    main()

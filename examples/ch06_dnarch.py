"""Chapter 6: a network that learns its own architecture, on Darcy flow.

    python examples/ch06_dnarch.py        # writes runs/ch06_dnarch.png

The task maps the permeability of a medium to the pressure in it; the data are solved in code. Kernel sizes,
resolutions, widths and depth of a small CCNN are learned together with its weights, at three quarters of its own cost.
The result is an ordinary network. A few minutes on a CPU.
"""

import math
from pathlib import Path

import torch

import kernelfield as kf
from kernelfield.data import load
from kernelfield.experiments.optim import parameter_groups
from kernelfield.viz.architecture import plot_history

STEPS, BATCH, RATE = 600, 20, 0.01


def relative(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((prediction - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)).mean()


def main() -> None:
    torch.manual_seed(0)
    data, fine = (load("darcy_synthetic", resolution=n, train=200, validation=0, test=50) for n in (16, 32))
    base = kf.CCNN(3, 1, dim=2, size=16, channels=12, blocks=3, readout="dense", stem="linear", norm="batch-statistics")
    net = kf.DNArch(base, budget=0.75, resolution_temperature=50.0)
    optimizer = torch.optim.AdamW(parameter_groups(net, lr=RATE, weight_decay=0.01))  # decays no mask
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30) * (1 + math.cos(math.pi * step / STEPS)) / 2
        batch = data.train.batch(torch.randint(len(data.train), (BATCH,)))
        error = relative(net(batch.inputs), batch.target)
        optimizer.zero_grad()
        (error + 0.2 * net.complexity_loss()).backward()
        optimizer.step()  # shapes change between steps and nowhere else
        if step % 10 == 0:
            net.record(step=step)
        if step % 100 == 0 or step == STEPS - 1:
            print(
                f"step {step:3d}   relative error {error.item():.3f}   complexity {net.history[-1]['complexity']:.2f}"
            )
    print(net.report())
    small = net.materialize().eval()
    with torch.no_grad():
        coarse = relative(small(data.test.inputs), data.test.target)
        finer = relative(small(fine.test.inputs, step=0.5), fine.test.target)
    print(f"materialised: relative error {coarse:.3f} at 16x16, {finer:.3f} at 32x32, a resolution it never saw")
    count = [sum(p.numel() for p in n.parameters()) for n in (net, small)]
    print(f"{count[0]:,} parameters were trained, {count[1]:,} remain")
    Path("runs").mkdir(exist_ok=True)
    plot_history(net.history, "runs/ch06_dnarch.png")


if __name__ == "__main__":
    main()

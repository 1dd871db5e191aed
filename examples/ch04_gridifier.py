"""Chapter 4: a point cloud on a compact grid, and a network that works there.

    python examples/ch04_gridifier.py       # writes runs/ch04_gridifier.png

Draws a torus of 300 points, the grid of 6³ nodes it is mapped to and the edges between them; then trains a gridified
network of 32 channels to tell eight kinds of solids apart, in any pose, and tests it on clouds of half as many points.
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.data import load
from kernelfield.viz.clouds import plot_gridification


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train", type=int, default=1200)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = load("solids", points=300, train=options.train)
    net = kf.GridifiedNet(6, 8, grid=6, channels=32, blocks=2, kernel_size=5, neighbors=4, dropout=0.1)
    print(f"{kf.testing.count_parameters(net):,} parameters on a grid of {net.gridify.grid} nodes")

    lying = load("solids", points=300, pose="none", train=50, validation=0, test=1).train
    torus = int((lying.target == data.classes.index("torus")).nonzero()[0])
    Path("runs").mkdir(exist_ok=True)
    plot_gridification(net.gridify, lying.batch(slice(torus, torus + 1)).coords[0], "runs/ch04_gridifier.png")

    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    steps = options.epochs * -(-options.train // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=max(2, steps))
    for epoch in range(options.epochs):
        net.train()
        for index in torch.randperm(options.train).split(32):
            batch = data.train.batch(index, training=True)
            loss = F.cross_entropy(net(batch.inputs, coords=batch.coords), batch.target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        batch = data.test.batch(slice(None))
        half = {"x": batch.inputs[..., :150], "coords": batch.coords[:, :150]}
        with torch.no_grad():
            whole, fewer = net(batch.inputs, coords=batch.coords), net(**half)
        right, right_half = ((y.argmax(1) == batch.target).float().mean() for y in (whole, fewer))
        print(f"epoch {epoch + 1:2d}   loss {loss.item():.3f}   {right:.1%}; half of each cloud: {right_half:.1%}")


if __name__ == "__main__":
    main()

"""Chapter 4: map a point cloud to a compact grid and classify it there.

    python examples/ch04_gridifier.py       # writes runs/ch04_gridifier.png

Draws a torus of 300 points, its grid of 6³ nodes and the edges between them. Then trains a gridified network to
classify eight kinds of solids in any pose, and tests it on clouds of half as many points. A few minutes on a CPU.
"""

from pathlib import Path

import torch
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.data import load
from kernelfield.viz.clouds import plot_gridification

EPOCHS, TRAIN = 6, 1200


def main() -> None:
    torch.manual_seed(0)
    data = load("solids", points=300, train=TRAIN)
    net = kf.GridifiedNet(6, 8, grid=6, channels=32, blocks=2, kernel_size=5, neighbors=4, dropout=0.1)
    print(f"{kf.testing.count_parameters(net):,} parameters on a grid of {net.gridify.grid} nodes")

    lying = load("solids", points=300, pose="none", train=50, validation=0, test=1).train
    torus = int((lying.target == data.classes.index("torus")).nonzero()[0])
    Path("runs").mkdir(exist_ok=True)
    plot_gridification(net.gridify, lying.batch(slice(torus, torus + 1)).coords[0], "runs/ch04_gridifier.png")

    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    steps = EPOCHS * -(-TRAIN // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        net.train()
        for index in torch.randperm(TRAIN).split(32):
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
            logits, logits_half = net(batch.inputs, coords=batch.coords), net(**half)
        accuracy, accuracy_half = ((y.argmax(1) == batch.target).float().mean() for y in (logits, logits_half))
        print(
            f"epoch {epoch + 1}   loss {loss.item():.3f}   accuracy {accuracy:.1%}; on half clouds {accuracy_half:.1%}"
        )


if __name__ == "__main__":
    main()

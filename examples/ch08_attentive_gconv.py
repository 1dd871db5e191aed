"""Chapter 8: group convolutions that weight their responses, with attention that rotates with the input.

    python examples/ch08_attentive_gconv.py        # writes runs/ch08_attention.png

Trains an attentive p4-CNN on rotated digits. Draws the attention of its first layers for a digit and its quarter turns:
the maps of the rotated digit are the rotated maps. About a minute on a CPU.
"""

from pathlib import Path

import torch
from torch.nn import functional as F

from kernelfield.data.sets.images.rotated_mnist import rotated_digits
from kernelfield.groups import Cyclic
from kernelfield.models import GCNN
from kernelfield.viz.attention import plot_equivariance

STEPS = 60


def main() -> None:
    data = rotated_digits(28)
    train, test = (split.batch(torch.arange(len(split.inputs))) for split in (data.train, data.test))
    group = Cyclic(4)
    for attention in (None, "full"):
        torch.manual_seed(0)
        net = GCNN(1, 10, group=group, channels=4, dropout=0.1, attention=attention)
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(STEPS):
            chosen = torch.randint(len(train.inputs), (32,))
            loss = F.cross_entropy(net(train.inputs[chosen]), train.target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = net.eval()(test.inputs).argmax(dim=1) == test.target
        print(f"{attention or 'plain':6} accuracy {right.float().mean():.1%}")
    Path("runs").mkdir(exist_ok=True)
    layers = ("lift", "convs.0", "convs.1")
    worst = plot_equivariance(net, test.inputs[0], group, "runs/ch08_attention.png", layers=layers)
    print(f"maps of rotated digits differ from rotated maps by {worst:.1e}")


if __name__ == "__main__":
    main()

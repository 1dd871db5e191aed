"""Chapter 9: networks of self-attention alone that respect rotations, by any angle of a finite group.

    python examples/ch09_group_self_attention.py

Trains small networks of self-attention on turned digits: one that respects translations only, and one that respects
quarter turns too; a hundred steps are only the beginning of their training. Draws the attention of the second into
ch09_attention.png. Then a layer with eighths of a turn, which no grid holds, on points, which it turns by 45° exactly.
About a minute on a CPU.
"""

import torch
from torch.nn import functional as F

from kernelfield.data.sets.images.rotated_mnist import rotated_digits
from kernelfield.groups import Cyclic, Trivial
from kernelfield.layers import LiftingSelfAttention
from kernelfield.models import GSANet
from kernelfield.viz.attention import plot_equivariance

STEPS = 100
SMALL = {"channels": 8, "widths": ((8,), (8,)), "crops": (1, 1), "heads": 3, "neighborhood": 3}


def main() -> None:
    data = rotated_digits(10)
    train, test = (split.batch(torch.arange(len(split.inputs))) for split in (data.train, data.test))
    for name, group in {"Z2": Trivial(), "R4": Cyclic(4)}.items():
        torch.manual_seed(0)
        net = GSANet(1, 10, group=group, **SMALL)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(STEPS):
            chosen = torch.randint(len(train.inputs), (32,))
            loss = F.cross_entropy(net(train.inputs[chosen]), train.target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = net.eval()(test.inputs).argmax(dim=1) == test.target
        print(f"{name} accuracy {right.float().mean():.1%}")
    plot_equivariance(net, test.inputs[0], group, "ch09_attention.png")

    group, layer = Cyclic(8), LiftingSelfAttention(3, 8, group=Cyclic(8), neighborhood=None, size=4)
    values, points = torch.randn(1, 3, 30), 4 * torch.randn(1, 30, 2)
    eighth = group.matrix(torch.tensor([1.0]))
    turned = layer(values, coords=points @ eighth.T).values
    error = (turned - layer(values, coords=points).values.roll(1, dims=2)).abs().max()
    print(f"points turned by 45°: elements move by one, values differ by {error:.1e}")


if __name__ == "__main__":
    main()

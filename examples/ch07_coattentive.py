"""Chapter 7: responses to all orientations that attend to each other.

    python examples/ch07_coattentive.py

Trains three networks on rotated digits: a p4-CNN, one with co-attention after each convolution, and one with
unconstrained attention. The first two do not change their output when a digit is rotated; the third does. About a
minute on a CPU.
"""

import torch
from torch.nn import functional as F

from kernelfield.data.sets.images.rotated_mnist import rotated_digits
from kernelfield.groups import Cyclic
from kernelfield.models import GCNN
from kernelfield.testing import equivariance_error

STEPS = 60


def accuracy(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((net.eval()(x).argmax(dim=1) == y).float().mean())


def main() -> None:
    data = rotated_digits(28)
    train, test = (split.batch(torch.arange(len(split.inputs))) for split in (data.train, data.test))
    group = Cyclic(4)
    for attention in (None, "co", "free"):
        torch.manual_seed(0)
        net = GCNN(1, 10, group=group, channels=6, dropout=0.1, attention=attention)
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(STEPS):
            chosen = torch.randint(len(train.inputs), (64,))
            loss = F.cross_entropy(net(train.inputs[chosen]), train.target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        change = equivariance_error(net, group, test.inputs[:32], invariant=True)
        share = accuracy(net, test.inputs, test.target)
        print(f"{attention or 'plain':6} accuracy {share:.1%}, logits change by {change:.1e} under rotation")


if __name__ == "__main__":
    main()

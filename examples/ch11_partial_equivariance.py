"""Chapter 11: is this a six or a nine? A network that learns how far to respect rotations.

    python examples/ch11_partial_equivariance.py

Turned sixes, called a six up to a quarter turn and a nine beyond. To a network that respects every rotation the two are
one and the same; one whose layers learn the subset of rotations they respect tells them apart. Writes two pictures:
the learned subset of each layer, and the prediction as a six goes around the circle. About a minute on a CPU.
"""

import torch
from torch.nn import functional as F

from kernelfield.data.sets.images.digits import digit_images
from kernelfield.data.transforms.rotate import mnist6_180, sixes
from kernelfield.groups import SO2, parameter_groups
from kernelfield.models.partial_gcnn import PartialGCNN
from kernelfield.viz.groups import plot_prediction_under_rotation, plot_subsets

STEPS = 120


def digits() -> list[torch.Tensor]:
    """Training and test digits of 12² pixels on a background of zeros, 20² with a border to turn in."""
    x, y, x_test, y_test = digit_images(12)
    low = x.min()
    return [F.pad((x - low) / 4, (4,) * 4), y, F.pad((x_test - low) / 4, (4,) * 4), y_test]


def main() -> None:
    x, y, x_test, y_test = digits()
    train, labels = mnist6_180(x, y, copies=2, margin=15, seed=0)
    test, test_labels = mnist6_180(x_test, y_test, copies=2, margin=15, seed=1)
    for partial in (False, True):
        torch.manual_seed(0)
        net = PartialGCNN(1, 2, group=SO2(), samples=4, partial=partial, channels=(6, 6, 8, 8), kernel_size=5)
        # The chapter takes ratio=0.1 and 300 epochs; a short run needs its subsets to move faster.
        optimizer = torch.optim.Adam(parameter_groups(net, lr=5e-3, ratio=10))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            chosen = torch.randint(len(train), (64,))
            loss = F.cross_entropy(net(train[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        accuracy = (net(test).argmax(dim=1) == test_labels).float().mean()
        print(f"{'partial' if partial else 'full':8} accuracy {accuracy:.1%}")
    for i, distribution in enumerate(net.distributions(), start=1):
        print(
            f"layer {i}: rotations up to ±{180 * distribution.limits().item():.0f}°, {distribution.count} of 4 elements"
        )
    plot_subsets(net, "ch11_subsets.png")
    plot_prediction_under_rotation(net, sixes(x_test, y_test)[0], "ch11_prediction.png")


if __name__ == "__main__":
    main()

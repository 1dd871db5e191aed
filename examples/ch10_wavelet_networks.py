"""Chapter 10: classify sounds at speeds that were never heard in training.

    python examples/ch10_wavelet_networks.py        # writes runs/ch10_scalograms.png

Trains a wavelet network and a plain one of about the same size on chirps and transients of one speed, and tests them on
the same events played slower. The plain network has never heard such low and long sounds. To the wavelet network they
are known events at a coarser scale. Draws the scalogram of the first layer before and after training. About a minute on
a CPU.
"""

import copy
from pathlib import Path

import torch
from torch.nn import functional as F

from kernelfield import WaveletNet, wavelet_loss
from kernelfield.data.sets.synthetic.transients import transients
from kernelfield.models.wavelet_net import Stage
from kernelfield.testing import count_parameters
from kernelfield.viz.scalograms import plot_scalograms

EPOCHS = 25
SPEEDS = (1.0, 1 / 1.5, 0.5)


def main() -> None:
    data = {speed: transients(384, scales=(1, 1), speed=speed, train=240, noise=0.05) for speed in SPEEDS}
    train = data[1.0].train
    nets = {
        # Two dilations per octave, interactions between neighbouring scales, pooling mostly at the end.
        "wavelet": {"stages": [Stage(8, 15, stride=2), Stage(8, 3, 2), Stage(16, 3, 2)], "scales": 9, "base": 2**0.5},
        "plain": {"stages": [Stage(11, 15, stride=2), Stage(11), Stage(22)], "scales": 0},
    }
    for name, arguments in nets.items():
        torch.manual_seed(1)
        net = WaveletNet(1, 5, **arguments)
        before = copy.deepcopy(net.stages[0].conv)
        optimizer = torch.optim.Adam(net.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.015, total_steps=8 * EPOCHS)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(train)).split(30):
                loss = F.cross_entropy(net(train.inputs[chosen]), train.target[chosen]) + 0.3 * wavelet_loss(net)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        net.eval()
        accuracy = {s: (net(d.test.inputs).argmax(1) == d.test.target).float().mean() for s, d in data.items()}
        shown = ", ".join(f"{share:.0%} at speed {speed:.2f}" for speed, share in accuracy.items())
        print(f"{name:8} {count_parameters(net):,} weights: {shown}")
        if name == "wavelet":
            lifts = {"before": before, "after": net.stages[0].conv}
            Path("runs").mkdir(exist_ok=True)
            plot_scalograms(lifts, data[0.5].test.inputs[0], "runs/ch10_scalograms.png")


if __name__ == "__main__":
    main()

"""Chapter 10: what kind of event was that? A network that hears it at any speed.

    python examples/ch10_wavelet_networks.py

Chirps and transients, all of one size, to train a wavelet network and a plain one of as many weights; then the same
events played slower. The plain network has never heard such low and long sounds; to the wavelet network they are the
old ones, some scales further. Writes the scalogram of the first layer before and after learning. About a minute.
"""

import copy

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
        # Two dilations to the octave; interactions between neighbours; hardly any pooling but at the end.
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
        heard = {s: (net(d.test.inputs).argmax(1) == d.test.target).float().mean() for s, d in data.items()}
        said = ", ".join(f"{share:.0%} at speed {speed:.2f}" for speed, share in heard.items())
        print(f"{name:8} {count_parameters(net):,} weights: {said}")
        if name == "wavelet":
            lifts = {"before": before, "after": net.stages[0].conv}
            plot_scalograms(lifts, data[0.5].test.inputs[0], "ch10_scalograms.png")


if __name__ == "__main__":
    main()

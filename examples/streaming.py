"""Streaming: spot sounds in a long recording while it plays.

    python examples/streaming.py                        # synthetic chirps; two minutes on a CPU
    python examples/streaming.py --digits FOLDER        # spoken digits (FSDD); minutes on a GPU

Trains a causal network on short clips, with silence as one more class. Then it plays the clips of the test set, with
pauses in between, to the stream of the network, a tenth of a clip at a time, and prints what is heard as soon as the
network is sure. The distilled network does the same with a few oscillations in place of each long kernel.
"""

import argparse

import torch
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.data.sets.audio.fsdd import fsdd
from kernelfield.data.sets.synthetic.chirps import chirps

EPOCHS, CLIPS, SURE = 12, 12, 0.9


def train(net: torch.nn.Module, inputs: torch.Tensor, target: torch.Tensor, epochs: int = EPOCHS) -> None:
    optimizer = torch.optim.Adam(net.train().parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * -(-len(inputs) // 50))
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs)).split(50):
            loss = F.cross_entropy(net(inputs[chosen]), target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()


def listen(net: torch.nn.Module, recording: torch.Tensor, block: int, names: list[str]) -> list[str]:
    """Return what is heard, in order: a name each time the network becomes sure of another class."""
    online, heard, last = kf.stream(net), [], len(names) - 1
    for start in range(0, recording.shape[-1], block):
        share, found = online.push(recording[..., start : start + block])[0, :, -1].softmax(dim=0).max(dim=0)
        if share > SURE and int(found) != last:
            last = int(found)
            heard += [f"{start + block}: {names[last]}"] if last < len(names) - 1 else []
    return heard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", help="folder of the Free Spoken Digit Dataset")
    folder = parser.parse_args().digits
    data = chirps(noise=0.1, train=1000, test=200) if folder is None else fsdd(folder, length=6000, every=2)
    x, length = data.train.batch(slice(None)).inputs, data.train.inputs.shape[-1]
    quiet = 0.1 * torch.randn(len(x) // len(data.classes), 1, length)
    torch.manual_seed(0)
    net = kf.CKCNN(1, len(data.classes) + 1, size=length, channels=16, readout="last", norm="batch")
    target = torch.cat([data.train.target, torch.full((len(quiet),), len(data.classes))])
    train(net, torch.cat([x, quiet]), target)
    # Kernels end where the clips did, as in the network: a recording is longer than a clip.
    small = kf.distil(net, tolerance=1e-2, tail="cut").network
    clips = data.test.batch(slice(0, CLIPS)).inputs
    pauses = 0.1 * torch.randn_like(clips)
    recording = torch.cat([clips, pauses], dim=2).permute(1, 0, 2).reshape(1, 1, -1)
    names = [*map(str, data.classes), "quiet"]
    print("played   ", ", ".join(names[i] for i in data.test.target[:CLIPS]))
    for title, network in (("exact", net), ("distilled", small)):
        print(f"{title:9}", ", ".join(listen(network, recording, length // 10, names)))


if __name__ == "__main__":
    main()

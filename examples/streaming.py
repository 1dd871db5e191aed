"""Streaming: spot spoken digits in a long recording while it plays.

    python examples/streaming.py                        # synthetic chirps; two minutes on a CPU
    python examples/streaming.py --digits fsdd_8k.npz   # spoken digits (FSDD, archive or folder); minutes on a CPU

Trains a causal network to name, at every moment, the sound that it is hearing, with silence as one more class. Then it
plays clips of the test set, with pauses in between, to the stream of the network, a twentieth of a second at a time. It
prints a sound as soon as the network is sure of it. The distilled network does the same with a few oscillations in
place of each long kernel.
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.data.sets.audio.fsdd import fsdd
from kernelfield.data.sets.synthetic.chirps import chirps

EPOCHS, CLIPS, SURE, NOISE, CHANNELS = 6, 12, 0.9, 0.1, 24


def load(path: str | None) -> tuple[list, list[str]]:
    """Return (clips, lengths, classes) for training and for test, and the names of the classes."""
    if path is not None and not Path(path).exists():
        print(f"{path} is missing: chirps in place of digits")
    found = path is not None and Path(path).exists()
    data, pool = (fsdd(path, length=4000), 4) if found else (chirps(noise=NOISE, train=1000, test=200), 1)
    parts = []
    for batch in (data.train.batch(slice(None)), data.test.batch(slice(None))):
        heard = torch.ones_like(batch.inputs[:, 0], dtype=torch.bool) if batch.mask is None else batch.mask
        x = F.avg_pool1d(batch.inputs * heard.unsqueeze(1), pool)  # digits at 2 kHz
        parts.append((x, heard.sum(dim=1) // pool, batch.target))
    return parts, [*map(str, data.classes), "quiet"]


def scenes(x: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor, quiet: int) -> tuple[torch.Tensor, ...]:
    """Return clips at random times between pauses, and what to say at each moment: -100 for nothing in particular."""
    n, clip = len(x), x.shape[-1]
    start = torch.randint(0, clip // 2, (n, 1))
    time = torch.arange(2 * clip) - start  # since the clip began
    sound = F.pad(x, (0, clip)).squeeze(1).gather(1, time.remainder(2 * clip))
    end = lengths.unsqueeze(1)
    said = torch.where((time < 0) | (time > end + clip // 4), quiet, -100)
    said = torch.where((time > 0.7 * end) & (time < end + clip // 10), target.unsqueeze(1), said)
    return (sound + NOISE * torch.randn_like(sound)).unsqueeze(1), said


def train(net: torch.nn.Module, x: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor, quiet: int) -> None:
    optimizer = torch.optim.Adam(net.train().parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=EPOCHS * -(-len(x) // 50))
    for epoch in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(50):
            sound, said = scenes(x[chosen], lengths[chosen], target[chosen], quiet)
            loss = F.cross_entropy(net(sound), said)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {loss.item():.2f}", flush=True)
    net.eval()


def listen(net: torch.nn.Module, recording: torch.Tensor, names: list[str], block: int = 100) -> list[str]:
    """Return what is heard, in order: a name each time the network becomes sure of another class."""
    online, heard, last = kf.stream(net), [], len(names) - 1
    for start in range(0, recording.shape[-1], block):
        share, found = online.push(recording[..., start : start + block])[0].softmax(dim=0).mean(dim=1).max(dim=0)
        if share > SURE and int(found) != last:
            last = int(found)
            heard += [f"{start + block}: {names[last]}"] if last < len(names) - 1 else []
    return heard


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", help="Free Spoken Digit Dataset: its folder, or the archive fsdd_8k.npz")
    torch.manual_seed(0)
    (training, (clips, lengths, target)), names = load(parser.parse_args(arguments).digits)
    length, quiet = clips.shape[-1], len(names) - 1
    net = kf.CCNN(1, len(names), size=length, channels=CHANNELS, blocks=2, readout="dense")
    train(net, *training, quiet)
    distilled = kf.distil(net, tolerance=1e-2)
    print(distilled)
    chosen = torch.randperm(len(clips))[:CLIPS]
    recording = scenes(clips[chosen], lengths[chosen], target[chosen], quiet)[0].permute(1, 0, 2).reshape(1, 1, -1)
    print("played   ", ", ".join(names[i] for i in target[chosen]))
    for title, network in (("exact", net), ("distilled", distilled.network)):
        print(f"{title:9}", ", ".join(listen(network, recording, names)))


if __name__ == "__main__":
    main()

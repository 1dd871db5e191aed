"""Streaming: spot spoken digits in a long recording while it plays.

    python examples/streaming.py                        # synthetic chirps; a minute on a CPU
    python examples/streaming.py --digits fsdd_8k.npz   # spoken digits (FSDD, archive or folder); two minutes on a CPU

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

EPOCHS, CLIPS, SURE, NOISE, CHANNELS, BANDS, BLOCK = 4, 12, 2.0, 0.1, 24, 16, 40


def frames(sound: torch.Tensor, window: int, hop: int) -> torch.Tensor:
    """Return the logarithmic power (n, bands, time) of sound (n, samples); a frame ends with its own samples."""
    power = torch.stft(
        F.pad(sound, (window - hop, 0)),
        window,
        hop,
        window=torch.hann_window(window),
        center=False,
        return_complex=True,
    )
    return torch.log1p(10 * F.avg_pool1d(power.abs()[:, 1:].mT, window // 2 // BANDS).mT)


def load(path: str | None) -> tuple[list[tuple[torch.Tensor, ...]], list[str]]:
    """Return (clips, lengths, classes) for training and for test, and the names of the classes."""
    found = path is not None and Path(path).exists()
    if path is not None and not found:
        print(f"{path} is missing: chirps in place of digits")
    data = fsdd(path, length=4000) if found else chirps(noise=0.0, train=1000, test=200)
    window, hop = (128, 10) if found else (32, 2)
    parts = []
    for batch in (data.train.batch(slice(None)), data.test.batch(slice(None))):
        heard = torch.ones_like(batch.inputs[:, 0], dtype=torch.bool) if batch.mask is None else batch.mask
        parts.append((frames(batch.inputs[:, 0] * heard, window, hop), heard.sum(dim=1) // hop, batch.target))
    return parts, [*map(str, data.classes), "quiet"]


def scenes(x: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor, quiet: int) -> tuple[torch.Tensor, ...]:
    """Return clips at random times between pauses, and the class at each moment: -100 where none is scored."""
    n, channels, clip = x.shape
    time = torch.arange(2 * clip) - torch.randint(0, clip // 2, (n, 1))  # since the clip began
    sound = F.pad(x, (0, clip)).gather(2, time.remainder(2 * clip).unsqueeze(1).expand(-1, channels, -1))
    end = lengths.unsqueeze(1)
    said = torch.where((time < 0) | (time > end + clip // 4), quiet, -100)
    said = torch.where((time > 0.7 * end) & (time < end + clip // 10), target.unsqueeze(1), said)
    return sound + NOISE * torch.randn_like(sound), said


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


def listen(net: torch.nn.Module, recording: torch.Tensor, names: list[str]) -> list[str]:
    """Return the sounds in order: one name for each, as soon as there is enough evidence for it."""
    online, heard, evidence, named = kf.stream(net), [], torch.zeros(len(names) - 1), False
    for start in range(0, recording.shape[-1], BLOCK):
        shares = online.push(recording[..., start : start + BLOCK])[0].softmax(dim=0).mean(dim=1)
        if shares[-1] > 0.5:  # a pause: the next sound begins without evidence
            evidence, named = torch.zeros(len(names) - 1), False
            continue
        evidence = evidence + shares[:-1] * (shares[:-1] > 0.5)
        if not named and evidence.max() > SURE:
            heard.append(f"{start + BLOCK}: {names[int(evidence.argmax())]}")
            named = True
    return heard


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", help="Free Spoken Digit Dataset: its folder, or the archive fsdd_8k.npz")
    torch.manual_seed(0)
    (training, (clips, lengths, target)), names = load(parser.parse_args(arguments).digits)
    options = {"start": "flexconv", "omega_0": 1.0, "sigma": 0.4}  # smooth kernels, which take few oscillations
    net = kf.CCNN(BANDS, len(names), size=clips.shape[-1], channels=CHANNELS, blocks=2, readout="dense", **options)
    train(net, *training, len(names) - 1)
    distilled = kf.distil(net, tolerance=1e-2)
    print(distilled)
    chosen = torch.randperm(len(clips))[:CLIPS]
    played = scenes(clips[chosen], lengths[chosen], target[chosen], len(names) - 1)[0]
    recording = torch.cat(played.unbind(), dim=-1).unsqueeze(0)
    print("played   ", ", ".join(names[i] for i in target[chosen]))
    for title, network in (("exact", net), ("distilled", distilled.network)):
        print(f"{title:9}", ", ".join(listen(network, recording, names)))


if __name__ == "__main__":
    main()

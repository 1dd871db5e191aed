"""How well is mortality in intensive care predicted from measurements at irregular times?

    python benchmarks/physionet.py --data physionet2012_ab.npz --out physionet.json
    python benchmarks/physionet.py --data physionet2012_ab.npz --seeds 1 --members 1 --epochs 1 --models CCNN

PhysioNet 2012: 8,000 stays (sets a and b), 37 measurements over 48 hours, each at its own times. The file holds a table
of ``record, minute, param, value`` and, per stay, ``ids`` and ``death``. Split: 80 % training and 20 % test stays
(scikit-learn's ``train_test_split`` with ``random_state=42``, as in other work on this set); 20 % of the training stays
are for validation (``random_state=11``). Five seeds of the weights on one split. The score is the area under the ROC
curve on the test stays, at the epoch with the best area on the validation stays.

With ``--members`` each seed averages the predictions of up to five networks. The first validates on the usual
validation stays, and the others on the other four fifths of the training and validation stays in turn. The areas of
single networks are reported too, and those of the first members, which use the usual split alone. Both models have the
same stays, members, augmentation (measurements left out at random), averaged weights and choice of the epoch.

The CCNN reads every measurement at its own time: one depthwise convolution with continuous kernels goes from the real
times of each channel to a grid of hours (``at=``), with a second channel for each that counts its observations. Two
more give the last value of each channel and how old it is. The GRU-D reads the same values, masks and times.

On a GPU a training step is one CUDA graph, which all members of the CCNN share one after the other; the GRU-D trains
all members at once. Results are written after each seed. Run the script again with the same ``--out`` to continue
where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _gru_d import GRUD, last_seen
from _measure import machine
from _physionet import HOURS, Stays, load
from _stacked import Training
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.layers.continuous.kernel_support import sample_full_kernels

#: hours after which the input for the age of a value falls to 1/e
AGE = 4.0


class PointsToGrid(nn.Module):
    """A convolution from the real times of each channel to hours, and last values there; then a CCNN on the hours."""

    def __init__(self, measured: int, static: int, options: argparse.Namespace) -> None:
        super().__init__()
        field = partial(kf.fields.MAGNet, hidden=16, bandwidth=3.0)  # smooth over hours
        # Longer than the stay, so that no kernel is cut.
        how: dict[str, Any] = {"size": HOURS + 16, "field": field, "depthwise": True, "causal": False}
        # A CUDA graph cannot hold a choice of the method, which depends on the times.
        self.gather = kf.CKConv(2 * measured, 2 * measured, point_method=options.point_method, **how)
        self.norm = nn.BatchNorm1d(4 * measured)
        self.network = kf.CCNN(
            4 * measured + static, 1, size=HOURS, channels=options.channels, blocks=options.blocks, hidden=16,
            sigma=0.2, causal=False, dropout=options.dropout, input_dropout=options.dropout, stem="linear",
        )  # fmt: skip
        sample_full_kernels(self.network)  # 48 hours are few, and the shapes never change
        self.register_buffer("grid", torch.arange(HOURS, dtype=torch.float32).unsqueeze(1) + 0.5)

    def forward(self, stays: Stays) -> Tensor:
        stays = Stays(*(t.squeeze(0) for t in stays))  # of a single member
        observed = stays.observed.to(stays.values.dtype)
        x = torch.cat([stays.values * observed, observed], dim=1)
        x = self.gather(x, coords=stays.hours.unsqueeze(2), at=self.grid)
        x = self.norm(torch.cat([x, *_last_values(stays)], dim=1))
        return self.network(torch.cat([x, stays.static.unsqueeze(2).expand(-1, -1, HOURS)], dim=1)).mT


def _last_values(stays: Stays) -> tuple[Tensor, Tensor]:
    """Return the last value of each channel at the end of each hour, and exp(-age / 4 hours); zeros if none."""
    ends = torch.arange(1, HOURS + 1, dtype=stays.hours.dtype, device=stays.hours.device)
    point = torch.searchsorted(stays.hours, ends.expand(len(stays.hours), -1).contiguous(), right=True) - 1
    point = point.unsqueeze(1).expand(-1, stays.values.shape[1], -1)
    index = last_seen(stays.observed.mT).mT.gather(2, point.clamp(min=0))
    known, index = (index >= 0) & (point >= 0), index.clamp(min=0)
    age = ends - stays.hours.unsqueeze(1).expand_as(stays.values).gather(2, index)
    return stays.values.gather(2, index) * known, torch.exp(-age / AGE) * known


class GRUDOfStays(nn.Module):
    """The last states of several GRU-Ds, which begin with a map of the static values, and a map to one score each."""

    def __init__(self, measured: int, static: int, options: argparse.Namespace) -> None:
        super().__init__()
        members, hidden = options.seeds * options.members, options.hidden
        self.states = GRUD(measured, hidden, dropout=options.gru_dropout, members=members)
        self.begin = nn.Parameter((2 * torch.rand(members, static, hidden) - 1) * static**-0.5)
        self.dropout = nn.Dropout(0.5)
        self.weight = nn.Parameter((2 * torch.rand(members, hidden + static, 1) - 1) * (hidden + static) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(members, 1, 1))

    def forward(self, stays: Stays) -> Tensor:
        observed = stays.observed.transpose(2, 3).to(stays.values.dtype)
        # The states after the last point of a stay decay, but nothing is read: take the state there.
        points = (stays.observed.any(dim=2).cumsum(dim=2).argmax(dim=2))[..., None, None]
        start = torch.tanh(stays.static @ self.begin)
        states = self.states(stays.values.transpose(2, 3), observed, stays.hours / HOURS, start)
        last = states.gather(2, points.expand(-1, -1, -1, states.shape[3])).squeeze(2)
        read = self.dropout(torch.cat([last, stays.static], dim=2))
        return torch.baddbmm(self.bias, read, self.weight).squeeze(2)


def area(scores: Tensor, death: Tensor) -> float:
    """Return the area under the ROC curve."""
    rank = torch.empty_like(scores, dtype=torch.float64)
    rank[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    dead = death > 0.5
    positives = int(dead.sum())
    return float((rank[dead].sum() - positives * (positives + 1) / 2) / (positives * (len(death) - positives)))


def order_of(stays: Tensor, seed: int, epochs: int, batch: int) -> Tensor:
    """Return the stays of each training step, (steps, batch)."""
    source = torch.Generator().manual_seed(seed)
    epoch = len(stays) // batch * batch
    order = [stays[torch.randperm(len(stays), generator=source)[:epoch]] for _ in range(epochs)]
    return torch.cat(order).view(-1, batch)


def train(
    training: Training,
    parts: Tensor,
    test: Tensor,
    who: list[tuple[int, int]],
    epochs: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Train the networks of (seed, member) pairs; return areas at the best validation epoch, and test scores."""
    start, death = time.perf_counter(), training.stays.death.cpu()
    orders = torch.stack(
        [
            order_of(parts[torch.arange(5) != member].flatten(), 1000 * member + seed, epochs, options.batch)
            for seed, member in who
        ],
        dim=1,
    )  # (steps, networks, batch)
    held = torch.stack([parts[member] for _, member in who])
    training.begin(len(orders))
    each = len(orders) // epochs
    best: list[dict[str, Any]] = [{"validation": 0.0} for _ in who]
    for epoch in range(epochs):
        training.steps(orders[epoch * each : (epoch + 1) * each])
        scores = training.predict(torch.cat([held, test.expand(len(who), -1)], dim=1))
        for i, found in enumerate(best):
            validation, tested = scores[i].split([held.shape[1], len(test)])
            area_now = area(validation, death[held[i]])
            if options.verbose:
                print(f"  epoch {epoch + 1}: validation {area_now:.4f}", flush=True)
            if area_now > found["validation"]:
                found |= {"validation": area_now, "test": area(tested, death[test]), "epoch": epoch + 1}
                found["scores"] = tested
    for found, (_, member) in zip(best, who, strict=True):
        found["member"], found["seconds"] = member, round((time.perf_counter() - start) / len(who), 1)
    return best


def together(members: list[dict[str, Any]], death: Tensor) -> dict[str, Any]:
    """Return the result of one seed: the area of the mean score of its members, and those of each."""
    scores = torch.stack([member.pop("scores").sigmoid() for member in members]).mean(dim=0)
    return {
        "test": area(scores, death),
        "validation": float(np.mean([member["validation"] for member in members])),
        "members": members,
        "seconds": round(sum(member["seconds"] for member in members), 1),
    }


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["CCNN", "GRU-D"], choices=["CCNN", "GRU-D"])
    parser.add_argument(
        "--members", type=int, default=5, choices=range(1, 6), help="networks of one seed, whose scores are averaged"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.4)
    parser.add_argument("--thin", type=float, default=0.2, help="share of the measurements left out in training")
    parser.add_argument("--smoothing", type=float, default=0.02)
    parser.add_argument("--ema", type=float, default=0.98)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64, help="width of the GRU-D")
    parser.add_argument("--gru-dropout", type=float, default=0.3)
    parser.add_argument("--gru-epochs", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.point_method = "pairs" if options.device == "cuda" else "grid"
    return options


def main() -> None:
    options = arguments()
    stays, parts, test = load(options.data)
    stays = stays.to(torch.device(options.device))
    death, sizes = stays.death[test.to(stays.death.device)].cpu(), (stays.values.shape[1], stays.static.shape[1])
    settings = {k: v for k, v in vars(options).items() if k not in ("out", "data", "verbose", "seeds", "models")}
    result: dict[str, Any] = {"machine": machine(torch.device(options.device), 0), "settings": settings, "rows": []}
    if options.out is not None and options.out.exists():
        result = json.loads(options.out.read_text(encoding="utf-8"))
    done = {(row["model"], row["seed"]) for row in result["rows"]}

    def report(name: str, seed: int, members: list[dict[str, Any]]) -> None:
        row = together(members, death)
        result["rows"].append({"model": name, "seed": seed, **row})
        print(f"{name}, seed {seed}: test {row['test']:.4f}, {row['seconds']} s", flush=True)
        rows = [r for r in result["rows"] if r["model"] == name]
        areas, single = [r["test"] for r in rows], [m["test"] for r in rows for m in r["members"]]
        spread = float(np.std(areas, ddof=1)) if len(areas) > 1 else 0.0
        result[name] = {"mean": float(np.mean(areas)), "std": spread, "seeds": len(areas)}
        result[name]["validation"] = float(np.mean([r["validation"] for r in rows]))
        result[name]["mean of single networks"] = float(np.mean(single))
        result[name]["mean on the usual split alone"] = float(np.mean([r["members"][0]["test"] for r in rows]))
        if options.out is not None:
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    every = range(options.members)
    if "CCNN" in options.models:
        torch.manual_seed(0)
        training = Training(lambda: PointsToGrid(*sizes, options), stays, options)
        for seed in range(options.seeds):
            if ("CCNN", seed) in done:
                continue
            members = []
            for member in every:
                torch.manual_seed(1000 * member + seed)
                members += train(training, parts, test, [(seed, member)], options.epochs, options)
            report("CCNN", seed, members)
    if "GRU-D" in options.models and any(("GRU-D", seed) not in done for seed in range(options.seeds)):
        torch.manual_seed(0)
        training = Training(lambda: GRUDOfStays(*sizes, options), stays, options)
        who = [(seed, member) for seed in range(options.seeds) for member in every]
        found = train(training, parts, test, who, options.gru_epochs, options)
        for seed in range(options.seeds):
            report("GRU-D", seed, found[seed * options.members : (seed + 1) * options.members])
    for name in options.models:
        print(name, result[name])


if __name__ == "__main__":
    main()

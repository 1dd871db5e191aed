"""How well is mortality in intensive care predicted from measurements at irregular times?

    python benchmarks/physionet.py --data physionet2012_ab.npz --members 3 --models CCNN --out physionet.json
    python benchmarks/physionet.py --data physionet2012_ab.npz --models GRU-D --out physionet.json
    python benchmarks/physionet.py --data physionet2012_ab.npz --seeds 1 --epochs 1 --models CCNN  # to try it

PhysioNet 2012: 8,000 stays (sets a and b), 37 measurements over 48 hours, each at its own times. The file holds a table
of ``record, minute, param, value`` and, per stay, ``ids`` and ``death``. Split: 80 % training and 20 % test stays
(scikit-learn's ``train_test_split`` with ``random_state=42``, as other work on this set does), of the first 20 %
validation (``random_state=11``). Five seeds of the weights on one split. Area under the ROC curve on the test stays at
the epoch with the best one on the validation stays. With ``--members`` each seed averages the predictions of several
networks; the areas of single networks are reported too.

The CCNN reads every measurement at its own time: one depthwise convolution with continuous kernels goes from the real
times of each channel to a grid of hours (``at=``), with a second channel for each that counts its observations. The
GRU-D reads the same values, masks and times.

Results are written after each seed. Run again with the same ``--out``, the script continues where it was stopped.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _gru_d import GRUD
from _measure import machine
from torch import Tensor, nn
from torch.nn import functional as F

import kernelfield as kf

STATIC = ("Age", "Gender", "Height", "ICUType")
HOURS = 48


class Stays(NamedTuple):
    """Stays: (n, 37, points) values and whether each was observed, (n, points) hours, (n, 7) static values, deaths."""

    values: Tensor
    observed: Tensor
    hours: Tensor
    static: Tensor
    death: Tensor

    def take(self, index: Tensor) -> Stays:
        """Return some of the stays, without points at which none of them was measured."""
        values, observed, hours, static, death = (t[index] for t in self)
        points = int(observed.any(dim=1).sum(dim=1).max())
        return Stays(values[..., :points], observed[..., :points], hours[:, :points], static, death)

    def to(self, device: torch.device) -> Stays:
        """Return the stays on a device."""
        return Stays(*(t.to(device) for t in self))


def read(path: Path) -> tuple[np.ndarray, ...]:
    """Return (n, 37, points) values with NaN, (n, points) hours, (n, 4) static values and (n,) deaths."""
    held = np.load(path)
    names = [str(name) for name in held["params"]]
    measured = [i for i, name in enumerate(names) if name not in (*STATIC, "RecordID")]
    stay = np.searchsorted(held["ids"], held["record"])
    minute, param, value = held["minute"].astype(np.int64), held["param"], held["value"].astype(np.float64)
    n = len(held["ids"])
    static = np.full((n, len(STATIC)), np.nan)
    for j, name in enumerate(STATIC):
        known = (param == names.index(name)) & (value >= 0)
        static[stay[known], j] = value[known]
    kept = np.isin(param, measured) & (value >= 0)
    stay, minute, param, value = (a[kept] for a in (stay, minute, param, value))
    # One point for each minute of a stay at which anything was measured.
    key, point = np.unique(stay * 10_000 + minute, return_inverse=True)
    first = np.searchsorted(key // 10_000, np.arange(n + 1))
    place = point - first[stay]
    values = np.full((n, len(measured), int(np.diff(first).max())), np.nan)
    values[stay, np.searchsorted(measured, param), place] = value
    hours = np.zeros((n, values.shape[2]))
    hours[stay, place] = minute / 60
    return values, hours, static, held["death"].astype(np.float32)


def normal_scores(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the quantiles of values among sorted ``known`` ones as quantiles of a normal distribution.

    Whatever the unit and the tail of a measurement, its scores have zero mean and unit variance. Equal values share the
    middle of their ranks.
    """
    rank = (np.searchsorted(known, values, "left") + np.searchsorted(known, values, "right")) / (2 * len(known))
    scores = torch.special.ndtri(torch.from_numpy(rank.clip(0.001, 0.999))).numpy()
    return np.where(np.isnan(values), np.nan, scores)


def divide(index: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 80 and 20 % of the indices, as scikit-learn's ``train_test_split`` does under this seed."""
    order = np.random.RandomState(seed).permutation(len(index))
    rest = len(index) - int(0.8 * len(index))
    return index[order[rest:]], index[order[:rest]]


def load(path: Path) -> tuple[Stays, Stays, Stays]:
    """Return training, validation and test stays, normalised by the training stays."""
    values, hours, static, death = read(path)
    train, test = divide(np.arange(len(death)), 42)
    train, held = divide(train, 11)
    seen = ~np.isnan(values)
    for j in range(values.shape[1]):
        values[:, j] = normal_scores(values[:, j], np.sort(values[train, j][seen[train, j]]))
    about = static[:, :3]
    about = (about - np.nanmean(about[train], axis=0)) / np.nanstd(about[train], axis=0)
    kind = (static[:, 3:] == np.arange(1, 5)).astype(float)
    tensors = (np.nan_to_num(values), seen, hours, np.nan_to_num(np.hstack([about, kind])), death)
    every = Stays(*(torch.from_numpy(np.asarray(t, dtype=bool if t.dtype == bool else np.float32)) for t in tensors))
    return tuple(every.take(torch.from_numpy(part)) for part in (train, held, test))  # type: ignore[return-value]


class PointsToGrid(nn.Module):
    """A convolution from the real times of each channel to hours, then a CCNN on the hours."""

    def __init__(self, measured: int, static: int, *, channels: int, blocks: int, kernels: int, dropout: float) -> None:
        super().__init__()
        field = partial(kf.fields.MAGNet, hidden=16, bandwidth=3.0)  # smooth over hours
        self.kernels = kernels
        wide = 2 * measured * kernels
        # Longer than the stay, so that no kernel is cut: a smooth one is convolved by way of a fine grid.
        self.gather = kf.CKConv(wide, wide, size=HOURS + 16, field=field, depthwise=True, causal=False)
        self.norm = nn.BatchNorm1d(wide)
        self.network = kf.CCNN(
            wide + static, 1, size=HOURS, channels=channels, blocks=blocks, hidden=16, sigma=0.2, causal=False,
            dropout=dropout, input_dropout=dropout, stem="linear",
        )  # fmt: skip
        self.register_buffer("grid", torch.arange(HOURS, dtype=torch.float32).unsqueeze(1) + 0.5)

    def forward(self, stays: Stays) -> Tensor:
        observed = stays.observed.to(stays.values.dtype)
        x = torch.cat([stays.values * observed, observed], dim=1).repeat(1, self.kernels, 1)
        x = self.norm(self.gather(x, coords=stays.hours.unsqueeze(2), at=self.grid))
        return self.network(torch.cat([x, stays.static.unsqueeze(2).expand(-1, -1, HOURS)], dim=1)).squeeze(1)


class GRUDOfStays(nn.Module):
    """The last state of a GRU-D, with the static values."""

    def __init__(self, measured: int, static: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.states = GRUD(measured, hidden, dropout=dropout)
        self.readout = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden + static, 1))

    def forward(self, stays: Stays) -> Tensor:
        observed = stays.observed.transpose(1, 2).to(stays.values.dtype)
        points = observed.any(dim=2).sum(dim=1).clamp(min=1)
        states = self.states(stays.values.transpose(1, 2), observed, stays.hours / HOURS)
        last = states[torch.arange(len(points), device=states.device), points - 1]
        return self.readout(torch.cat([last, stays.static], dim=1)).squeeze(1)


def thinned(stays: Stays, share: float) -> Stays:
    """Return stays without a random share of their measurements, for training."""
    kept = torch.rand(stays.observed.shape, device=stays.observed.device) >= share
    return stays._replace(observed=stays.observed & kept)


def area(scores: Tensor, death: Tensor) -> float:
    """Return the area under the ROC curve."""
    rank = torch.empty_like(scores, dtype=torch.float64)
    rank[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    dead = death > 0.5
    positives = int(dead.sum())
    return float((rank[dead].sum() - positives * (positives + 1) / 2) / (positives * (len(death) - positives)))


@torch.no_grad()
def predict(network: nn.Module, stays: Stays, batch: int = 512) -> Tensor:
    """Return the scores of stays."""
    network.eval()
    parts = torch.arange(len(stays.death), device=stays.death.device).split(batch)
    return torch.cat([network(stays.take(part)) for part in parts]).float().cpu()


def train(
    network: nn.Module, splits: tuple[Stays, Stays, Stays], options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Train a network; return its areas at the epoch with the best validation area, and its test scores."""
    device = torch.device(options.device)
    network.to(device)
    stays, held, test = splits
    steps = len(stays.death) // options.batch * options.epochs
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, p in network.named_parameters():
        groups[p.dim() > 1 and "field" not in name and "gather" not in name].append(p)
    optimizer = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": options.weight_decay}, {"params": groups[False], "weight_decay": 0}],
        lr=options.lr,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=steps, pct_start=0.2)
    average = copy.deepcopy(network)
    source, start = torch.Generator().manual_seed(seed), time.perf_counter()
    best: dict[str, Any] = {"validation": 0.0}
    taken = 0
    for epoch in range(options.epochs):
        for index in torch.randperm(len(stays.death), generator=source).to(device).split(options.batch):
            if len(index) < options.batch:
                continue
            network.train()
            batch = stays.take(index)
            target = batch.death * (1 - 2 * options.smoothing) + options.smoothing
            loss = F.binary_cross_entropy_with_logits(network(thinned(batch, options.thin)), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            taken += 1
            decay = min(options.ema, taken / (taken + 10))
            with torch.no_grad():
                for a, b in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
                    a.lerp_(b, 1 - decay) if a.is_floating_point() else a.copy_(b)
        found = area(predict(average, held), held.death.cpu())
        if found > best["validation"]:
            scores = predict(average, test)
            best = {"validation": found, "test": area(scores, test.death.cpu()), "epoch": epoch + 1, "scores": scores}
        if options.verbose:
            now = area(predict(average, test), test.death.cpu())
            print(f"  epoch {epoch + 1}: validation {found:.4f}, test {now:.4f}", flush=True)
    best["seconds"] = round(time.perf_counter() - start, 1)
    best["parameters"] = sum(p.numel() for p in network.parameters())
    return best


def together(members: list[dict[str, Any]], death: Tensor) -> dict[str, Any]:
    """Return the result of one seed: the area of the mean score of its members, and those of each."""
    scores = torch.stack([member.pop("scores").sigmoid() for member in members]).mean(dim=0)
    seconds = sum(member["seconds"] for member in members)
    return {"test": area(scores, death), "members": members, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["CCNN", "GRU-D"], choices=["CCNN", "GRU-D"])
    parser.add_argument("--members", type=int, default=1, help="networks of one seed, whose predictions are averaged")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.4)
    parser.add_argument("--thin", type=float, default=0.3, help="share of the measurements left out in training")
    parser.add_argument("--smoothing", type=float, default=0.02)
    parser.add_argument("--ema", type=float, default=0.98)
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--kernels", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    splits: Any = tuple(part.to(torch.device(options.device)) for part in load(options.data))
    measured, static = splits[0].values.shape[1], splits[0].static.shape[1]
    makers = {
        "CCNN": lambda: PointsToGrid(
            measured, static, channels=options.channels, blocks=options.blocks, kernels=options.kernels,
            dropout=options.dropout,
        ),
        "GRU-D": lambda: GRUDOfStays(measured, static, hidden=options.channels, dropout=options.dropout),
    }  # fmt: skip
    settings = {k: v for k, v in vars(options).items() if k not in ("out", "data", "verbose", "seeds", "models")}
    result: dict[str, Any] = {"machine": machine(torch.device(options.device), 0), "rows": []}
    if options.out is not None and options.out.exists():
        result = json.loads(options.out.read_text(encoding="utf-8"))
    done = {(row["model"], row["seed"]) for row in result["rows"]}
    for name in options.models:
        for seed in range(options.seeds):
            if (name, seed) in done:
                continue
            members = []
            for member in range(options.members):
                torch.manual_seed(1000 * member + seed)
                members.append(train(makers[name](), splits, options, 1000 * member + seed))
            row = together(members, splits[2].death.cpu())
            result["rows"].append({"model": name, "seed": seed, **row, "settings": settings})
            print(f"{name}, seed {seed}: test {row['test']:.4f}, {row['seconds']} s", flush=True)
            rows = [r for r in result["rows"] if r["model"] == name]
            areas, single = [r["test"] for r in rows], [m["test"] for r in rows for m in r["members"]]
            result[name] = {"mean": float(np.mean(areas)), "std": float(np.std(areas)), "seeds": len(areas)}
            result[name]["mean of single networks"] = float(np.mean(single))
            if options.out is not None:
                options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in options.models:
        print(name, result[name])


if __name__ == "__main__":
    main()

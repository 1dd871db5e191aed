"""An InceptionTime-like network in plain torch, for comparison.

It is one network of 16 filters per branch. InceptionTime is an ensemble of five networks of 32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Inception", "fit_inception"]


class Module(nn.Module):
    """Bottleneck, convolutions of three lengths, a pooled branch, batch norm and ReLU (Fawaz et al., 2020)."""

    def __init__(self, channels: int, filters: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(channels, filters, 1, bias=False) if channels > 1 else nn.Identity()
        inner = filters if channels > 1 else 1
        self.convs = nn.ModuleList(nn.Conv1d(inner, filters, size, padding="same", bias=False) for size in sizes)
        self.pooled = nn.Conv1d(channels, filters, 1, bias=False)
        self.norm = nn.BatchNorm1d(filters * (len(sizes) + 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, 4 · filters, length)."""
        inner = self.bottleneck(x)
        parts = [conv(inner) for conv in self.convs]
        parts.append(self.pooled(F.max_pool1d(x, 3, stride=1, padding=1)))
        return F.relu(self.norm(torch.cat(parts, dim=1)))


class Inception(nn.Module):
    """Two residual blocks of three modules, the mean over time, and a linear map.

    Args:
        channels: of the input.
        out: number of outputs.
        filters: per branch.
        sizes: of the kernels.
    """

    def __init__(self, channels: int, out: int, filters: int = 16, sizes: tuple[int, ...] = (39, 19, 9)) -> None:
        super().__init__()
        width = filters * (len(sizes) + 1)
        self.blocks, self.shortcuts = nn.ModuleList(), nn.ModuleList()
        for block in range(2):
            first = channels if block == 0 else width
            parts = [Module(first if i == 0 else width, filters, sizes) for i in range(3)]
            self.blocks.append(nn.Sequential(*parts))
            self.shortcuts.append(nn.Sequential(nn.Conv1d(first, width, 1, bias=False), nn.BatchNorm1d(width)))
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, out) predictions for series (batch, channels, length)."""
        for block, shortcut in zip(self.blocks, self.shortcuts, strict=True):
            x = F.relu(block(x) + shortcut(x))
        return self.linear(x.mean(dim=2))


def fit_inception(x: np.ndarray, y: np.ndarray, classes: int | None, *, steps: int, seed: int) -> Any:
    """Return a function that predicts logits or values for series.

    Args:
        x: (n, channels, length) training series.
        y: (n,) classes from 0, or values.
        classes: their number; None for a regression.
        steps: of training: Adam with rate 0.001, which falls to 0 as a cosine; batches of 16.
        seed: of weights and batches.
    """
    torch.manual_seed(seed)
    inputs = torch.from_numpy(x).float()
    mean, deviation = inputs.mean(dim=(0, 2), keepdim=True), inputs.std(dim=(0, 2), keepdim=True).clamp(min=1e-8)
    target = torch.from_numpy(y).long() if classes else torch.from_numpy(y).float()
    shift, scale = (0.0, 1.0) if classes else (target.mean(), target.std().clamp(min=1e-8))
    network = Inception(inputs.shape[1], classes or 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batch, order = min(16, len(x)), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(len(x))
        rows, order = order[:batch], order[batch:]
        found = network((inputs[rows] - mean) / deviation)
        wanted = target[rows]
        loss = F.cross_entropy(found, wanted) if classes else F.mse_loss(found[:, 0], (wanted - shift) / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()

    @torch.no_grad()
    def predict(test: np.ndarray) -> np.ndarray:
        normal = (torch.from_numpy(test).float() - mean) / deviation
        found = torch.cat([network(part) for part in normal.split(max(1, math.ceil(20_000 / test.shape[2])))])
        return found.numpy() if classes else (found[:, 0] * scale + shift).numpy()

    return predict

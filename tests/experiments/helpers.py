"""A small experiment that everything here is tried on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelfield.data.base import Data, Split
from kernelfield.experiments.checkpoint import latest_checkpoint, read_checkpoint
from kernelfield.experiments.recipe import Recipe, recipe_from, with_settings

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 16


def small_recipe(*settings: str) -> Recipe:
    """Return a recipe of a tiny causal network: 48 samples, 6 steps an epoch, 3 epochs."""
    recipe = recipe_from(
        {
            "name": "small",
            "data": {"name": "digits"},
            "shape": {"in_channels": 1, "out_channels": 3, "size": [LENGTH]},
            "model": {"name": "ccnn_4_140", "channels": 6, "blocks": 1, "hidden": 8, "sigma": 0.2, "dropout": 0.2},
            "optimizer": {"lr": 0.01, "weight_decay": 0.01, "mask_lr": 0.1},
            "schedule": {"name": "cosine", "warmup": 1},
            "regularizers": {"kernel_l2": 1e-4, "aliasing": 1e-4},
            "training": {"epochs": 3, "batch": 8, "log_every": 2, "checkpoint_every": 2},
        }
    )
    return with_settings(recipe, list(settings))


def small_data(samples: int = 48) -> Data:
    """Return sines of three frequencies in noise."""
    generator = torch.Generator().manual_seed(0)
    splits = []
    for n in (samples, 12, 12):
        labels = torch.arange(n) % 3
        time = torch.arange(LENGTH) / LENGTH
        waves = torch.sin(2 * torch.pi * (labels[:, None] + 1) * time)
        noise = 0.2 * torch.randn(n, LENGTH, generator=generator)
        splits.append(Split((waves + noise).unsqueeze(1), labels))
    return Data(
        name="waves",
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        in_channels=1,
        out_channels=3,
        dim=1,
        size=(LENGTH,),
        task="classification",
        classes=("one", "two", "three"),
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a run's last checkpoint."""
    path = latest_checkpoint(folder / "checkpoints")
    assert path is not None
    return read_checkpoint(path)[0]

"""Intended changes of recipes, by pattern of their names, since their settings were frozen in recipes_before.json.

A key is "section.setting", or a whole section. A new setting that holds its default needs no entry.
"""

from __future__ import annotations

from typing import Any

CHANGES: dict[str, dict[str, Any]] = {
    "ch03-cifar10-*": {"data.padding": "symmetric", "model.dropout_kind": "channels", "optimizer.mask_lr": 0.5},
    "ch03-cifar10-ccnn-4-140": {
        "model.omega_0": 4231.57,
        "model.sigma": 0.375,
        "optimizer.weight_decay": 0.0,
        "schedule.warmup": 5.0,
        "training.epochs": 350,
        "training.batch": 64,
        "training.patience": 100,
        "regularizers": {"kernel_norm": 0.0001},
    },
    "ch03-cifar10-ccnn-6-380": {"model.omega_0": 976.78, "optimizer.lr": 0.01},
    "ch03-cifar100-*": {"model.dropout_kind": "channels", "optimizer.mask_lr": 0.5, "data.augment": False},
    "ch03-cifar100-ccnn-4-140": {"optimizer.weight_decay": 0.0, "regularizers": {"kernel_norm": 0.0001}},
    "ch03-pmnist-*": {"model.dropout_kind": "channels", "optimizer.mask_lr": 0.5},
    "ch03-scifar10-*": {"model.dropout_kind": "channels", "optimizer.mask_lr": 0.5},
    "ch03-scifar10-ccnn-4-140": {"data.padding": "symmetric", "data.augment": True},
    "ch03-smnist-*": {
        "model.dropout_kind": "channels",
        "optimizer.mask_lr": 0.5,
        "regularizers": {"kernel_norm": 1e-06},
    },
    "ch03-smnist-ccnn-4-140": {"optimizer.weight_decay": 0.0},
    "ch03-stl10-*": {"optimizer.mask_lr": 0.5, "model.dropout_kind": "values"},
    "ch03-stl10-ccnn-6-380": {"optimizer.weight_decay": 0.0, "training.batch": 48, "regularizers": {}},
    "ch07-rotmnist-*": {"optimizer.name": "adam", "optimizer.decayed": ["all"]},
    "ch07-rotmnist-z2cnn": {"training.epochs": 300},
    "ch08-pcam-*": {"optimizer.name": "adam", "optimizer.decayed": ["all"]},
    "ch08-rotmnist-*": {"optimizer.name": "adam", "optimizer.decayed": ["all"]},
    "ch09-rotmnist-*": {"optimizer.name": "adam", "optimizer.decayed": ["all"]},
    "ch11-cifar10-*": {
        "optimizer.weight_decay": 0.0,
        "regularizers": {"kernel_norm": {"weight": 0.0001, "parameters": "biases"}},
    },
    "ch11-mnist6-*": {"schedule.name": "constant", "schedule.warmup": 0.0, "schedule.final": 0.0},
    "ch11-mnist6-180-*": {"data.turns": "half"},
    "ch11-pcam-*": {
        "optimizer.weight_decay": 0.0,
        "regularizers": {"kernel_norm": {"weight": 0.0001, "parameters": "biases"}},
    },
    "ch11-rotmnist-se2-*-partial": {"optimizer.subset_lr": 1.0, "regularizers": {"monotonicity": 0.001}},
    "ch11-rotmnist-t2": {"model.pool": [False, True, True]},
}

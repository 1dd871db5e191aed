"""Networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kernelfield import groups, models
from kernelfield.models import registry
from kernelfield.models.wavelet_net import Stage

from .call import Call, backward, forward_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _net(
    name: str, arguments: Callable[[], dict[str, Any]], inputs: Callable[[], dict[str, Any]], label: str = ""
) -> list[Call]:
    build, title = getattr(models, name), f"models.{name}{label}"
    return [
        Call(title, build, arguments, lambda net: backward(net, **inputs())),
        forward_of(title, lambda: build(**arguments()), inputs),
    ]


def _small(**options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"in_channels": 2, "out_channels": 3, **options}


def _x(*shape: int, **options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": torch.randn(2, *shape), **options}


def _narrow(**options: Any) -> Callable[[], dict[str, Any]]:
    return _small(size=8, channels=4, blocks=1, hidden=4, **options)


def _register(name: str, build: Callable[..., nn.Module], summary: str) -> None:
    before = dict(registry._CONFIGURATIONS)
    try:
        models.register(name, build, summary)
    finally:
        registry._CONFIGURATIONS.clear()
        registry._CONFIGURATIONS.update(before)


def _saved() -> dict[str, Any]:
    folder = models.save_pretrained(models.create_model("p4cnn", channels=2), "saved")
    return {"path": str(folder), "num_classes": None}


CALLS = [
    *_net("CCNN", _narrow(), _x(2, 8, step=0.5)),
    *_net("CCNN", _narrow(dim=2, readout="dense"), _x(2, 8, 8), " (dense)"),
    # Some norms and readouts of the constructor exclude queries.
    _net(
        "CCNN",
        _narrow(readout="dense"),
        lambda: {"x": torch.randn(2, 2, 7), "coords": 8 * torch.rand(2, 7, 1), "at": 8 * torch.rand(2, 4, 1)},
        " (at)",
    )[1],
    *_net("CKCNN", _narrow(), _x(2, 8)),
    *_net("FlexTCN", _narrow(), _x(2, 8)),
    *_net("FlexNet", _small(size=6, channels=4, widths=(1, 2), hidden=4), _x(2, 6, 6)),
    *_net("CIFARResNet", _small(size=8, depth=8, channels=2, hidden=4), _x(2, 8, 8, step=0.5)),
    *_net(
        "DNArch",
        lambda: {"network": models.CCNN(2, 3, size=8, channels=4, blocks=1, hidden=4)},
        _x(2, 8),
    ),
    *_net("GCNN", _small(group=groups.Cyclic(4), channels=2), _x(2, 28, 28)),
    *_net("GroupAllCNN", _small(group=groups.Cyclic(4), channels=2), _x(2, 16, 16)),
    *_net("GroupResNet", _small(group=groups.Cyclic(4), channels=(2, 3), blocks=1), _x(2, 8, 8)),
    *_net("GroupUNet", _small(group=groups.Cyclic(4), channels=2, depth=1), _x(2, 6, 6)),
    *_net("GroupNIN", _small(group=groups.Cyclic(4), channels=(2,) * 8), _x(2, 8, 8)),
    *_net("GroupResNetV1", _small(group=groups.Cyclic(4), channels=(2, 3), blocks=1), _x(2, 8, 8)),
    *_net("GroupDenseNet", _small(group=groups.Cyclic(4), growth=2, blocks=2), _x(2, 12, 12)),
    *_net(
        "GSANet",
        _small(group=groups.Cyclic(4), channels=4, widths=((4,), (6,)), heads=2, neighborhood=3),
        _x(2, 8, 8),
    ),
    *_net(
        "PartialGCNN",
        _small(group=groups.SO2(), samples=2, channels=(2, 2, 3, 3), pool=(True, False, False), kernel_size=3),
        _x(2, 8, 8),
    ),
    *_net("PartialGCNN13", _small(group=groups.SO2(), samples=2, channels=2), _x(2, 16, 16)),
    *_net("WaveletNet", _small(stages=[Stage(3, 5, stride=2), Stage(3, interactions=2, pool=2)], scales=3), _x(2, 64)),
    *_net(
        "GridifiedNet",
        _small(dim=2, grid=3, channels=4, blocks=1, kernel_size=3, neighbors=2),
        lambda: {"x": torch.randn(2, 2, 7), "coords": 2 * torch.rand(2, 7, 2) - 1},
    ),
    _net(
        "GridifiedNet",
        _small(dim=2, grid=3, channels=4, blocks=1, kernel_size=3, neighbors=2, readout="dense"),
        lambda: {"x": torch.randn(2, 2, 7), "coords": 2 * torch.rand(2, 7, 2) - 1, "at": torch.rand(2, 4, 2)},
        " (at)",
    )[1],
    *_net("ImageField", lambda: {"in_channels": 2, "out_channels": 3}, lambda: {"x": torch.zeros(1, 2, 6, 4)}),
    # Its forward is that of a user's network.
    _net(
        "Augerino",
        lambda: {"net": nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), "group": groups.SO2(), "samples": 2},
        _x(2, 6, 6),
    )[0],
    Call(
        "models.create_model",
        models.create_model,
        lambda: {"name": "p4cnn"},
        lambda net: backward(net, torch.randn(2, 1, 28, 28)),
    ),
    Call(
        "models.save_pretrained",
        models.save_pretrained,
        lambda: {"network": models.create_model("p4cnn", channels=2), "folder": "saved"},
        ends_with=(ModuleNotFoundError,),  # the hub
    ),
    Call("models.from_pretrained", models.from_pretrained, _saved),
    Call("models.describe_weight", models.describe_weight, lambda: {"name": "flextcn_2.smnist"}),
    Call("models.list_models", models.list_models, lambda: {"pattern": "ccnn*"}),
    Call(
        "models.register",
        _register,
        lambda: {"name": "fuzzed", "build": models.CCNN, "summary": "A network that tests register."},
    ),
]

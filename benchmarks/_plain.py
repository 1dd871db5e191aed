"""The networks of benchmarks/groups.py in other libraries' modules: torch's own, and e2cnn's where it is installed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

try:
    from e2cnn import gspaces
    from e2cnn import nn as enn
except ImportError:
    enn = None

__all__ = ["e2cnn_all_cnn", "e2cnn_cnn", "e2cnn_residual", "enn", "plain_all_cnn", "plain_cnn", "plain_residual"]


def plain_cnn(width: int) -> nn.Module:
    """The layers of ``GCNN`` on the plane."""
    layers: list[nn.Module] = []
    channels = 1
    for i in range(6):
        layers += [nn.Conv2d(channels, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i == 1 else [nn.Dropout(0.3)]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(width, 10, 4, bias=False), nn.Flatten(1))


def plain_all_cnn(width: int) -> nn.Module:
    """The layers of ``GroupAllCNN`` on the plane."""
    layers: list[nn.Module] = [nn.Dropout(0.2)]
    channels = 3
    for layer, (out, size) in enumerate(_all_cnn_layers(width, 10), start=1):
        layers.append(nn.Conv2d(channels, out, size, padding=size // 2, bias=False))
        layers += [nn.MaxPool2d(2)] if layer in (3, 6) else []
        layers += [nn.BatchNorm2d(out), nn.ReLU()]
        layers += [nn.Dropout(0.5)] if layer in (3, 6) else []
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1))


class PlainResidual(nn.Module):
    """The layers of ``PartialGCNN`` on the plane."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lift, self.norm_in = nn.Conv2d(inputs, width, 7, padding=3), nn.BatchNorm2d(width)
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, 7, padding=3)
            for i, o in ((width, width), (width, width), (width, 2 * width), (2 * width, 2 * width))
        )
        self.shortcuts = nn.ModuleList(nn.Conv2d(width, o, 1, bias=False) for o in (width, 2 * width))
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o in (width, 2 * width))
        self.last, self.norm_out = nn.Conv2d(2 * width, 2 * width, 7), nn.BatchNorm2d(2 * width)
        self.linear = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.norm_in(self.lift(x)), 2))
        for block, (shortcut, norm) in enumerate(zip(self.shortcuts, self.norms, strict=True)):
            y = F.relu(F.instance_norm(self.convs[2 * block](x)))
            y = F.relu(F.instance_norm(self.convs[2 * block + 1](y))) + shortcut(x)
            y = norm(y)
            x = F.relu(F.max_pool2d(y, 2) if block == 0 else y)
        return self.linear(F.relu(self.norm_out(self.last(x))).amax(dim=(2, 3)))


def plain_residual(inputs: int, width: int) -> nn.Module:
    return PlainResidual(inputs, width)


class E2Net(nn.Module):
    """e2cnn's modules between tensors.

    Args:
        net: from the field type of the input to regular or trivial ones.
        kind: the field type of the input.
        head: from the tensor of the last layer to the logits.
    """

    def __init__(self, net: nn.Module, kind: Any, head: Any) -> None:
        super().__init__()
        self.net, self.kind, self.head = net, kind, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(enn.GeometricTensor(x, self.kind)).tensor)


def e2cnn_cnn(n: int, mirrored: bool, width: int) -> nn.Module:
    """The layers of ``GCNN``; the last kernel is larger by one, since e2cnn has no even sizes."""
    space = _space(n, mirrored)
    regular, classes = _regular(space, width), _regular(space, 10)
    here = source = _plain(space, 1)
    layers: list[nn.Module] = []
    for i in range(6):
        layers += [enn.R2Conv(here, regular, 3, bias=False), enn.InnerBatchNorm(regular), enn.ReLU(regular)]
        layers += [enn.PointwiseMaxPool(regular, 2, 2)] if i == 1 else [enn.PointwiseDropout(regular, 0.3)]
        here = regular
    layers += [enn.R2Conv(regular, classes, 5, padding=1, bias=False), enn.GroupPooling(classes)]
    return E2Net(enn.SequentialModule(*layers), source, lambda x: x.amax(dim=(-2, -1)))


def e2cnn_all_cnn(n: int, mirrored: bool, width: int) -> nn.Module:
    """The layers of ``GroupAllCNN``."""
    space = _space(n, mirrored)
    here = source = _plain(space, 3)
    layers: list[nn.Module] = [enn.PointwiseDropout(source, 0.2)]
    for layer, (out, size) in enumerate(_all_cnn_layers(width, 10), start=1):
        there = _regular(space, out)
        layers.append(enn.R2Conv(here, there, size, padding=size // 2, bias=False))
        layers += [enn.PointwiseMaxPool(there, 2, 2)] if layer in (3, 6) else []
        layers += [enn.InnerBatchNorm(there), enn.ReLU(there)]
        layers += [enn.PointwiseDropout(there, 0.5)] if layer in (3, 6) else []
        here = there
    order = n * (2 if mirrored else 1)
    net = enn.SequentialModule(*layers)
    return E2Net(net, source, lambda x: x.unflatten(1, (10, order)).mean(dim=(2, 3, 4)))


def e2cnn_residual(inputs: int, n: int, width: int) -> nn.Module:
    """The convolutions of ``PartialGCNN`` over n rotations, in sequence: e2cnn has no norm over group and space."""
    space = _space(n, mirrored=False)
    narrow, wide = _regular(space, width), _regular(space, 2 * width)
    source = _plain(space, inputs)
    layers = [enn.R2Conv(source, narrow, 7, padding=3), enn.InnerBatchNorm(narrow), enn.PointwiseMaxPool(narrow, 2, 2)]
    layers.append(enn.ReLU(narrow))
    for here, there, pooled in (
        (narrow, narrow, False),
        (narrow, narrow, True),
        (narrow, wide, False),
        (wide, wide, False),
    ):
        layers += [enn.R2Conv(here, there, 7, padding=3), enn.InnerBatchNorm(there)]
        layers += [enn.PointwiseMaxPool(there, 2, 2)] if pooled else []
        layers.append(enn.ReLU(there))
    layers += [enn.R2Conv(wide, wide, 7), enn.InnerBatchNorm(wide), enn.ReLU(wide), enn.GroupPooling(wide)]
    net = E2Net(enn.SequentialModule(*layers), source, lambda x: x.amax(dim=(-2, -1)))
    return nn.Sequential(net, nn.Linear(2 * width, 10))


def _all_cnn_layers(width: int, classes: int) -> list[tuple[int, int]]:
    """Channels and kernel size of the nine convolutions."""
    return [*[(width, 3)] * 3, *[(2 * width, 3)] * 4, (2 * width, 1), (classes, 1)]


def _space(n: int, mirrored: bool) -> Any:
    return gspaces.FlipRot2dOnR2(n) if mirrored else gspaces.Rot2dOnR2(n)


def _regular(space: Any, width: int) -> Any:
    return enn.FieldType(space, width * [space.regular_repr])


def _plain(space: Any, channels: int) -> Any:
    return enn.FieldType(space, channels * [space.trivial_repr])

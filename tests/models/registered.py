"""Every registered network, narrow and with an input that it takes: for tests that run over all of them."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelfield import create_model, list_models
from kernelfield.models.registry import configuration

__all__ = ["CAUSAL", "NAMES", "Example", "example", "small_by_default"]

NAMES = list_models()
#: networks whose convolutions are causal
CAUSAL = [
    name
    for name in NAMES
    if configuration(name).build.__name__ in ("CKCNN", "FlexTCN", "CCNN")
    and configuration(name).arguments.get("dim", 1) == 1
    and configuration(name).arguments.get("causal") is not False
]


@dataclass(frozen=True)
class Example:
    """A network and the arguments of one forward pass.

    Args:
        network: the network, in training mode.
        inputs: (batch, channels, ...) input, or token ids.
        options: keyword arguments of ``forward``.
    """

    network: nn.Module
    inputs: Tensor
    options: dict[str, Any]

    def __call__(self) -> Tensor:
        return self.network(self.inputs, **self.options)

    def double(self) -> Example:
        """Return a copy in float64; token ids stay integers."""
        inputs = self.inputs.double() if self.inputs.is_floating_point() else self.inputs
        options = {key: value.double() for key, value in self.options.items()}
        return Example(copy.deepcopy(self.network).double(), inputs, options)


def example(name: str, batch: int = 2) -> Example:
    """Return a registered network, with its depth, group and fields but few channels, and an input for it."""
    torch.manual_seed(1)
    family = configuration(name).build.__name__
    return _FAMILIES[family](name, batch)


def small_by_default(names: list[str], heavy: str | None = None) -> list[Any]:
    """Return ``names`` as parameters of a test: of networks that differ in size alone, all but one are slow.

    Networks whose names match the pattern ``heavy`` are slow too.
    """
    sizes = ("blocks", "channels", "widths", "omega_0", "hidden_omega_0")
    kinds: dict[str, list[str]] = {}
    for name in names:
        found = configuration(name)
        kind = {key: value for key, value in found.arguments.items() if key not in sizes}
        kinds.setdefault(f"{found.build.__name__} {sorted(kind.items(), key=str)}", []).append(name)
    smallest = {min(group, key=lambda name: _given(name, "blocks", 0)) for group in kinds.values()}
    quick = {name for name in smallest if heavy is None or not re.search(heavy, name)}
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def _given(name: str, key: str, default: Any = None) -> Any:
    return configuration(name).arguments.get(key, default)


def _sequences(name: str, batch: int) -> Example:
    if _given(name, "vocabulary"):
        network = create_model(name, size=12, channels=(6, 4), in_channels=4, hidden=4)
        return Example(network, torch.randint(0, 50, (batch, 12)), {})
    network = create_model(name, in_channels=2, out_channels=3, size=20, channels=4, hidden=4)
    return Example(network, torch.randn(batch, 2, 20), {})


def _continuous(name: str, batch: int) -> Example:
    if _given(name, "dim") == 3:
        network = create_model(name, channels=4, hidden=4, neighbors=5)
        return Example(network, torch.randn(batch, 6, 9), {"coords": 2 * torch.rand(batch, 9, 3) - 1})
    network = create_model(name, in_channels=2, out_channels=3, size=20, channels=4, hidden=4)
    return Example(network, torch.randn(batch, 2, 20), {})


def _images(name: str, batch: int) -> Example:
    network = create_model(name, in_channels=2, out_channels=3, size=8, channels=4, hidden=4)
    return Example(network, torch.randn(batch, 2, 8, 8), {})


def _planes(side: int, **narrow: Any) -> Any:
    def build(name: str, batch: int) -> Example:
        network = create_model(name, **narrow)
        channels = _given(name, "in_channels", narrow.get("in_channels", 3))
        return Example(network, torch.randn(batch, channels, side, side), {})

    return build


def _wavelets(name: str, batch: int) -> Example:
    stages = [stage._replace(channels=3) for stage in _given(name, "stages")]
    # Pooling and strides leave at least a sample of the shortest of these lengths.
    length = {"m39": 3**10, "w39": 3**10, "cnn1d": 16000, "w_cnn1d": 16000}.get(name, 8000)
    narrow: dict[str, Any] = {"hidden": (4, 4), "size": length} if _given(name, "head") == "dense" else {}
    network = create_model(name, stages=stages, out_channels=3, **narrow)
    return Example(network, torch.randn(batch, 1, length), {})


def _clouds(name: str, batch: int) -> Example:
    channels = _given(name, "in_channels")
    network = create_model(name, channels=4, grid=3, kernel_size=3, neighbors=3)
    return Example(network, torch.randn(batch, channels, 12), {"coords": 2 * torch.rand(batch, 12, 3) - 1})


def _attention(name: str, batch: int) -> Example:
    widths = tuple(tuple(3 for _ in stage) for stage in _given(name, "widths"))
    network = create_model(name, channels=3, widths=widths, heads=3, neighborhood=3, out_channels=3)
    side = {"rotmnist": 22, "cifar10": 8, "pcam": 56}[name.split("_")[1]]
    if name.endswith("rotmnist_z2"):
        side = 26  # layer norms of the last maps see more than one value
    return Example(network, torch.randn(batch, _given(name, "in_channels", 1), side, side), {})


def _fields(name: str, batch: int) -> Example:
    return Example(create_model(name), torch.rand(batch, 2, 5, 5) * 2 - 1, {})


_FAMILIES: dict[str, Any] = {
    "CCNN": _continuous,
    "learned_ccnn": _continuous,
    "CKCNN": _sequences,
    "FlexTCN": _sequences,
    "FlexNet": _images,
    "CIFARResNet": _images,
    "GCNN": _planes(28, channels=3, in_channels=1),
    "GroupAllCNN": _planes(8, channels=2, in_channels=3),
    "GroupResNet": _planes(8, channels=(2, 3, 4), in_channels=3),
    "GroupNIN": _planes(8, channels=(3,) * 8, in_channels=3),
    "GroupResNetV1": _planes(8, channels=(2, 3, 4), in_channels=3),
    "GroupUNet": _planes(9, channels=2, in_channels=2, out_channels=3),
    "GroupDenseNet": _planes(96, growth=2, in_channels=3),
    "PartialGCNN": _planes(14, channels=(2, 2, 3, 3), kernel_size=3, in_channels=1),
    "augerino_gcnn": _planes(14, channels=(2, 2, 3, 3), kernel_size=3, in_channels=1),
    "augerino_gcnn13": _planes(12, channels=2, in_channels=1),
    "PartialGCNN13": _planes(12, channels=2, in_channels=1),
    "GSANet": _attention,
    "WaveletNet": _wavelets,
    "GridifiedNet": _clouds,
    "ImageField": _fields,
}

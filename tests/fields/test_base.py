"""A field of one's own that breaks the contract is named, with what it must define or return."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import kernelfield as kf


class Cosines(kf.fields.Field):
    def __init__(self, dim: int, channels: int) -> None:
        super().__init__(dim, channels)
        self.weight = nn.Parameter(torch.randn(channels, dim))

    def evaluate(self, coords: Tensor) -> Tensor:
        return torch.cos(coords @ self.weight.mT)


class OneValue(Cosines):
    def evaluate(self, coords: Tensor) -> Tensor:
        return super().evaluate(coords)[..., :1]


class ChannelsFirst(Cosines):
    def evaluate(self, coords: Tensor) -> Tensor:
        return super().evaluate(coords).movedim(-1, 0)


@pytest.mark.parametrize("field", [OneValue, ChannelsFirst])
def test_values_of_another_shape_are_refused(field: type[Cosines]) -> None:
    with pytest.raises(ValueError, match=rf"{field.__name__}\.evaluate must return .*\(7, 3\) .*, got \((7, 1|3, 7)\)"):
        field(2, 3)(torch.rand(7, 2))
    with pytest.raises(ValueError, match=rf"{field.__name__}\.evaluate must"):
        kf.CKConv(1, 3, size=4, field=field)
    assert Cosines(2, 3)(torch.rand(5, 7, 2)).shape == (5, 7, 3)


def test_missing_methods_are_named() -> None:
    with pytest.raises(NotImplementedError, match=r"Cosines must define scale_\(factor\)"):
        kf.CKConv(1, 3, size=4, field=Cosines)
    with pytest.raises(NotImplementedError, match=r"Field must define evaluate\(coords\)"):
        kf.fields.Field(1, 1)(torch.rand(3, 1))


class WithFeatures(Cosines):
    def features(self, coords: Tensor) -> Tensor:
        return coords


def test_missing_methods_of_fields_with_a_last_linear_map_are_named() -> None:
    with pytest.raises(NotImplementedError, match=r"WithFeatures must define readout\(\)"):
        WithFeatures(2, 3)(torch.rand(7, 2), channels=2)
    with pytest.raises(NotImplementedError, match=r"WithFeatures must define features_from\("):
        WithFeatures(2, 3).features_from(torch.rand(7, 2), [])


def test_missing_methods_of_filter_networks_are_named() -> None:
    net = kf.fields.FilterNetwork(1, 3, gamma=torch.ones(()))
    with pytest.raises(NotImplementedError, match=r"FilterNetwork must define envelope\("):
        net(torch.rand(5, 1))
    with pytest.raises(NotImplementedError, match=r"FilterNetwork must define inverse_widths\(\)"):
        net.max_frequency()

"""The continuous layers keep the contract."""

from __future__ import annotations

from typing import Any, ClassVar

from kernelfield import CKConv, FlexConv, SeparableConv
from tests.contracts.layers import ContinuousLayerContract


class TestCKConv(ContinuousLayerContract):
    layer = CKConv


class TestFlexConv(ContinuousLayerContract):
    layer = FlexConv
    arguments: ClassVar[dict[str, Any]] = {"sigma": 0.2}


class TestSeparableConv(ContinuousLayerContract):
    layer = SeparableConv
    arguments: ClassVar[dict[str, Any]] = {"sigma": 0.2}


class TestSeparableConvWithoutMask(ContinuousLayerContract):
    layer = SeparableConv
    arguments: ClassVar[dict[str, Any]] = {"sigma": None}

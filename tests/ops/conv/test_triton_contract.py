"""The Triton method keeps the contract of a convolution, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.convolutions import Case, ConvContract
from tests.ops.interpreted import DEVICE, interpreter

__all__ = ["interpreter"]

slow = pytest.mark.slow
DEPTHWISE = {
    "line": Case((2, 3, 9), (3, 1, 14), groups=3),
    "causal": Case((2, 2, 5), (2, 1, 5), groups=2, causal=True),
    "circle, twice as long": Case((1, 2, 4), (2, 1, 8), groups=2, boundary="periodic"),
    "valid": Case((2, 3, 6), (3, 1, 4), groups=3, boundary="valid"),
    "cylinder": Case((1, 2, 3, 4), (2, 1, 3, 5), groups=2, boundary=("periodic", "zero")),
    "plane, valid and zero": Case((1, 2, 4, 3), (2, 1, 3, 2), groups=2, boundary=("valid", "zero")),
    "space": Case((1, 2, 2, 3, 2), (2, 1, 3, 2, 1), groups=2),
}


#: by default; the layouts' own tests go through all kinds
FAST = ("causal", "circle, twice as long", "plane, valid and zero", "space")


class TestTriton(ConvContract):
    method = "triton"
    precise = torch.float32
    depthwise = True
    device = DEVICE

    @pytest.fixture(
        params=[pytest.param(c, marks=() if n in FAST else slow) for n, c in DEPTHWISE.items()], ids=DEPTHWISE
    )
    def case(self, request: pytest.FixtureRequest) -> Case:
        found: Case = request.param
        return found

    @settings(max_examples=4, derandomize=True)
    @given(data=st.data())
    def test_equals_the_reference_in_float32(self, data: st.DataObject) -> None:
        self.assert_equals_the_reference(data, torch.float32)

    @settings(max_examples=3, derandomize=True)
    @given(data=st.data())
    def test_gradients_are_those_of_the_reference(self, data: st.DataObject) -> None:
        case = data.draw(st.sampled_from(list(DEPTHWISE.values())))
        self.assert_gradients_are_those_of_the_reference(case)

    @slow
    @settings(max_examples=50)
    @given(data=st.data())
    def test_any_shape_equals_the_reference(self, data: st.DataObject) -> None:
        self.assert_equals_the_reference(data, torch.float32)

    # One kind by default: the layouts' own tests go through all of them.
    @pytest.mark.parametrize("name", [n if n == "line" else pytest.param(n, marks=slow) for n in DEPTHWISE])
    def test_compiles(self, name: str) -> None:  # type: ignore[override]
        super().test_compiles(DEPTHWISE[name])

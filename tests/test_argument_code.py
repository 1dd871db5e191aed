"""Compiled wrappers of checked functions: accepted arguments take the fast path, others get an error by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelfield._arguments import checked
from kernelfield._kinds import Int
from kernelfield._object_kinds import TensorOf


def test_declared_options_are_checked_by_the_compiled_expression() -> None:
    class Counted(Int):
        def accepts(self, value: Any, given: Any) -> bool:
            slow.append(value)
            return super().accepts(value, given)

    slow: list[Any] = []

    @checked(hidden=Counted(1), weight=TensorOf("float", "out"))
    def build(**options: Any) -> Any:
        return options

    assert build(hidden=3, other="x") == {"hidden": 3, "other": "x"}
    assert not slow
    with pytest.raises(ValueError, match="hidden"):
        build(hidden=0)
    with pytest.raises(TypeError, match="weight"):
        build(weight=1.0)
    assert build(weight=torch.ones(2)).keys() == {"weight"}

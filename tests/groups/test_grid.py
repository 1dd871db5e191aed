"""Signals on grids under linear maps."""

from __future__ import annotations

import pytest
import torch

from kernelfield.groups.grid import warp


def test_singular_maps_are_refused() -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        warp(torch.randn(1, 5, 5), torch.zeros(1, 2, 2))

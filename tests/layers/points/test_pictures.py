"""Pictures of gridification are drawn, in the plane and in space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import Gridify
from kernelfield.viz.clouds import plot_gridification

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("dim", [2, 3])
def test_a_cloud_its_grid_and_its_edges(dim: int, tmp_path: Path) -> None:
    layer = Gridify(1, 2, dim=dim, grid=3, neighbors=2, extent=(0.0, 4.0))
    plot_gridification(layer, 4 * torch.rand(20, dim), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_a_line_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\blayer must"):
        plot_gridification(Gridify(1, 2, dim=1), torch.rand(20, 1), tmp_path / "a.png")

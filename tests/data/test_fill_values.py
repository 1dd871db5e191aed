"""Codes of missing values, such as -999, are announced: they would set the scale of their channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data.base import Batch
from kernelfield.data.preprocessing import compare_values
from kernelfield.data.sets.arrays import arrays
from kernelfield.data.sets.series.csv_series import csv_series
from kernelfield.data.transforms.fill_values import compare_fill_values

if TYPE_CHECKING:
    from pathlib import Path


def temperatures() -> torch.Tensor:
    return 60 + 5 * torch.randn(8, 1, 40, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("code", [-999.0, 9999.0, -99.9, 65535.0, 1e20, -1e30, 9.96921e36])
def test_codes_of_missing_values_are_announced(code: float) -> None:
    values = temperatures()
    values[0, 0, 3] = values[5, 0, 7] = code
    with pytest.warns(UserWarning, match=r"channel 'temp' of x is .* in 2 places, and elsewhere mostly .* empty cell"):
        compare_fill_values(values, ("temp",), "x")


def test_both_ends_are_announced() -> None:
    values = temperatures()
    values[0, 0, 0], values[0, 0, 1] = -999, 9999
    with pytest.warns(UserWarning, match="mostly") as found:
        compare_fill_values(values, (), "x")
    assert len(found) == 2


@pytest.mark.parametrize("case", ["no code", "in the range", "few values", "missing", "integers"])
def test_other_values_are_not(case: str) -> None:
    values = temperatures()
    if case == "no code":
        values[0, 0, 0] = -500  # an outlier
    elif case == "in the range":
        values = torch.arange(100.0).view(1, 1, 100)  # up to 99
    elif case == "few values":
        values = torch.tensor([0.0, 1, 999]).repeat(9).view(1, 1, -1)  # a category
    elif case == "missing":
        values = values * torch.nan
    else:
        values = values.int()
        values[0, 0, 0] = 999
    compare_fill_values(values, (), "x")


def test_they_are_announced_in_files_and_in_new_samples(tmp_path: Path) -> None:
    values = temperatures().numpy()
    np.savez(tmp_path / "good.npz", x=values, y=np.arange(8) % 2)
    data = arrays(tmp_path / "good.npz")
    values[0, 0, 0] = -999
    np.savez(tmp_path / "bad.npz", x=values, y=np.arange(8) % 2)
    with pytest.warns(UserWarning, match=r"channel 0 of .*bad.npz is -999 in 1 places"):
        arrays(tmp_path / "bad.npz")
    with pytest.warns(UserWarning, match="channel 0 of new is -999"):
        compare_values(Batch(torch.from_numpy(values)), data, "new")
    rows = [f"{i},{t},{v},{i % 2}" for i, row in enumerate(values[:, 0]) for t, v in enumerate(row)]
    (tmp_path / "long.csv").write_text("\n".join(["id,time,value,label", *rows]))
    with pytest.warns(UserWarning, match="channel 'value' of long is -999"):
        csv_series(tmp_path / "long.csv")

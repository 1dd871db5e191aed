"""Figures of kernels show what the kernels are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CCNN, CKConv, FlexNet, aliasing_loss
from kernelfield.layers.penalties import kernel_frequency, nyquist
from kernelfield.viz.kernels import plot_channel_images, plot_frequencies

if TYPE_CHECKING:
    from pathlib import Path


def small() -> FlexNet:
    torch.manual_seed(0)
    return FlexNet(1, 2, size=8, channels=2, widths=(1,), hidden=4, omega_0=4.0, sigma=0.3)


def test_frequencies_fall_where_l_hf_was_minimised(tmp_path: Path) -> None:
    plain, limited = small(), small()
    optimizer = torch.optim.Adam(limited.parameters(), lr=1.0)
    for _ in range(60):
        optimizer.zero_grad()
        aliasing_loss(limited, with_mask=False).backward()
        optimizer.step()
    shares = plot_frequencies({"without": plain, "with L_HF": limited}, tmp_path / "frequencies.png")
    assert (tmp_path / "frequencies.png").stat().st_size > 10_000
    assert len(shares["without"]) == len(shares["with L_HF"]) == 3
    assert all(low < 0.7 * high for low, high in zip(shares["with L_HF"], shares["without"], strict=True))
    assert shares["without"][0] == pytest.approx(kernel_frequency(plain.stem).item() / nyquist(plain.stem))


def test_networks_of_sequences_are_drawn_channel_by_channel(tmp_path: Path) -> None:
    plot_channel_images(CCNN(1, 2, size=32, channels=4, blocks=2), tmp_path / "images.png")
    assert (tmp_path / "images.png").stat().st_size > 5_000


def test_models_without_such_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model .*dim=2"):
        plot_channel_images(CKConv(1, 1, dim=2, size=4), tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"model .*Linear"):
        plot_frequencies({"a": torch.nn.Linear(2, 2)}, tmp_path / "a.png")


def test_a_name_without_a_suffix_is_a_png_and_leaves_no_other_file(tmp_path: Path) -> None:
    plot_channel_images(CCNN(1, 2, size=32, channels=4, blocks=2), tmp_path / "images")
    assert (tmp_path / "images").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["images"]

"""Darcy flow, solved and read in three layouts, and Cosmic as deepCR's archives unpack it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kernelfield.data import load
from kernelfield.data.sets.physics.darcy import HIGH, LOW, darcy_synthetic, permeability, solve_darcy

if TYPE_CHECKING:
    from pathlib import Path


def test_the_solver_converges_to_a_known_solution() -> None:
    """With a(x) = 1 + x and u(x, y) = sin(πx) sin(πy), f = -∇·(a ∇u) has a closed form."""
    errors = []
    for n in (16, 32):
        x = torch.arange(n, dtype=torch.float64) / n
        x, y = torch.meshgrid(x, x, indexing="ij")
        u = torch.sin(torch.pi * x) * torch.sin(torch.pi * y)
        f = 2 * torch.pi**2 * (1 + x) * u - torch.pi * torch.cos(torch.pi * x) * torch.sin(torch.pi * y)
        found = solve_darcy((1 + x).unsqueeze(0), f.unsqueeze(0))[0]
        errors.append(float((found - u).norm() / u.norm()))
    assert errors[1] < 0.01
    assert errors[1] < 0.6 * errors[0]


def test_the_solver_solves_its_equations() -> None:
    a = torch.where(permeability(3, 12, generator=torch.Generator().manual_seed(0)), HIGH, LOW)
    u = solve_darcy(a, tolerance=1e-10)
    assert (u[:, 0] == 0).all()
    assert (u[:, :, 0] == 0).all()
    assert (u[:, 1:, 1:] > 0).all()
    # The flux out of every cell is its source.
    wide = torch.nn.functional.pad(u, (0, 1, 0, 1))
    thick = torch.nn.functional.pad(a.double().unsqueeze(1), (0, 1, 0, 1), mode="replicate").squeeze(1)
    total = torch.zeros_like(u[:, 1:, 1:])
    here, at = wide[:, 1:-1, 1:-1], thick[:, 1:-1, 1:-1]
    for i, j in ((0, 1), (2, 1), (1, 0), (1, 2)):
        there, b = wide[:, i : i + 11, j : j + 11], thick[:, i : i + 11, j : j + 11]
        total += 2 * at * b / (at + b) * (here - there)
    torch.testing.assert_close(total, torch.full_like(total, 1 / 144), rtol=1e-6, atol=0)


def test_solver_arguments() -> None:
    with pytest.raises(ValueError, match=r"\ba must"):
        solve_darcy(torch.ones(4, 4))
    with pytest.raises(ValueError, match=r"\ba must"):
        solve_darcy(torch.zeros(1, 4, 4))
    with pytest.raises(ValueError, match=r"\bresolution must"):
        darcy_synthetic(12)


def test_synthetic_samples_are_the_same_at_every_resolution() -> None:
    coarse, fine = (darcy_synthetic(n, train=3, validation=2, test=2, solve_at=16) for n in (8, 16))
    torch.testing.assert_close(coarse.test.inputs, fine.test.inputs[..., ::2, ::2])
    torch.testing.assert_close(
        coarse.test.target / coarse.test.target.norm(),
        fine.test.target[..., ::2, ::2] / fine.test.target[..., ::2, ::2].norm(),
    )
    assert len(coarse.validation) == 2
    assert darcy_synthetic(8, train=2, test=1, validation=0, coordinates=False, solve_at=8).in_channels == 1


def samples(n: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(n)
    return generator.random((n, side, side)) > 0.5, generator.random((n, side, side)).astype(np.float32)


def test_darcy_from_one_file(tmp_path: Path) -> None:
    arrays = {}
    for part, n, side in (("train", 12, 8), ("test", 3, 8), ("test", 4, 16)):
        arrays[f"x_{part}_{side}"], arrays[f"y_{part}_{side}"] = samples(n, side)
    np.savez(tmp_path / "darcy_small.npz", **arrays)
    for root in (tmp_path, tmp_path / "darcy_small.npz"):
        data = load("darcy", root, resolution=8, validation=2)
        assert (len(data.train), len(data.validation)) == (10, 2)
        batch = data.test.batch(slice(0, 3))
        torch.testing.assert_close(batch.inputs[:, 0], torch.from_numpy(arrays["x_test_8"]).float() - 0.5)
        torch.testing.assert_close(batch.inputs[0, 1, :, 0], torch.arange(8) / 4 - 1)
        ratio = batch.target[:, 0] / torch.from_numpy(arrays["y_test_8"])
        torch.testing.assert_close(ratio, torch.full_like(ratio, 1 / float(arrays["y_train_8"].std(ddof=1))))
        assert load("darcy", root, resolution=8, test_resolution=16, validation=0).test.inputs.shape == (4, 3, 16, 16)
    with pytest.raises(ValueError, match="found x_test_16"):
        load("darcy", tmp_path, resolution=32)
    (tmp_path / "bad.npz").write_bytes(b"no arrays")
    with pytest.raises(ValueError, match=r"bad\.npz must"):
        load("darcy", tmp_path / "bad.npz")


def test_transposed_flows_are_flows(tmp_path: Path) -> None:
    high = permeability(6, 8, generator=torch.Generator().manual_seed(1))
    flows = {"x": high.numpy(), "y": solve_darcy(torch.where(high, HIGH, LOW), tolerance=1e-12).numpy()}
    np.savez(tmp_path / "darcy.npz", **{f"{k}_{part}_8": v for k, v in flows.items() for part in ("train", "test")})
    data = load("darcy", tmp_path, resolution=8, validation=0, augment=True)
    torch.manual_seed(0)
    batch, plain = (data.train.batch(slice(0, 6), training=training) for training in (True, False))
    changed = (batch.inputs != plain.inputs).flatten(1).any(dim=1)
    assert 0 < changed.sum() < 6
    assert torch.equal(batch.inputs[:, 1:], plain.inputs[:, 1:])  # coordinates stay where they are
    solved = solve_darcy(torch.where(batch.inputs[:, 0] > 0, HIGH, LOW), tolerance=1e-12)
    scale = flows["y"].std(ddof=1)
    torch.testing.assert_close(batch.target[:, 0].double() * scale, solved, rtol=1e-4, atol=1e-6)
    assert data.test.prepare is None


def test_darcy_of_neuraloperator(tmp_path: Path) -> None:
    for part, n in (("train", 6), ("test", 3)):
        x, y = (torch.from_numpy(array) for array in samples(n, 16))
        torch.save({"x": x, "y": y}, tmp_path / f"darcy_{part}_16.pt")
    assert load("darcy", tmp_path, validation=1).train.inputs.shape == (5, 3, 16, 16)
    with pytest.raises(ValueError, match=rf"{tmp_path} must hold .*found darcy_test_16\.pt, darcy_train_16\.pt"):
        load("darcy", tmp_path, resolution=8)


def test_darcy_of_the_fourier_neural_operator(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    for name, n in (("smooth1", 5), ("smooth2", 2)):
        x, y = samples(n, 21)
        scipy_io.savemat(tmp_path / f"piececonst_r421_N1024_{name}.mat", {"coeff": np.where(x, 12.0, 3.0), "sol": y})
    data = load("darcy", tmp_path, resolution=6, validation=1)
    assert data.size == (6, 6)
    assert set(data.test.inputs[:, 0].unique().tolist()) == {-0.5, 0.5}
    torch.testing.assert_close(data.test.inputs[0, 1, :, 0], torch.arange(6) / 2.5 - 1)  # both edges are samples
    with pytest.raises(ValueError, match=r"\bresolution must"):
        load("darcy", tmp_path, resolution=7)


def test_cosmic(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, n in (("npy_train", 10), ("npy_test", 2)):
        where = tmp_path / "deepCR.ACS-WFC" / part / "f435" / "1234" / "visit_1"
        where.mkdir(parents=True)
        np.save(where / "sky.npy", np.zeros(3))
        for i in range(n):
            image = generator.normal(100, 20, (1, 9, 8))
            np.save(where / f"{i}.npy", np.concatenate([image, generator.random((2, 9, 8)) > 0.8]))
    data = load("cosmic", tmp_path, resolution=4)
    assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 8)
    assert data.train.inputs.shape == (36, 1, 4, 4)
    assert float(data.train.inputs.mean()) == pytest.approx(100, abs=5)  # as measured
    seen = data.train.batch(slice(None)).inputs[data.train.mask.unsqueeze(1)]
    assert abs(float(seen.mean())) < 1e-4
    assert float(seen.std()) == pytest.approx(1, abs=1e-4)
    assert set(data.train.target.unique().tolist()) == {0, 1}
    assert 0.7 < float(data.train.mask.float().mean()) < 0.9
    assert load("cosmic", tmp_path, resolution=8, most=2, validation=0.0).validation is None
    with pytest.raises(ValueError, match=r"\w+\.np[yz]? .*found \(3, 9, 8\)"):
        load("cosmic", tmp_path, resolution=16)

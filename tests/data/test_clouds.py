"""Point clouds: made, sampled from meshes, and read from their public layouts in small copies of them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield.data import Data, load
from kernelfield.data.base import Batch
from kernelfield.data.io.meshes import read_off, sample_mesh
from kernelfield.data.sets.clouds.cloud_folder import read_clouds
from kernelfield.data.sets.clouds.shapenet_part import PARTS, part_iou
from kernelfield.data.sets.synthetic.solids import SURFACES
from kernelfield.data.transforms.clouds import ChoosePoints, NormalizePoints, normalized

if TYPE_CHECKING:
    from pathlib import Path

TETRAHEDRON = "OFF\n4 4 6\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 2 1\n3 0 1 3\n3 0 3 2\n3 1 2 3\n"
FEW: dict[str, Any] = {"train": 16, "validation": 4, "test": 8}


def check_batches(data: Data, points: int) -> None:
    for split in (data.train, data.test):
        batch = split.batch(slice(0, 3), training=True)
        n = len(batch)
        assert batch.inputs.shape == (n, data.in_channels, points)
        assert batch.coords is not None
        assert batch.coords.shape == (n, points, data.dim)
        assert batch.inputs.dtype == batch.coords.dtype == torch.float32
        assert batch.coords.abs().max() <= 1.01
        torch.testing.assert_close(batch.inputs[:, :3], batch.coords.mT)


@pytest.mark.parametrize("kind", SURFACES)
def test_surfaces_have_their_normals(kind: str) -> None:
    """A step along the normal leaves the surface, and no step within it does: nearby points lie across the normal."""
    place, normal = SURFACES[kind](2, 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(normal.norm(dim=-1), torch.ones(2, 4000))
    apart = place[0].unsqueeze(0) - place[0, :200].unsqueeze(1)
    distance = apart.norm(dim=-1)
    near = (distance > 0) & (distance < 0.1) & ((normal[0, :200] @ normal[0].T) > 0.99)
    across = (apart * normal[0, :200].unsqueeze(1)).sum(dim=-1) / distance.clamp(min=1e-6)
    assert near.sum() > 200
    assert across[near].abs().mean() < 0.1


def test_solids() -> None:
    data = load("solids", points=64, **FEW)
    check_batches(data, 64)
    place = data.train.coords
    assert place is not None
    torch.testing.assert_close(place.mean(dim=1), torch.zeros(16, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(place.abs().amax(dim=(1, 2)), torch.ones(16))
    same, other = load("solids", points=64, **FEW), load("solids", points=64, **FEW, seed=1)
    assert same.train.coords is not None
    assert torch.equal(same.train.coords, place)
    assert other.train.coords is not None
    assert not torch.equal(other.train.coords, place)
    assert load("solids", points=8, normals=False, **FEW).train.batch(slice(0, 1)).inputs.shape == (1, 3, 8)


def test_random_clouds_are_their_own_target() -> None:
    data = load("random_clouds", points=30, train=4, test=2)
    batch = data.train.batch(slice(0, 4))
    assert torch.equal(batch.inputs, batch.target)
    assert data.task == "dense-regression"


def test_chosen_points_keep_their_values_and_targets() -> None:
    coords = torch.rand(2, 20, 3) * 2 - 1
    batch = Batch(coords.mT * 2, (coords[..., 0] * 100).round().long(), coords=coords)
    trained = ChoosePoints(7)(batch, True)
    tested = ChoosePoints(7)(batch, False)
    assert trained.coords is not None
    assert not torch.equal(trained.coords, coords[:, :7])
    torch.testing.assert_close(tested.coords, coords[:, :7])
    for chosen in (trained, tested):
        assert chosen.coords is not None
        torch.testing.assert_close(chosen.inputs, torch.cat([chosen.coords.mT, 2 * chosen.coords.mT], dim=1))
        assert torch.equal(chosen.target, (chosen.coords[..., 0] * 100).round().long())


def test_unseen_points_are_chosen_last() -> None:
    coords = torch.rand(2, 20, 3)
    mask = torch.arange(20) >= torch.tensor([[15], [5]])
    batch = Batch(coords.mT[:, :0], torch.zeros(2), coords=coords, mask=mask)
    for training in (True, False):
        chosen = ChoosePoints(8)(batch, training)
        assert chosen.mask is not None
        assert chosen.mask.sum(dim=1).tolist() == [5, 8]


def test_voxels_hold_one_point_at_their_centre() -> None:
    coords = torch.rand(2, 500, 3) * 2 - 1
    batch = Batch(coords.mT[:, :0], torch.zeros(2), coords=coords)
    chosen = ChoosePoints(None, voxels=4)(batch, False)
    assert chosen.coords is not None
    assert chosen.mask is not None
    assert set(chosen.coords.unique().tolist()) == {-0.75, -0.25, 0.25, 0.75}
    for place, seen in zip(chosen.coords, chosen.mask, strict=True):
        kept = [tuple(p) for p in place[seen].tolist()]
        assert len(kept) == len(set(kept)) == 64


def test_normalised_clouds_fill_the_cube() -> None:
    cloud = normalized(torch.randn(3, 50, 2) * 7 + 100)
    torch.testing.assert_close(cloud.mean(dim=1), torch.zeros(3, 2), atol=1e-4, rtol=0)
    torch.testing.assert_close(cloud.abs().amax(dim=(1, 2)), torch.ones(3))
    assert normalized(torch.ones(1, 4, 3)).abs().max() == 0


def test_masked_points_do_not_move_a_cloud() -> None:
    cloud = torch.randn(2, 50, 3) * 7 + 100
    mask = torch.rand(2, 50) > 0.3
    found = NormalizePoints()(Batch(torch.zeros(2, 0, 50), coords=cloud, mask=mask), False).coords
    for points, seen, wanted in zip(found, mask, cloud, strict=True):
        torch.testing.assert_close(points[seen], normalized(wanted[seen]), atol=1e-5, rtol=0)


def test_clouds_far_from_their_origin_keep_their_shape(tmp_path: Path) -> None:
    """Coordinates of a survey: metres with millimetres, and thousands of kilometres from the origin."""
    points = np.random.default_rng(0).normal(size=(60, 3))
    lines = [" ".join(f"{v:.6f}" for v in row) for row in points + 5e6]
    head = "ply\nformat ascii 1.0\nelement vertex 60\n" + "".join(f"property double {a}\n" for a in "xyz")
    (tmp_path / "far.ply").write_text(head + "end_header\n" + "\n".join(lines) + "\n")
    np.save(tmp_path / "far.npy", points + 5e6)
    np.save(tmp_path / "near.npy", points)
    wanted, *found = read_clouds([tmp_path / name for name in ("near.npy", "far.npy", "far.ply")], 60)
    for far in found:
        torch.testing.assert_close(far, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "text",
    [
        TETRAHEDRON,
        TETRAHEDRON.replace("OFF\n4", "OFF4"),
        "# a comment\n" + TETRAHEDRON.replace("0 0 0\n", "0 0 0 # x\n\n"),
    ],
    ids=["plain", "counts on the first line", "comments"],
)
def test_off_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.off"
    path.write_text(text)
    vertices, triangles = read_off(path)
    assert vertices.shape == (4, 3)
    assert triangles.tolist() == [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]


def test_off_polygons_become_triangles(tmp_path: Path) -> None:
    path = tmp_path / "a.off"
    path.write_text("OFF\n4 1 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n4 0 1 2 3 255 0 0\n")
    assert read_off(path)[1].tolist() == [[0, 1, 2], [0, 2, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ".*found nothing"),
        ("ply\n", ".*found 'ply'"),
        ("OFF\nx y\n", "must"),
        (TETRAHEDRON[:40], "must"),
        (TETRAHEDRON.replace("3 1 2 3", "3 1 2 9"), ".*found vertex 9"),
    ],
)
def test_broken_off_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.off"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"a\.off {message}"):
        read_off(path)


def test_meshes_are_sampled_by_area_with_their_normals() -> None:
    # Two squares of sides 1 and 3: nine of ten points lie on the larger, and all on one of them.
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 3, 1], [0, 3, 4], [0, 0, 4]])
    triangles = torch.tensor([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])
    points, normals = sample_mesh(vertices, triangles, 20_000, torch.Generator().manual_seed(0))
    small = points[:, 2] == 0
    assert abs(float(small.float().mean()) - 0.1) < 0.01
    torch.testing.assert_close(normals[small], torch.tensor([[0.0, 0.0, 1.0]]).expand(int(small.sum()), 3))
    torch.testing.assert_close(normals[~small].abs()[:, 0], torch.ones(int((~small).sum())))
    # Uniform on each: the mean of the small square is its middle, its variance 1/12.
    torch.testing.assert_close(points[small, :2].mean(dim=0), torch.full((2,), 0.5), atol=0.03, rtol=0)
    torch.testing.assert_close(points[small, :2].var(dim=0), torch.full((2,), 1 / 12), atol=0.01, rtol=0)
    with pytest.raises(ValueError, match="the mesh is degenerate"):
        sample_mesh(vertices, torch.tensor([[0, 0, 0]]), 4)


def write_modelnet(root: Path, kinds: int) -> None:
    for kind in range(kinds):
        for part, count in (("train", 5), ("test", 2)):
            where = root / f"kind{kind:02d}" / part
            where.mkdir(parents=True)
            for i in range(count):
                (where / f"kind{kind:02d}_{i:04d}.off").write_text(TETRAHEDRON)


@pytest.mark.parametrize(("name", "channels"), [("modelnet10", 3), ("modelnet40", 6)])
def test_modelnet(tmp_path: Path, name: str, channels: int) -> None:
    write_modelnet(tmp_path / {"modelnet10": "ModelNet10", "modelnet40": "ModelNet40"}[name], 3)
    data = load(name, tmp_path, points=32, validation_share=0.2)
    assert (len(data.train), len(data.validation or []), len(data.test)) == (12, 3, 6)
    assert data.classes == ("kind00", "kind01", "kind02")
    assert data.in_channels == channels
    check_batches(data, 32)
    voxels = load(name, tmp_path, points=32, voxels=40).train.batch(slice(0, 2))
    assert voxels.coords is not None
    middles = (voxels.coords + 1) * 20 - 0.5
    torch.testing.assert_close(middles, middles.round())


def test_broken_modelnet(tmp_path: Path) -> None:
    write_modelnet(tmp_path, 11)
    with pytest.raises(ValueError, match="found 11"):
        load("modelnet10", tmp_path)
    (tmp_path / "kind00" / "train" / "kind00_0000.off").write_text("OFF\n0 0 0\n")
    with pytest.raises(ValueError, match=r"kind00_0000\.off: the mesh is degenerate"):
        load("modelnet40", tmp_path)


def write_shapenet(root: Path) -> None:
    (root / "train_test_split").mkdir(parents=True)
    (root / "synsetoffset2category.txt").write_text("Airplane\t02691156\nBag\t02773838\n")
    for part, count in (("train", 3), ("val", 1), ("test", 2)):
        names = []
        for i in range(count):
            synset, labels = (("02691156", (0, 1, 2, 3)), ("02773838", (4, 5)))[i % 2]
            n = 40 - 10 * i
            table = np.concatenate([np.random.default_rng(i).normal(size=(n, 6)), np.resize(labels, (n, 1))], axis=1)
            (root / synset).mkdir(exist_ok=True)
            np.savetxt(root / synset / f"{part}{i}.txt", table, fmt="%.6f")
            names.append(f"shape_data/{synset}/{part}{i}")
        (root / "train_test_split" / f"shuffled_{part}_file_list.json").write_text(json.dumps(names))


def test_shapenet_part(tmp_path: Path) -> None:
    write_shapenet(tmp_path)
    data = load("shapenet_part", tmp_path, points=32)
    assert (len(data.train), len(data.validation or []), len(data.test)) == (3, 1, 2)
    check_batches(data, 32)
    batch = data.train.batch(slice(0, 3))
    assert batch.mask is not None
    assert batch.target is not None
    assert batch.mask.sum(dim=1).tolist() == [32, 30, 20]
    assert (batch.target[~batch.mask] == -100).all()
    assert set(batch.target[1][batch.mask[1]].tolist()) == {4, 5}
    assert data.out_channels == len(data.classes) == 50


def test_broken_shapenet_part(tmp_path: Path) -> None:
    write_shapenet(tmp_path)
    (tmp_path / "02691156" / "train0.txt").write_text("1 2 3\n")
    with pytest.raises(ValueError, match=r"train0\.txt.* found 3 numbers"):
        load("shapenet_part", tmp_path)
    (tmp_path / "02691156" / "train0.txt").unlink()
    with pytest.raises(ValueError, match=r"02691156/train0\.txt"):
        load("shapenet_part", tmp_path)


def test_labels_of_parts_are_all_there() -> None:
    assert sorted(label for labels in PARTS.values() for label in labels) == list(range(50))


def test_part_iou_agrees_with_the_published_definition() -> None:
    target = torch.tensor([[12, 12, 13, 13, -100]])
    right = torch.nn.functional.one_hot(target.clamp(min=0), 50).mT.float()
    share, kind = part_iou(right, target)
    assert share.tolist() == [1.0]  # parts 14 and 15 are neither there nor predicted
    assert kind.tolist() == [list(PARTS).index("chair")]
    other = right.clone()
    other[:, 0] = 9  # a part of no chair: not among the answers
    assert part_iou(other, target)[0].tolist() == [1.0]
    wrong = right.clone()
    wrong[0, 14, 0] = 9  # one of two points of part 12 taken for part 14
    assert math.isclose(float(part_iou(wrong, target)[0]), (0.5 + 1 + 0 + 1) / 4, rel_tol=1e-6)


def test_part_iou_of_a_batch_is_that_of_each_object() -> None:
    torch.manual_seed(0)
    kinds = list(PARTS.values())
    which = torch.randint(len(kinds), (20,))
    labels = [torch.tensor(kinds[k])[torch.randint(len(kinds[k]), (30,))] for k in which]
    target = torch.stack(labels)
    target[::3, 20:] = -100
    scores = torch.randn(20, 50, 30)
    share, kind = part_iou(scores, target)
    assert torch.equal(kind, which)
    for i, parts in enumerate(kinds[k] for k in which):
        seen = target[i] != -100
        predicted = torch.tensor(parts)[scores[i, list(parts)].argmax(dim=0)]
        each = []
        for part in parts:
            here, there = (predicted == part)[seen], (target[i] == part)[seen]
            each.append(float((here & there).sum() / (here | there).sum()) if (here | there).any() else 1.0)
        assert math.isclose(float(share[i]), sum(each) / len(each), rel_tol=1e-5)
    assert part_iou(scores[:1], torch.full((1, 30), -100))[1].tolist() == [-1]


def test_furniture(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    category = np.array(["Bed"] * 10 + ["Lamp"] * 15 + ["Stairs"] * 2)
    points = rng.normal(size=(27, 50, 3)).astype(np.float16)
    np.savez(tmp_path / "furniture_pc2048.npz", points=points, category=category, name=category, source=category)
    splits = [load("furniture", tmp_path, points=20, split=i) for i in range(5)]
    check_batches(splits[0], 20)
    assert sum(len(data.test) for data in splits) == 27
    tested = torch.cat([data.test.coords[:, 0] for data in splits if data.test.coords is not None])
    assert len(tested.unique(dim=0)) == 27  # each in one split
    for data in splits:
        assert len(data.train) + len(data.test) == 27
        assert data.test.target.bincount(minlength=3)[:2].tolist() == [2, 3]
    assert len(load("furniture", tmp_path / "furniture_pc2048.npz").train) == len(splits[0].train)
    with pytest.raises(ValueError, match=r"\bsplit must"):
        load("furniture", tmp_path, split=5)


def test_chairs_and_monitors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    solid = {name: rng.random((n, 32**3)) < 0.01 for name, n in (("chair", 15), ("monitor", 9))}
    solid["chair"][1, :] = False
    solid["chair"][1, [0, 32**3 - 1]] = True
    packed = {name: np.packbits(v, axis=1) for name, v in solid.items()}
    np.savez(tmp_path / "modelnet10_chair_monitor_32.npz", **packed)
    grid = load("chair_monitor", tmp_path, form="voxels")
    assert len(grid.train) + len(grid.test) + len(grid.validation or []) == 14 + 8  # the first rows are empty
    assert grid.train.batch(slice(0, 2)).inputs.shape == (2, 1, 32, 32, 32)
    data = load("chair_monitor", tmp_path, points=64)
    check_batches(data, 64)
    # The points are where the voxels are filled.
    volume, batch = grid.test.batch(slice(0, 3)).inputs, data.test.batch(slice(0, 3))
    assert batch.coords is not None
    assert batch.mask is not None
    cell = ((batch.coords + 1) * 16).long()
    for b in range(3):
        i, j, k = cell[b][batch.mask[b]].unbind(-1)
        assert (volume[b, 0, i, j, k] == 1).all()

"""Synthetic data: each set has the promised properties, and the same seed gives the same samples."""

from __future__ import annotations

import inspect
import random
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

from kernelfield.data.sets.images.digit_masks import digit_masks
from kernelfield.data.sets.images.digits import digits
from kernelfield.data.sets.images.rotated_mnist import rotated_digits, six_or_nine
from kernelfield.data.sets.physics.darcy import darcy_synthetic
from kernelfield.data.sets.synthetic.chirps import chirps
from kernelfield.data.sets.synthetic.memory import adding, copy_memory
from kernelfield.data.sets.synthetic.oscillators import oscillators
from kernelfield.data.sets.synthetic.pathfinder import pathfinder
from kernelfield.data.sets.synthetic.shapes import shapes
from kernelfield.data.sets.text.listops import TOKENS, evaluate, expression, listops

if TYPE_CHECKING:
    from kernelfield.data import Data, Split

FEW = {"train": 12, "validation": 4, "test": 6}
MADE = {
    "copy_memory": lambda **k: copy_memory(20, **FEW, **k),
    "adding": lambda **k: adding(20, **FEW, **k),
    "chirps": lambda **k: chirps(128, **FEW, **k),
    "shapes": lambda **k: shapes(16, **FEW, **k),
    "listops": lambda **k: listops(min_length=5, max_length=40, max_depth=4, max_args=4, **FEW, **k),
    "pathfinder": lambda **k: pathfinder(24, **FEW, **k),
    "darcy_synthetic": lambda **k: darcy_synthetic(8, solve_at=8, **FEW, **k),
    "digit_masks": lambda **k: digit_masks(8, **k),
    "digits": lambda **k: digits(8, **k),
    "rotated_digits": lambda **k: rotated_digits(8, **k),
    "six_or_nine": lambda **k: six_or_nine(8, **k),
}


def splits(data: Data) -> list[Split]:
    return [s for s in (data.train, data.validation, data.test) if s is not None]


@pytest.mark.parametrize("name", MADE)
def test_the_seed_decides(name: str) -> None:
    one, same, other = MADE[name](seed=3), MADE[name](seed=3), MADE[name](seed=4)
    for a, b in zip(splits(one), splits(same), strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.target, b.target)
    assert not torch.equal(one.train.inputs, other.train.inputs)


@pytest.mark.parametrize("name", MADE)
def test_batches_are_what_the_data_say(name: str) -> None:
    data = MADE[name]()
    for split in splits(data):
        batch = split.batch(slice(0, 3), training=True)
        assert batch.inputs.shape[-data.dim :] == data.size
        if data.vocabulary is None:
            assert batch.inputs.dtype == torch.float32
            assert batch.inputs.shape[1] == data.in_channels
        else:
            assert batch.inputs.dtype == torch.long
            assert int(batch.inputs.max()) < data.vocabulary
        assert batch.target is not None
        assert len(batch.target) == 3
        if data.task in ("classification", "segmentation"):
            assert int(batch.target.max()) < data.out_channels


def test_no_validation_split_on_request() -> None:
    assert copy_memory(5, train=2, validation=0, test=2).validation is None
    assert digits(validation=0).validation is None


@pytest.mark.parametrize("T", [1, 100, 1000])
def test_copy_memory(T: int) -> None:
    data = copy_memory(T, **FEW)
    x, y = data.train.inputs[:, 0].long(), data.train.target
    assert x.shape[1] == y.shape[1] == data.size[0] == T + 20
    assert set(x[:, :10].flatten().tolist()) <= set(range(1, 9))
    assert (x[:, 10 : 10 + T - 1] == 0).all()
    assert (x[:, -11:] == 9).all()
    assert (y[:, :-10] == 0).all()
    assert torch.equal(y[:, -10:], x[:, :10])


def test_adding() -> None:
    data = adding(50, train=4_000)
    x, y = data.train.inputs, data.train.target
    assert x.shape == (4_000, 2, 50)
    assert (x[:, 1].sum(dim=1) == 2).all()
    assert float(x[:, 0].min()) >= 0
    assert float(x[:, 0].max()) <= 1
    torch.testing.assert_close((x[:, 0] * x[:, 1]).sum(dim=1, keepdim=True), y)
    assert float((y - 1).square().mean()) == pytest.approx(1 / 6, rel=0.1)
    assert x[:, 1].sum(dim=0).min() > 0  # every place can be marked


def test_adding_of_two() -> None:
    assert (adding(2, train=8).train.inputs[:, 1] == 1).all()


def test_shapes_are_the_same_at_every_resolution() -> None:
    fine, coarse = shapes(32, **FEW), shapes(16, **FEW)
    gap = (F.avg_pool2d(fine.train.inputs.float(), 2) - coarse.train.inputs.float()).abs()
    assert gap.max() < 40  # of 255: coverage is counted to a sixteenth at the edges
    assert gap.mean() < 0.5
    assert torch.equal(fine.train.target, coarse.train.target)


def test_chirps_are_the_same_on_every_grid() -> None:
    fine, coarse = chirps(256, noise=0.0, **FEW), chirps(128, noise=0.0, **FEW)
    ratio = fine.train.inputs[..., ::2] / coarse.train.inputs
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=0.01, atol=0.0)


def test_oscillators_are_what_the_equation_says() -> None:
    data = oscillators(200, seen=9, asked=5, train=400, validation=4, test=6)
    split, size = data.train, 200
    assert data.size == (size,)
    assert (split.inputs[:, 1] == 1).all()
    for times in (split.coords, split.at):
        assert times is not None
        assert (times.diff(dim=1) >= 0).all()
        assert float(times.min()) >= 0
        assert float(times.max()) < size
    # At the same times, what is seen is what is asked for.
    same = oscillators(200, seen=9, asked=9, train=400, validation=4, test=6)
    assert torch.equal(same.train.inputs, split.inputs)
    assert float(split.target.abs().max()) <= 1
    assert 0.15 < float(split.target.var()) < 0.35


def test_a_forecast_is_asked_after_what_was_seen() -> None:
    split = oscillators(100, forecast=0.4, train=50).train
    assert split.coords is not None
    assert split.at is not None
    assert float(split.coords.max()) < 60 < float(split.at.max())


def test_noise_is_on_the_seen_values_alone() -> None:
    clean, noisy = oscillators(train=50), oscillators(train=50, noise=0.1)
    assert torch.equal(clean.train.target, noisy.train.target)
    assert 0.08 < float((clean.train.inputs - noisy.train.inputs)[:, 0].std()) < 0.12


def test_listops_expressions_have_their_values() -> None:
    source = random.Random(0)
    drawn = [d for d in (expression(source, 6, 5, 200) for _ in range(300)) if d is not None]
    assert len(drawn) > 30
    for tokens, value in drawn:
        assert 4 <= len(tokens) <= 200
        assert evaluate(tokens) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("[MAX 2 9 [MIN 4 7 ] 0 ]", 9), ("[MED 1 4 7 2 ]", 3), ("[SM 9 9 9 ]", 7), ("[MIN 3 [SM 4 7 ] ]", 1)],
)
def test_listops_grammar(text: str, value: int) -> None:
    assert evaluate(text.split()) == value


@pytest.mark.parametrize("text", ["[MAX 1 2", "1 2", "]", "[MAX ]"])
def test_listops_refuses_unbalanced_brackets(text: str) -> None:
    with pytest.raises(ValueError, match="close"):
        evaluate(text.split())


def test_listops_samples() -> None:
    data = listops(min_length=10, max_length=60, max_depth=5, max_args=5, **FEW)
    names = {i: token for token, i in TOKENS.items()}
    lines = set()
    for split in splits(data):
        assert split.mask is not None
        length = split.mask.sum(dim=1)
        assert length.min() >= 10
        for ids, n, value in zip(split.inputs.tolist(), length.tolist(), split.target.tolist(), strict=True):
            tokens = [names[i] for i in ids[:n]]
            assert not any(ids[n:])
            assert evaluate(tokens) == value
            lines.add(" ".join(tokens))
    assert len(lines) == 22  # none twice


def test_impossible_listops_are_refused() -> None:
    with pytest.raises(ValueError, match="max_depth and max_args must"):
        listops(min_length=500, max_length=600, max_depth=2, max_args=2, train=1, validation=0, test=1)


def test_listops_published_files(tmp_path) -> None:
    folder = tmp_path / "listops-1000"
    folder.mkdir()
    for part in ("train", "val", "test"):
        (folder / f"basic_{part}.tsv").write_text("Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n[MIN 3 1 ]\t1\n")
    data = listops(tmp_path, max_length=20)
    assert data.train.target.tolist() == [9, 1]
    assert data.train.mask.sum(dim=1).tolist() == [4, 4]
    (folder / "basic_val.tsv").write_text("Source\tTarget\n[MAX 2 x ]\t2\n")
    with pytest.raises(ValueError, match=r"basic_val.tsv, line 2: expected an expression, a tab and a digit"):
        listops(tmp_path, max_length=20)
    (folder / "basic_val.tsv").write_text("")
    with pytest.raises(ValueError, match=r"basic_val.tsv, line 1: .*found 'nothing'"):
        listops(tmp_path, max_length=20)


def test_pathfinder_is_balanced_and_its_classes_have_the_same_ink() -> None:
    data = pathfinder(24, train=40, validation=0, test=2)
    assert data.train.target.float().mean() == 0.5
    ink = data.train.inputs.float().mean(dim=(1, 2, 3))
    joined = data.train.target == 1
    assert ink[joined].mean() == pytest.approx(float(ink[~joined].mean()), rel=0.1)
    assert pathfinder(24, sequence=True, train=2, validation=0, test=2).train.inputs.shape == (2, 1, 576)


def test_pathfinder_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfield.data.sets.synthetic.pathfinder.TRIES", 10)
    with pytest.raises(ValueError, match=r"\bdashes must"):
        pathfinder(16, dashes=200, train=1, validation=0, test=1)


def test_six_or_nine_holds_both_turns_of_each() -> None:
    data = six_or_nine(8)
    for split in splits(data):
        half = len(split) // 2
        torch.testing.assert_close(split.inputs[half:], split.inputs[:half].flip((-2, -1)))
        assert torch.equal(split.target[half:], 1 - split.target[:half])


def test_rotated_digits_keep_a_digit_in_one_part() -> None:
    data = rotated_digits(8, copies=3)
    assert len(data.train) == 3 * len(digits(8).train)
    batch = data.train.batch(slice(None)).inputs
    assert batch.mean().abs() < 1e-5
    assert float(batch.std()) == pytest.approx(1)


def test_rotated_digits_are_stored_as_the_bundled_ones_are() -> None:
    pixels = rotated_digits(8).train.inputs
    assert float(pixels.min()) == 0
    assert 15 < float(pixels.max()) <= 16


@pytest.mark.parametrize("make", [copy_memory, adding, chirps, shapes, pathfinder])
def test_counts_are_checked(make) -> None:
    assert "train" in inspect.signature(make).parameters
    with pytest.raises(ValueError, match=r"\btrain must"):
        make(train=0)

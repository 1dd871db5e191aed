"""One flipped bit in a file of a finished run: refused with the name of the file, or without any effect."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelfield.experiments import fit
from kernelfield.experiments.checkpoint import read_checkpoint
from kernelfield.experiments.run import Run
from kernelfield.experiments.run_files import read_json
from tests.experiments.helpers import small_data, small_recipe
from tests.fuzz.bounds import bounded, print_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNTS: Counter[str] = Counter()
LONG = 10 * int(os.environ.get("KERNELFIELD_FUZZ", "2000"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Run]:
    recipe = small_recipe("training.epochs=2", "training.ema=0.9")
    yield fit(recipe, tmp_path_factory.mktemp("flips") / "run", data=small_data(), report=False)
    print_counts(request, "flipped bits", COUNTS)


@pytest.fixture(scope="module")
def whole(run: Run) -> Any:
    return content(run)


def checked_files(run: Run) -> list[Path]:
    named = [run.folder / name for name in ("recipe.yaml", "data.json", "result.json", "confusion.json")]
    return [*named, *sorted(path for path in run.checkpoints.rglob("*") if path.is_file())]


def content(run: Run) -> Any:
    """Return all that is read from a run: the recipe, the data, the result, the confusion matrix and checkpoints."""
    files = [read_json(run.folder / name) for name in ("data.json", "confusion.json")]
    numbers = [run.recipe().to_dict(), run.result(), *files]
    found = [read_checkpoint(path) for path in sorted(run.checkpoints.iterdir())]
    text = json.dumps([numbers, [values for _, values in found]], sort_keys=True)
    return text, [tensors for tensors, _ in found]


def flip(run: Run, whole: Any, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(checked_files(run)))
    raw = path.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    COUNTS["tried"] += 1
    try:
        path.write_bytes(bytes(changed))
        with bounded():
            text_after, tensors_after = content(run)
    except ValueError as error:
        assert path.name in str(error) or path.parent.name in str(error), f"no file is named: {error}"  # noqa: PT017
        COUNTS["refused"] += 1
        return
    finally:
        path.write_bytes(raw)
    COUNTS["harmless"] += 1
    text, tensors = whole
    ours, theirs = json.loads(text), json.loads(text_after)
    # A flip in the word sha256 itself leaves a key more, and all numbers as they were.
    for one in theirs[0]:
        for key in [key for key in one if isinstance(one[key], str) and len(one[key]) == 64]:
            del one[key]
    assert ours == theirs
    for before, after in zip(tensors, tensors_after, strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_flipped_bit_is_refused_or_harmless(run: Run, whole: Any, data: st.DataObject) -> None:
    flip(run, whole, data)


@pytest.mark.slow
@settings(max_examples=LONG, derandomize=False, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_many_flipped_bits_are_refused_or_harmless(run: Run, whole: Any, data: st.DataObject) -> None:
    flip(run, whole, data)


def test_a_damaged_result_does_not_restart_training(run: Run, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.folder, tmp_path / "run"))
    path = copy.folder / "result.json"
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3'))
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        fit(small_recipe("training.epochs=2", "training.ema=0.9"), copy.folder, data=small_data(), report=False)

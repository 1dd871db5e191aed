"""Wrong options of every command: a line and a documented exit code, never a traceback."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernelfield.cli import app
from kernelfield.experiments import fit
from kernelfield.experiments.recipe import find_recipe
from tests.fuzz.bounds import bounded, print_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNTS: Counter[str] = Counter()
LONG = int(os.environ.get("KERNELFIELD_FUZZ", "2000"))
CODES = (0, 1, 2, 3, 4)
LISTED = ("models", "weights", "recipes", "data")
VALUES = (
    *("", "nan", "inf", "-inf", "-1", "0", "0.5", "2", "1e39", "1e-400", "9" * 20, "x", "é", "null", "true", "."),
    *("[]", "{}", "[1, 2]", "[[[]]]", "{a: 1}", "[" * 50, "!!int x", "&a 1", "*a", "'", "../..", "/dev/zero", "a=b"),
)  # fmt: skip
SMALL = ("model.channels=4", "model.blocks=1", "model.hidden=8", "data.resolution=8", "training.epochs=1", "test={}")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def _keys(mapping: dict[str, Any], start: str = "") -> list[str]:
    keys = []
    for key, value in mapping.items():
        keys += [start + key, *(_keys(value, f"{start}{key}.") if isinstance(value, dict) else [])]
    return keys


KEYS = (*_keys(find_recipe("digits").to_dict()), "data.seed", "training", "model.x", "x.y", "", ".", "data.root")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a folder with a run, a file of samples, and a pipe."""
    made = tmp_path_factory.mktemp("options")
    fit("digits", made / "run", settings=list(SMALL), synthetic=True, report=False)
    np.save(made / "x.npy", np.zeros((2, 1, 64)))
    os.mkfifo(made / "pipe.csv")
    os.mkfifo(made / "pipe.yaml")
    (made / "empty").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELFIELD_DEBUG", "1")
        patch.chdir(made)
        yield made
    print_counts(request, "commands", COUNTS)


def command(data: st.DataObject, folder: Path) -> list[str]:
    """Draw a command with one or two wrong options."""

    def value() -> str:
        places = ("empty", "run", "x.npy", "pipe.csv", "pipe.yaml", "none.csv", "run/recipe.yaml", "run/result.json")
        return data.draw(st.sampled_from((*VALUES, *places)))

    def setting() -> list[str]:
        return ["--set", f"{data.draw(st.sampled_from(KEYS))}={value()}"]

    kinds = {
        "test": lambda: ["test", "run", data.draw(st.sampled_from(("--step", "--drop", "--turn", "--data"))), value()],
        "test a run": lambda: ["test", value()],
        "inspect": lambda: ["inspect", value(), "--json"],
        "predict": lambda: ["predict", "run", "x.npy", data.draw(st.sampled_from(("--step", "--data"))), value()],
        "predict a file": lambda: ["predict", "run", value()],
        "predict with a run": lambda: ["predict", value(), "x.npy"],
        "export": lambda: ["export", "run", "--to", value()],
        "list": lambda: [
            "list",
            data.draw(st.sampled_from((*LISTED, value()))),
            value(),
        ],
        "new-recipe": lambda: ["new-recipe", "new.yaml", *setting(), *setting()],
        "new-recipe from": lambda: ["new-recipe", "new.yaml", "--from", value()],
        "new-recipe of": lambda: ["new-recipe", "new.yaml", "--recipe", value()],
        "new-recipe to": lambda: ["new-recipe", f"{value()}.yaml"],
        "bench": lambda: ["bench", value(), "--accelerator", "cpu"],
        "bench for": lambda: ["bench", "none", "--seconds", value()],
        "calibrate": lambda: ["calibrate", "--show", data.draw(st.sampled_from(("--device", "--seconds"))), value()],
        "reproduce": lambda: ["reproduce", value(), "--folds", value()],
        "train": lambda: ["train", value(), "--accelerator", value()],
    }
    return kinds[data.draw(st.sampled_from(tuple(kinds)))]()


def run_command(folder: Path, data: st.DataObject) -> None:
    arguments = command(data, folder)
    COUNTS["tried"] += 1
    with bounded(seconds=60, memory=None):
        result = CliRunner().invoke(app, arguments)
    (folder / "new.yaml").unlink(missing_ok=True)
    assert result.exception is None or isinstance(result.exception, SystemExit), arguments
    assert result.exit_code in CODES, arguments
    assert "Traceback" not in result.output
    COUNTS[f"ended with {result.exit_code}"] += 1


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_wrong_options(folder: Path, data: st.DataObject) -> None:
    run_command(folder, data)


@pytest.mark.slow
@settings(max_examples=LONG, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_wrong_options(folder: Path, data: st.DataObject) -> None:
    run_command(folder, data)

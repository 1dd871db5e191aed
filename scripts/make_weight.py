"""Write the weight file of a finished run, or of a checkpoint and the JSON file of its result.

    python scripts/make_weight.py RUN_OR_CHECKPOINT TAG [--result FILE] [--data FOLDER] [--out FOLDER]

TAG is MODEL.TAG or the tag alone; the model is the recipe's. The network is tested on the first test samples, and the
script stops if their score is far from the recorded one.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from kernelfield.experiments.weight import CHECKED, make_weight, read_trained
from kernelfield.models.pretrained import read_description

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folder of a run or of a checkpoint")
    parser.add_argument("tag", help="MODEL.TAG, or TAG")
    parser.add_argument("--result", help="JSON file of the result; results/RECIPE.json if there is one")
    parser.add_argument("--recipe", help="name of the recipe, if the checkpoint names another")
    parser.add_argument("--data", help="folder of the data's files")
    parser.add_argument("--out", default=str(ROOT / "weights"), help="folder of weight files")
    parser.add_argument("--samples", type=int, default=CHECKED, help="number of test samples for the quick check")
    parser.add_argument("--default", action="store_true", help="make this the default weight of the model")
    parser.add_argument("--notes", default="", help="remarks about this weight")
    parser.add_argument("--force", action="store_true", help="write the file even if the score differs")
    given = parser.parse_args()
    trained = read_trained(given.source, result=given.result or _result_of(given.source), recipe=given.recipe)
    model = trained.recipe.model["name"]
    name = given.tag if given.tag.startswith(f"{model}.") else f"{model}.{given.tag}"
    path = make_weight(
        trained,
        name,
        given.out,
        folder=given.data,
        samples=given.samples,
        default=given.default,
        notes=given.notes,
    )
    found = read_description(path)["score"]
    first = found["first"]
    line = f"{found['metric']} {found['value']:.6g} recorded, {first['value']:.6g} on the first {first['samples']}"
    if not given.force and not _agrees(found["metric"], found["value"], first["value"], first["samples"]):
        path.unlink()
        raise SystemExit(f"{name}: the score differs: {line}; no file is written (--force writes it)")
    print(f"{path}: {path.stat().st_size / 2**20:.2f} MiB, {line}")


def _result_of(source: str) -> str | None:
    """Return the result in results/ of the recipe that a folder of the path is named after."""
    if (Path(source) / "recipe.yaml").exists():
        return None
    found = [ROOT / "results" / f"{part}.json" for part in reversed(Path(source).resolve().parts)]
    return next((str(path) for path in found if path.is_file()), None)


def _agrees(metric: str, recorded: float, measured: float, samples: int) -> bool:
    """Whether a score on some samples fits the score on all: within four standard errors of a share, or 30 %."""
    if metric in ("accuracy", "auc", "iou"):
        return abs(measured - recorded) <= 4 * math.sqrt(max(recorded * (1 - recorded), 1e-4) / samples)
    return abs(measured - recorded) <= 0.3 * abs(recorded)


if __name__ == "__main__":
    main()

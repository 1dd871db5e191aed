"""Write docs/results.md from the JSON files that ``kernelfield reproduce`` left in results/.

python docs/make_results.py [RESULTS_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernelfield.experiments.reproduce import results_table

HEAD = """# Results

Published numbers and ours beside each other, the failed ones too. Each row comes from a JSON file in `results/`,
written by `kernelfield reproduce RECIPE` or, for point clouds, by `benchmarks/points_accuracy.py`, whose PointNet++ is
no recipe of the library; this page is made of them by `python docs/make_results.py`. Metrics that are shares are in
percent. What was changed of a recipe for a run is said under remarks. Most runs are far shorter than the published
ones, with the schedules of `scripts/results.py`, and several of them shared the GPU, so that a time is an upper bound.

"""


def main() -> None:
    here = Path(__file__).parent
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "results"
    (here / "results.md").write_text(HEAD + results_table(folder), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write docs/results.md from the JSON files that ``kernelfield reproduce`` left in results/.

python scripts/results_page.py [RESULTS_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernelfield.experiments.results import results_table

ROOT = Path(__file__).parents[1]

HEAD = """# Results

Published numbers beside ours, failed runs included. Each row comes from one JSON file in `results/`, which also records
every setting, the machine and the time.

- Most runs are far shorter than the published ones. The column `epochs` is ours.
- Accuracy, AUC and intersection over union are percentages.
- `seeds` is the number of trainings; several give a mean and a standard deviation. One seed with a deviation is a
  cross-validation.
- The epoch is chosen by validation data. Where all data is trained on, it is the last epoch.
- Several runs shared a GPU, so times are upper bounds; of several seeds it is their sum.

`kernelfield reproduce RECIPE` repeats a row, `python scripts/results.py SET` a group of them with the shortened
schedules used here. Rows of PointNet++ come from `benchmarks/points_accuracy.py`. This page is written by
`python scripts/results_page.py`.

"""

SHOWN = ["experiment", "metric", "published", "ours", "seeds", "epochs", "size", "time", "machine"]
RULE = "|---|---" + "|---:" * 6 + "|---"  # numbers are right-aligned
MACHINES = {"NVIDIA H200": "H200", "x86_64": "CPU"}
CHAPTERS = {
    "2": "CKConv",
    "3": "CCNN",
    "4": "gridification",
    "5": "FlexConv",
    "6": "DNArch",
    "7": "co-attention",
    "8": "attentive group convolutions",
    "9": "group self-attention",
    "10": "wavelet networks",
    "11": "partial equivariance",
}


def cells(line: str) -> list[str]:
    """Return the cells of one row of a Markdown table."""
    return [cell.strip() for cell in line.replace("\\|", "\0").strip().strip("|").split("|")]


def page(folder: Path) -> str:
    """Return the page: one table for each chapter, then the settings of all runs."""
    header, _, *lines = results_table(folder).splitlines()
    names = cells(header)
    rows = [dict(zip(names, cells(line), strict=False)) for line in lines]
    for row in rows:
        row["seeds"] = str(row["seed"].count(",") + 1) if row.get("seed") else ""
        row["machine"] = MACHINES.get(row.get("machine", ""), row.get("machine", ""))
    text = HEAD
    for chapter in sorted({row["chapter"] for row in rows}, key=int):
        text += f"## Chapter {chapter}: {CHAPTERS.get(chapter, '')}\n\n| {' | '.join(SHOWN)} |\n{RULE}|\n"
        for row in rows:
            if row["chapter"] == chapter:
                text += f"| {' | '.join(row.get(name, '') for name in SHOWN)} |\n"
        text += "\n"
    text += "## Settings\n\nWhat each run changed in its recipe, and remarks.\n\n"
    text += "| recipe | changes and remarks |\n|---|---|\n"
    for row in rows:
        if row.get("remarks"):
            text += f"| {row['recipe']} | {row['remarks']} |\n"
    return text.replace("\0", "\\|")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results"
    (ROOT / "docs" / "results.md").write_text(page(folder), encoding="utf-8")


if __name__ == "__main__":
    main()

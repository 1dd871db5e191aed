"""Print the architectures that runs of chapter 6 have learned.

python scripts/architectures.py runs/ch06-cifar10-dnarch-krwd-4-140 [RUN …]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelfield.viz.architecture import architecture_table, read_last_row

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    folders = parser.parse_args().runs
    print(architecture_table({folder.name: read_last_row(folder / "masks.csv") for folder in folders}))

#!/usr/bin/env bash
# Sets up (scripts/setup.sh), then checks style and types and runs the tests. Arguments go to pytest:
#   bash scripts/test.sh            the default tests, about five minutes on two cores
#   bash scripts/test.sh --slow     everything
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy
# One thread per worker: two workers on two cores gain nothing from more, and lose much. A file runs on one worker, so
# that its fixtures (trained runs, started processes) are made once.
OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"

#!/usr/bin/env bash
# Sets up (scripts/setup.sh), then builds the site into docs/_build/html. Warnings are errors. Arguments go to sphinx-build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
.venv/bin/python -m sphinx -q -W --keep-going -b html -j auto "$@" docs docs/_build/html
echo "docs/_build/html/index.html"

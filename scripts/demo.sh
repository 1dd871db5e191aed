#!/usr/bin/env bash
# Sets up (scripts/setup.sh), then runs the main job. Arguments go to it: bash scripts/demo.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/kernelfield demo "$@"

#!/usr/bin/env bash
# Sets up .venv (scripts/setup.sh), then trains a small network on bundled digits and writes a report. Arguments go to
# `kernelfield demo`: bash scripts/demo.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/kernelfield demo "$@"

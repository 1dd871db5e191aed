#!/usr/bin/env bash
# Creates .venv in the root of the repository and installs the package into it. Called by demo.sh, test.sh and docs.sh.
# Does nothing if pyproject.toml and constraints.txt have not changed since the last call.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
stamp=".venv/.installed-$(cat pyproject.toml constraints.txt | cksum | tr -d ' ')"

make_venv() {
  "$python" -m venv .venv && return
  rm -rf .venv
  # Debian ships Python without ensurepip; its package python3-venv has it.
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && apt-get install -q -y python3-venv && "$python" -m venv .venv
  else
    echo "setup: '$python -m venv' failed; on Debian: sudo apt-get install python3-venv" >&2
    return 1
  fi
}

# Torch is installed first, at its exact version, so that no other requirement pulls another build. Without a GPU the CPU
# build from PyTorch's own index is preferred: it has no gigabytes of CUDA packages. If that index cannot be reached, the
# usual one is used.
install_torch() {
  local torch
  torch=$(grep '^torch==' constraints.txt)
  if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null; then
    .venv/bin/python -m pip install -q --disable-pip-version-check --retries 0 --timeout 15 \
      --index-url https://download.pytorch.org/whl/cpu "$torch" 2>/dev/null && return
  fi
  .venv/bin/python -m pip install -q --disable-pip-version-check "$torch"
}

install() {
  [ -e "$stamp" ] && return
  [ -x .venv/bin/python ] || make_venv
  echo "setup: installing into .venv (the first time takes a few minutes)"
  install_torch
  .venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[train,data,export,docs,dev]'
  rm -f .venv/.installed-*
  touch "$stamp"
}

# Two scripts started together take turns.
if command -v flock >/dev/null; then
  exec 9>.setup.lock
  flock 9
  install
  flock -u 9
else
  install
fi

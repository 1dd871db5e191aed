#!/usr/bin/env bash
# Makes .venv beside this folder and installs the package into it. Sourced or called by demo.sh and test.sh.
# Does nothing when pyproject.toml and constraints.txt have not changed since the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
stamp=".venv/.installed-$(cat pyproject.toml constraints.txt | cksum | tr -d ' ')"

make_venv() {
  "$python" -m venv .venv && return
  rm -rf .venv
  # Debian ships Python without ensurepip; the rest of venv is there.
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && apt-get install -q -y python3-venv && "$python" -m venv .venv
  else
    echo "setup: '$python -m venv' failed; on Debian: sudo apt-get install python3-venv" >&2
    return 1
  fi
}

install() {
  [ -e "$stamp" ] && return
  [ -x .venv/bin/python ] || make_venv
  echo "setup: installing into .venv (the first time takes a few minutes)"
  # Torch first and by its exact version, so that no range can pull a build with gigabytes of CUDA packages.
  .venv/bin/python -m pip install -q --disable-pip-version-check "$(grep '^torch==' constraints.txt)"
  .venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[train,data,export,dev]'
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

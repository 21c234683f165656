#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/peers.sh [NAME]    makes the fixtures of tests/peers/*, or of one of them, in .venv-peers/NAME
set -euo pipefail
cd "$(dirname "$0")/.."
[ -z "${1:-}" ] || [ -f "tests/peers/$1/make.py" ] || { echo "[peers] no tests/peers/$1/make.py" >&2; exit 2; }
for made in tests/peers/${1:-*}/make.py; do
  folder=$(dirname "$made") venv=.venv-peers/$(basename "$(dirname "$made")")
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$folder/requirements.txt"
  "$venv/bin/python" "$made"
  git status --short "$folder/fixtures"
done

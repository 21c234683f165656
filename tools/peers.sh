#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/peers.sh [PATTERN]    makes the fixtures of tests/peers/<name>, of those whose name matches, in .venv-peers/<name>
# A folder without make.py has no fixtures: its tests run in that environment themselves.
# HOCKET_TORCH_INDEX is where PyTorch's CPU build is looked for when the configured index does not have it.
set -euo pipefail
cd "$(dirname "$0")/.."
found=0
for folder in tests/peers/*/; do
  folder=${folder%/} name=$(basename "$folder") made=$folder/make.py
  [[ $name != __pycache__ && $name =~ ${1:-} ]] || continue
  found=1 venv=.venv-peers/$name
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  install=("$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$folder/requirements.txt")
  "${install[@]}" 2>/dev/null ||
    "${install[@]}" --extra-index-url "${HOCKET_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
  [ ! -e "$made" ] || "$venv/bin/python" "$made"
  [ ! -d "$folder/fixtures" ] || git status --short "$folder/fixtures"
done
if [ $found = 0 ]; then
  echo "[peers] no folder of tests/peers matches '$1'; expected a pattern of: $(cd tests/peers && echo */)" >&2
  exit 2
fi

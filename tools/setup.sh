#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Hocket needs on Debian 12 or 13, or Ubuntu 24.04; a second call does only what changed.
#   tools/setup.sh            packages to build and run
#   tools/setup.sh --torch    also what ranks as processes need: Gloo's headers, and PyTorch in .venv
#   tools/setup.sh --tests    also what the tests compare with: Python packages in .venv (PyTorch,
#                             transformers, ...) and on Debian Chromium
#   tools/setup.sh --chat     also what ./quickstart chat needs: Python with pip in .venv, and curl
#   tools/setup.sh --sim      only what `make sim` needs
#   tools/setup.sh --format   only clang-format, in .venv, in the version that the sources are laid out by
#   tools/setup.sh --list     prints the packages of the chosen set and ends
# Packages need root or sudo; without either it lists exactly the missing ones and ends with 2.
# TORCH_DIR=<.../site-packages/torch> lets the tests reuse an installed PyTorch. HOCKET_TORCH_INDEX is
# where its CPU build is looked for when the configured index does not have it.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
sim_packages=(cmake ninja-build libfmt-dev libyaml-cpp-dev nlohmann-json3-dev
  zlib1g-dev liblzma-dev libzstd-dev libpcre2-dev libutf8proc-dev libxxhash-dev libtomlplusplus-dev
  libmimalloc-dev)
build_packages=(make g++ ccache libcpp-httplib-dev)
torch_packages=(ca-certificates python3 python3-venv libgloo-dev)
chat_packages=(ca-certificates curl python3 python3-venv)
test_packages=(libgtest-dev libbenchmark-dev xz-utils curl
  iproute2 openmpi-bin)  # tools/cluster, and one of the launchers that it tries
format_packages=(ca-certificates python3 python3-venv)
clang_format=clang-format==14.0.6  # of PyPI: Debian 13 has no package of it, and another version lays out differently
test_modules=(numpy safetensors tokenizers 'transformers>=4.57' pyyaml pyarrow)

tests=0 torch_only=0 chat=0 sim=0 format=0 list=0
for arg in "$@"; do
  case "$arg" in
    --tests) tests=1 ;;
    --torch) torch_only=1 ;;
    --chat) chat=1 ;;
    --sim) sim=1 ;;
    --format) format=1 ;;
    --list) list=1 ;;
    -h | --help) sed -n '3,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "[setup] unknown argument '$arg'; expected --tests, --torch, --chat, --sim, --format or --list" >&2; exit 2 ;;
  esac
done

say() { echo "[setup] $*"; }
refuse() { echo "[setup] $*" >&2; exit 2; }

packages=("${sim_packages[@]}")
if [ $format = 1 ]; then
  packages=("${format_packages[@]}")
elif [ $sim = 1 ]; then
  # Any C++20 compiler does here: g++ is asked for only when there is none.
  compiler=${CXX:-}
  for c in c++ g++ clang++; do
    [ -n "$compiler" ] || ! command -v "$c" >/dev/null || compiler=$c
  done
  [ -n "$compiler" ] || packages+=(g++)
else
  packages+=("${build_packages[@]}")
fi
if [ $tests = 1 ] || [ $torch_only = 1 ]; then
  packages+=("${torch_packages[@]}")
fi
if [ $chat = 1 ]; then
  packages+=("${chat_packages[@]}")
fi
if [ $tests = 1 ]; then
  packages+=("${test_packages[@]}")
  # Ubuntu's chromium is a snap: a browser that is there already will do.
  if [ "$(. /etc/os-release 2>/dev/null && echo "$ID")" = debian ]; then
    packages+=(chromium)
  fi
fi
if [ $list = 1 ]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

human() { awk -v b="$1" 'BEGIN { printf b < 1e6 ? "%.0f kB" : "%.1f MB", b < 1e6 ? b / 1e3 : b / 1e6 }'; }

# ---- packages -------------------------------------------------------------------------------------
install_packages() {
  command -v dpkg-query >/dev/null ||
    refuse "this system has no dpkg; install the equivalents of: ${packages[*]}; then call again with HOCKET_SKIP_PACKAGES=1"
  local missing=() p
  for p in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    elif [ "${missing[*]}" = chromium ]; then
      return 0  # the tests run without it
    else
      refuse "missing packages (no root and no sudo here; have them installed with: apt-get install ${missing[*]})"
    fi
  fi
  local run=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0)
  local want=(install -y --no-install-recommends "${missing[@]}") uris
  say "missing packages: ${missing[*]}"
  if ! uris=$("${run[@]}" --print-uris -qq "${want[@]}" 2>/dev/null); then
    say "reading the package index (apt-get update; about 10 MB)"
    "${run[@]}" update -qq
    uris=$("${run[@]}" --print-uris -qq "${want[@]}")
  fi
  local total=0 file size
  while read -r _ file size _; do
    [ -n "${size:-}" ] || continue
    total=$((total + size))
    printf '[setup]   %9s  %s\n' "$(human "$size")" "$file"
  done <<<"$uris"
  say "downloading $(human $total) of packages"
  local log; log=$(mktemp)
  if ! "${run[@]}" -qq "${want[@]}" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    # A stale index names files that are gone: read it again, once.
    "${run[@]}" update -qq
    "${run[@]}" -qq "${want[@]}" >"$log" 2>&1 || { tail -n 20 "$log" >&2; refuse "apt-get failed (log: $log)"; }
  fi
  rm -f "$log"
  say "packages: installed in ${SECONDS} s"
}
[ "${HOCKET_SKIP_PACKAGES:-0}" = 1 ] || install_packages
if [ $tests = 1 ] && ! command -v chromium chromium-browser google-chrome >/dev/null; then
  say "no Chromium here: tests/diagnose/report_browser_test.py will be skipped"
fi
if { [ $chat = 1 ] || [ $format = 1 ]; } && [ ! -x .venv/bin/pip ]; then
  say "making .venv with $(python3 --version)"
  python3 -m venv .venv
fi
if [ $format = 1 ]; then
  .venv/bin/pip --disable-pip-version-check --no-input install -q "$clang_format" ||
    refuse "$clang_format could not be installed"
fi
[ $tests = 1 ] || [ $torch_only = 1 ] || exit 0

# ---- .venv: PyTorch, and what else the tests compare with -------------------------------------------------------------
if [ -n "${TORCH_DIR:-}" ]; then
  [ -e "$TORCH_DIR/__init__.py" ] ||
    refuse "TORCH_DIR=$TORCH_DIR holds no __init__.py; expected the torch folder of a pip installation"
  torch="TORCH_DIR=$TORCH_DIR"
else
  torch="torch==$torch_version+cpu"
fi

stamp=.venv/.hocket-setup
[ $tests = 1 ] || test_modules=(numpy)
want="$torch ${test_modules[*]}"
want_id=$(printf '%s' "$want" | sha256sum | cut -c1-16)
if [ -x .venv/bin/python ] && grep -qsx "$want_id" "$stamp"; then
  exit 0
fi
started=$SECONDS
[ -x .venv/bin/python ] || { say "making .venv with $(python3 --version)"; python3 -m venv .venv; }
# pip names each file and its size before it fetches it; lines about what is there already are left out.
pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@" 2>&1 |
  grep -v -e '^Requirement already satisfied' -e '^Looking in ' -e '^ERROR: Could not find a version' \
    -e '^ERROR: No matching distribution' || return "${PIPESTATUS[0]}"
  return "${PIPESTATUS[0]}"; }
has_torch() {
  local python_version=${torch#torch==}
  [ "$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)" = "$python_version" ]
}
case "$torch" in
  TORCH_DIR=*)
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    dirname "$TORCH_DIR" >"$site/torch_dir.pth"
    ;;
  *+cpu)
    if ! has_torch; then
      say "torch $torch_version, CPU build"
      pip install --no-deps --no-index "$torch" >/dev/null || pip install --no-deps "$torch" ||
        pip install --no-deps --index-url "${HOCKET_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" "$torch" ||
        refuse "torch $torch_version (CPU build) could not be installed; set TORCH_DIR to an installed torch, or HOCKET_TORCH_INDEX"
    fi
    ;;
esac
say "Python packages: ${test_modules[*]}"
requirements=("${test_modules[@]}")
[ -n "${TORCH_DIR:-}" ] || requirements+=("$torch")
pip install "${requirements[@]}" || refuse "the Python packages of the tests could not be installed"
printf '%s\n' "$want_id" >>"$stamp"
say "python packages: done in $((SECONDS - started)) s"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tests of kernels and ops for 64-bit Arm with Debian's cross compiler and runs them in QEMU's
# user mode. Arguments go to the test binary (--gtest_filter=...); `tools/aarch64.sh --all` builds and runs
# every C++ test instead.
# Root, or the packages g++-aarch64-linux-gnu, qemu-user, cmake, ninja-build, python3 already there. The Arm
# libraries come from the distribution's archive into build-aarch64/root; the system stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
target=hocket_kernel_tests
if [ "${1:-}" = --all ]; then
  target=hocket_tests
  shift
fi
build=$PWD/build-aarch64 root=$PWD/build-aarch64/root
tools=(g++-aarch64-linux-gnu qemu-user cmake ninja-build python3)
libraries=(libc6-dev libstdc++6 libgtest-dev libcpp-httplib-dev)
while read -r package; do
  case $package in *-dev) libraries+=("$package") ;; esac
done < <(tools/setup.sh --sim --list)

missing=()
for p in "${tools[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi

# An apt of its own: another architecture, nothing installed, its state below build-aarch64.
if [ ! -e "$root/.complete" ]; then
  state=$build/apt
  mkdir -p "$state"/{lists/partial,cache/archives/partial,empty} "$root"
  : >"$state/status"
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$state"
       -o "Dir::State::lists=$state/lists" -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache"
       -o "Dir::Cache::archives=$state/cache/archives" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends --download-only "${libraries[@]}"
  for deb in "$state"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$root"
  done
  # Absolute links would leave the root.
  find "$root" -type l | while read -r link; do
    to=$(readlink "$link")
    case $to in /*) ln -sfn "$root$to" "$link" ;; esac
  done
  touch "$root/.complete"
fi

cat >"$build/toolchain.cmake" <<TXT
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT $root)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
TXT
cmake -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DHOCKET_BENCH=OFF .
cmake --build "$build" -j "$(nproc)" --target "$target"
HOCKET_SOURCE_DIR=$PWD qemu-aarch64 -L "$root" "$build/$target" --gtest_brief=1 "$@"

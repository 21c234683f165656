// SPDX-License-Identifier: Apache-2.0
// Monotonic time in integer nanoseconds, for timing and timeouts; never for names or results.
#pragma once

#include <ctime>

#include <cstdint>

namespace hocket {

/// Nanoseconds of CLOCK_MONOTONIC, comparable between the processes of one machine. About 25 ns.
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

inline double seconds_since(int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

}  // namespace hocket

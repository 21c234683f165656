// SPDX-License-Identifier: Apache-2.0
// The benches of `hocket bench`, one file each, and the clocks that they read.
#pragma once

#include <cstdint>
#include <ctime>

#include "base/clock.h"
#include "cli/args.h"

namespace hocket::cli {

void declare_bench_step(Args& args);
void declare_bench_executor(Args& args);
void declare_bench_compile(Args& args);
void declare_bench_serve(Args& args);

inline double ms_since(int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-6; }

/// CPU time of the process so far, all threads together.
inline double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

}  // namespace hocket::cli

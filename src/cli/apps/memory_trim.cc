// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/memory_trim.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace hocket::cli {

namespace {

constexpr double kTrimEveryS = 2;
constexpr int64_t kTrimFrom = int64_t{16} << 20;  // bytes of growth that are worth some ms

/// Returns the resident bytes of this process; 0: unknown.
int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

MemoryTrim::MemoryTrim() : floor_(resident_bytes()) {}

void MemoryTrim::look() {
#ifdef __GLIBC__
  if (seconds_since(last_ns_) < kTrimEveryS) return;
  last_ns_ = now_ns();
  const int64_t bytes = resident_bytes();
  if (bytes > floor_ + kTrimFrom) {
    malloc_trim(0);
    floor_ = resident_bytes();
  }
  floor_ = std::min(floor_, bytes);
#endif
}

}  // namespace hocket::cli

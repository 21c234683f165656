// SPDX-License-Identifier: Apache-2.0
// Memory that threads have freed, and that the allocator keeps, goes back to the system.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace hocket::cli {

class MemoryTrim {
 public:
  MemoryTrim();
  /// Looks every few seconds whether this process has grown, and gives back what is free. To be
  /// called often.
  void look();

 private:
  int64_t last_ns_ = now_ns();
  int64_t floor_;  ///< resident bytes after the last time
};

}  // namespace hocket::cli

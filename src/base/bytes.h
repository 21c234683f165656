// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hocket {

/// Copies `bytes` bytes (0 or more) that do not overlap. A copy of nothing is allowed to and from
/// null: a share without elements has no memory, and std::memcpy leaves that case undefined.
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

}  // namespace hocket

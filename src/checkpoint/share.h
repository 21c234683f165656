// SPDX-License-Identifier: Apache-2.0
// What one process stores of a tensor that lies on many ranks.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "graph/tensor_type.h"

namespace hocket::checkpoint {

/// Elements [first, first + count) of a tensor, side by side in memory, and the rank that has them.
struct Share {
  int32_t rank = 0;
  int64_t first = 0, count = 0;
  const void* data = nullptr;
};

struct SharedTensor {
  std::string name;
  graph::TensorType type;  ///< of the whole
  /// What the ranks of this process store of it, in ascending order of elements. Asked for one
  /// tensor after another, so that no more than one list is there at a time.
  std::function<std::vector<Share>()> shares;
  /// Brings bytes from where a rank has its shares to the host.
  std::function<void(int32_t rank, void* to, const void* from, int64_t bytes)> copy =
      [](int32_t, void* to, const void* from, int64_t bytes) {
        std::memcpy(to, from, static_cast<size_t>(bytes));
      };
};

}  // namespace hocket::checkpoint

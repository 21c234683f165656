// SPDX-License-Identifier: Apache-2.0
// Shares of a tensor that one process stores.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "graph/tensor_type.h"

namespace hocket::checkpoint {

/// Elements [first, first + count) of a tensor, contiguous in the memory of a rank.
struct Share {
  int32_t rank = 0;
  int64_t first = 0, count = 0;
  const void* data = nullptr;
};

/// Copies `count` elements of `size` bytes, which lie `to_stride` and `from_stride` elements apart.
inline void copy_strided(char* to, int64_t to_stride, const char* from, int64_t from_stride,
                         int64_t count, int64_t size) {
  if (to_stride == 1 && from_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count * size));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride * size, from + i * from_stride * size,
                static_cast<size_t>(size));
  }
}

/// Tensor with elements spread over ranks and processes.
struct SharedTensor {
  std::string name;
  graph::TensorType type;  ///< of the whole tensor
  /// Returns the elements that the ranks of this process store, in ascending order. Called for one
  /// tensor after another, so that only one list exists at a time.
  std::function<std::vector<Share>()> shares;
  /// Copies bytes from the memory that holds a rank's shares to the host.
  std::function<void(int32_t rank, void* to, const void* from, int64_t bytes)> copy =
      [](int32_t, void* to, const void* from, int64_t bytes) {
        std::memcpy(to, from, static_cast<size_t>(bytes));
      };
};

}  // namespace hocket::checkpoint

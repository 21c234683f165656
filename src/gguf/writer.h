// SPDX-License-Identifier: Apache-2.0
// Writing of GGUF files, version 3.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gguf/blocks.h"
#include "gguf/metadata.h"
#include "graph/tensor_type.h"

namespace hocket::gguf {

/// Tensor to write. `read` is called for consecutive ranges of its elements.
struct OutputTensor {
  std::string name;
  ElementType type = ElementType::f32;  ///< F32, F16, BF16 or Q8_0
  graph::Dims dims;                     ///< the slowest first
  std::function<void(int64_t first, int64_t count, float* numbers)> read;
};

/// Writes a whole file to `path` by write_output: complete or not at all. Returns its bytes. The
/// data is aligned to `general.alignment`, 32 without that key. Throws Error for a number without a
/// code of its tensor's type.
int64_t save_gguf(const std::string& path, const Metadata& metadata,
                  const std::vector<OutputTensor>& tensors);

}  // namespace hocket::gguf

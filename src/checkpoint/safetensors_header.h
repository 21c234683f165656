// SPDX-License-Identifier: Apache-2.0
// JSON header of a safetensors file, parsed event by event, so that a hostile one costs no more
// memory than its own length. Internal to src/checkpoint.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hocket::checkpoint {

/// Parsed header.
struct Header {
  std::vector<StoredTensor> tensors;  ///< sorted by offset from the start of the file
  std::map<std::string, std::string> metadata;
};

/// Reads and validates the header of a file, against the size that the file had when it was opened.
Header read_header(const RandomFile& file);

}  // namespace hocket::checkpoint

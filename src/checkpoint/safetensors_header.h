// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, parsed event by event so that a hostile one costs no more
// memory than its own length. Internal to src/checkpoint.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hocket::checkpoint {

struct Header {
  std::vector<StoredTensor> tensors;  ///< by first byte, which counts from the start of the file
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of a file, against the size that the file had when it was opened.
Header read_header(const RandomFile& file);

}  // namespace hocket::checkpoint

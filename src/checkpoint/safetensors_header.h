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

/// Parses and checks the header of a file of `file_bytes`; `where` is its name in errors.
Header parse_header(std::string_view file, const std::string& where);

}  // namespace hocket::checkpoint

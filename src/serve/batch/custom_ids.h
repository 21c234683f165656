// SPDX-License-Identifier: Apache-2.0
// Values of custom_id in the rows of an input: OpenAI's batches have each once.
#pragma once

#include <cstdint>
#include <string>

#include "serve/batch/input_rows.h"

namespace hocket::serve {

/// Rows with the custom_id of an earlier row.
struct RepeatedIds {
  int64_t rows = 0;   ///< their number
  int64_t first = 0;  ///< the first one; meaningless if there are none
  std::string id;     ///< its custom_id, as JSON
};

/// Reads all rows; takes 16 bytes of memory for each with a custom_id. Longer rows than
/// `most_row_bytes` are left out.
RepeatedIds find_repeated_ids(const InputRows& input, int64_t most_row_bytes);

}  // namespace hocket::serve

// SPDX-License-Identifier: Apache-2.0
// The parts of a batch job become its output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/batch/journal.h"

namespace hocket::serve {

/// Writes output.jsonl and errors.jsonl, in the order of the input. Throws Error unless the parts
/// are as the journal has them, and hold every row exactly once.
void merge_batch(std::vector<BatchPart> parts, const std::string& parts_folder,
                 const std::string& folder, int64_t rows);

}  // namespace hocket::serve

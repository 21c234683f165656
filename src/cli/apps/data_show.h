// SPDX-License-Identifier: Apache-2.0
// Functions behind `hocket data show`: a fine-tuning set as the model sees it, as text and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/example_data.h"

namespace hocket::cli {

/// One sequence of a training row.
struct ShownSequence {
  std::string place;  ///< of its example, "chat.jsonl:17"
  std::string part;   ///< "chosen", "rejected", "desirable", "undesirable" or nothing
  int64_t row = 0;    ///< its row in the order of training
  std::vector<int32_t> ids, positions;
  std::vector<bool> trained;  ///< ids that are targets
};

/// Returns the sequences of the first rows, as the trainer gets them, `count` or a few more, so
/// that the last row is whole.
std::vector<ShownSequence> shown_sequences(const data::ExampleRows& rows, int64_t count);

struct ShowStyle {
  bool colour = false;    ///< trained tokens in colour; else between ⟦ and ⟧
  bool terminal = false;  ///< control characters are written as \xHH
};

/// Lengths of examples before any is cut off: of pairs both answers with the prompt together.
struct Lengths {
  explicit Lengths(const data::TokenExamples& examples);
  std::vector<int64_t> sorted;
  int64_t quantile(double share) const;
};

std::string show_text(const engine::ExampleData& data, bool valid, int64_t count,
                      const ShowStyle& style);
std::string show_json(const engine::ExampleData& data, bool valid, int64_t count);

}  // namespace hocket::cli

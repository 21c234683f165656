// SPDX-License-Identifier: Apache-2.0
// Training data as the model sees them, for people: the first sequences with their trained tokens,
// and the lengths of all examples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/examples/example_rows.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::data {

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
std::vector<ShownSequence> shown_sequences(const ExampleRows& rows, int64_t count);
/// Returns the same of rows of any kind: a sequence begins at each position 0.
std::vector<ShownSequence> shown_documents(const TrainingRows& rows, int64_t count);

/// Calls the function for the texts of a sequence in turn, trained or not; none is empty.
void for_each_part(const ShownSequence& sequence, const Tokenizer& tokenizer,
                   const std::function<void(bool trained, const std::string& text)>& take);

/// Lengths of examples before any is cut off: of pairs both answers with the prompt together.
struct Lengths {
  Lengths() = default;
  explicit Lengths(const TokenExamples& examples);
  explicit Lengths(std::vector<int64_t> lengths);
  std::vector<int64_t> sorted;

  /// Requires: there is a length.
  int64_t quantile(double share) const;
  struct Bucket {
    int64_t most = 0, count = 0;
  };
  /// Counts of lengths up to 16, 32, 64 and so on.
  std::vector<Bucket> histogram() const;
};

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Fine-tuning data of a run: its sources as a model's tokenizer and chat template read them, and
// rows of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/examples/example_rows.h"
#include "data/examples/example_set.h"
#include "run/config.h"

namespace hocket::engine {

struct ExampleDataOptions {
  std::string where;       ///< the command or run, in errors
  std::string model;       ///< a resolved folder or GGUF file with the tokenizer
  int64_t vocabulary = 0;  ///< of the model; 0: unknown
  int64_t seq_len = 0;
  uint64_t seed = 0;          ///< of the order of training rows
  bool unpair = false;        ///< a preference becomes two unpaired examples
  int64_t most_examples = 0;  ///< in a row; 0: any number
  int64_t limit = 0;          ///< examples of each source; 0: all
  std::function<void(const std::string&)> progress;
};

struct ExampleData {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::shared_ptr<const data::TokenExamples> train, valid;
  std::vector<data::SourceReport> sources;
  /// Null where no example is of the split.
  std::unique_ptr<data::ExampleRows> train_rows, valid_rows;

  /// Returns the identity of all that a training sees: texts as tokens, masks, split, rows.
  std::string fingerprint() const;
};

/// Reads `section.sources`. Rows of held-out examples come in the order of the sources, every
/// example once an epoch. Throws Error as data::read_examples and data::ExampleRows do, and for an
/// id that the model has not.
ExampleData read_example_data(const DataSection& section, const ExampleDataOptions& options);

/// "2 desirable, 1 undesirable", of rows of unpaired completions; else empty.
std::string labels_text(const data::ExampleRows& rows);
/// Returns a warning where one of the labels is absent, or where their numbers and weights are out
/// of balance by KTO's rule; else empty.
std::string labels_warning(const data::ExampleRows& rows, const PreferenceSection& preference);

}  // namespace hocket::engine

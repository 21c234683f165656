// SPDX-License-Identifier: Apache-2.0
// Trains a byte-level BPE: counts words, then merges the most frequent pair of neighbours, again
// and again, with counts that are updated and not recounted. Equal counts: the pair with the lower
// ids first. The result is that of Hugging Face's BpeTrainer with the same settings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_part.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::data {

struct BpeTrainProgress {
  enum class Phase { count_words, merge } phase = Phase::count_words;
  int64_t done = 0;   ///< bytes counted, or tokens made
  int64_t total = 0;  ///< of the same; in count_words 0 where it is not known
};

struct BpeTrainOptions {
  int32_t vocab_size = 4096;  ///< with the special tokens and the 256 bytes
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  ///< ids 0, 1, ...; the first is eos
  int64_t min_count = 2;  ///< a pair that is rarer is not merged: the vocabulary may stay smaller
  std::string pattern = kGpt2Pattern;
  std::function<void(const BpeTrainProgress&)> progress;
};

class BpeTrainer {
 public:
  /// Throws Error for a vocabulary that is too small for the bytes and special tokens, or too
  /// large.
  explicit BpeTrainer(BpeTrainOptions options);
  ~BpeTrainer();

  /// Counts the words of one text; texts do not touch each other.
  void add(std::string_view text);
  /// Returns the trained tokenizer. Throws Error if no text was added.
  Tokenizer train();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Trains on files, or parts of files, in any order the same. Throws Error as above, and for a file
/// that cannot be read.
Tokenizer train_bpe(const std::vector<TextPart>& texts, const BpeTrainOptions& options);
/// Trains on whole files.
inline Tokenizer train_bpe(const std::vector<std::string>& files, const BpeTrainOptions& options) {
  return train_bpe(std::vector<TextPart>(files.begin(), files.end()), options);
}

}  // namespace hocket::data

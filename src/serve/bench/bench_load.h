// SPDX-License-Identifier: Apache-2.0
// Requests of a load test, and the times at which they are sent; all from a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace hocket::serve {

/// Seconds after the start at which each of `count` requests is sent. Without a rate (requests/s)
/// all are sent at once. Gaps are drawn from a gamma distribution of shape `burstiness`: 1 is a
/// Poisson process, smaller is burstier. They are scaled so that the last request is sent after
/// count / rate, as vLLM does.
std::vector<double> arrival_times(int64_t count, std::optional<double> rate, double burstiness,
                                  uint64_t seed);

struct BenchPrompt {
  std::string text;
  int64_t tokens = 0;  ///< 0: not known
  int64_t output_tokens = 0;
};

struct RandomPrompts {
  int64_t count = 1000, input_len = 1024, output_len = 128;
  /// Lengths are uniform in [len (1 - ratio), len (1 + ratio)]; below 1.
  double range_ratio = 0;
  int64_t prefix_len = 0;  ///< tokens that all prompts begin with, on top
  uint64_t seed = 0;
};

/// Prompts of random tokens, as texts that the tokenizer encodes to the lengths drawn. A text whose
/// length cannot be had exactly keeps the nearest one found; `tokens` are those that it has.
std::vector<BenchPrompt> random_prompts(const RandomPrompts& options,
                                        const data::Tokenizer& tokenizer);

/// Prompts of a JSONL file, {"prompt": text, "output_tokens": n}, where the latter may be missing:
/// then it is `output_len`. A shorter file is read again from its beginning. `tokenizer` may be
/// null. Throws Error for a line that is none, and for a file without prompts.
std::vector<BenchPrompt> file_prompts(const std::string& path, int64_t count, int64_t output_len,
                                      const data::Tokenizer* tokenizer);

}  // namespace hocket::serve

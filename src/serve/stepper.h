// SPDX-License-Identifier: Apache-2.0
// One forward step over tokens of several sequences, as the scheduler sees it: a real model, a
// simulated one, or a test's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ops/sample.h"

namespace hocket::serve {

/// Sizes that no step exceeds. Data-parallel ranks are parts: a sequence stays in one of them.
struct StepLimits {
  int64_t parts = 1;
  int64_t tokens = 512;       ///< new ones of a step, of a part
  int64_t sequences = 32;     ///< of a step, of a part
  int64_t longest = 2048;     ///< tokens of a sequence
  int64_t pages = 64;         ///< of a part's KV cache
  int64_t rows = 64;          ///< logits of a step
  int64_t changes = 4096;     ///< changed logits of a step
  int64_t alternatives = 20;  ///< reported per row
  int64_t vocab = 0;          ///< tokens that may be drawn
  int64_t head_parts = 1;     ///< models::Generation::head_parts
  bool routes = false;        ///< models::Generation::routes
};

/// Inputs of a step. Tokens of a sequence stand one behind the other, those of a part, too.
struct StepInput {
  std::vector<int64_t> part_tokens;  ///< [parts]: how many of the tokens are of a part
  std::vector<int32_t> tokens, positions, sequences;  ///< [T]
  std::vector<std::vector<int32_t>> pages;            ///< per sequence of the step, of its part
  /// [R, 2], or empty: the page that the sequence's tokens up to this number are copied from, as
  /// far as one page has them; -1: none. It is read behind the step's writing of new tokens.
  std::vector<int32_t> copies;
  std::vector<int32_t> rows;                           ///< [N]: indices of tokens
  std::vector<double> settings;                        ///< [N, ops::kNumSettings]
  std::vector<int64_t> draws;                          ///< [N, ops::kNumDraws]
  std::vector<std::vector<uint32_t>> masks;            ///< [N]: empty: all tokens are allowed
  std::vector<int32_t> ranges;                         ///< [N, 2]
  std::vector<int32_t> changed_tokens, change_counts;  ///< [C]
  std::vector<double> change_biases;                   ///< [C]
  bool alternatives = false;                           ///< they are wanted for some row
};

/// Outputs of a step, by row.
struct StepOutput {
  std::vector<int32_t> tokens;  ///< [N]; -1: a logit of the row is not finite
  /// [N, 2]: of the model; of what was drawn from, or the rank of a given token. Of token -1: the
  /// logit, and its token.
  std::vector<double> logprobs;
  int64_t num_alternatives = 0;              ///< K
  std::vector<int32_t> alternatives;         ///< [N, K], -1: none; empty if not wanted
  std::vector<double> alternative_logprobs;  ///< [N, K]
  /// [T, width]: the experts of every token, by layer; empty without StepLimits::routes.
  std::vector<int32_t> routes;
};

class Stepper {
 public:
  virtual ~Stepper() = default;
  virtual const StepLimits& limits() const = 0;
  /// Throws Error if the step fails: no later one can be run.
  virtual StepOutput step(const StepInput& input) = 0;
};

}  // namespace hocket::serve

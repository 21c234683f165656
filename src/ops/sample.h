// SPDX-License-Identifier: Apache-2.0
// The data of the op `sample`: columns of its inputs, a row per row of logits.
#pragma once

#include <cstdint>

#include "base/math.h"

namespace hocket::ops {

/// Columns of the settings, f64; serve/request.h has their meanings. A row without a repetition
/// penalty has 1 there or 0. `masked`: 1 if the row of the mask counts; its bit i % 32 of word i /
/// 32 allows token i.
enum class Setting : uint8_t {
  temperature,
  top_k,
  top_p,
  min_p,
  repetition_penalty,
  presence_penalty,
  frequency_penalty,
  masked,
  alternatives,  ///< most likely tokens to report; others are -1
  /// 1: the first log-probability is of softmax(logits / temperature) over all ids, as
  /// token_logprobs computes it, if the temperature is above 0.
  tempered,
  /// 1: alternatives are, in place of the most likely tokens, those that the token was drawn from,
  /// by id, with their log-probabilities there; none if none are left out or they have no room.
  candidates,
};
inline constexpr int64_t kNumSettings = 11;

/// Columns of the draws, i64: a uniform number follows from seed, stream and position. `given`: a
/// token in place of a draw, for its log-probability and, in place of the second one, its rank
/// under the model (1: the most likely token; of equal ones the lower ids come first); negative:
/// none.
enum class Draw : uint8_t { seed, stream, position, given };
inline constexpr int64_t kNumDraws = 4;

// Changes of a row are entries [begin, end) of tokens, counts and biases, as its range says. The
// bias is added to the token's logit; a count >= 0 makes the token one of prompt or text, and is
// the number of its occurrences in the text; -1: only the bias.

/// Returns the bytes that a thread needs for rows of this many logits.
inline int64_t sample_scratch(int64_t vocabulary, int64_t element) {
  return round_up(vocabulary * element, 64) + round_up(vocabulary * 4, 64);
}

}  // namespace hocket::ops

// SPDX-License-Identifier: Apache-2.0
// Groups of samples that a report shows: cut to a bounded size when they are taken, and their HTML,
// tokens coloured by advantage. Prompts, answers and errors may hold any bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "rl/advantage.h"
#include "rl/sample.h"

namespace hocket::rl {

/// Returns the prompt of sample i.
using PromptOf = std::function<const Prompt&(size_t)>;

/// Tokens in a row, the first of an answer or its last.
struct ShownTokens {
  std::vector<int32_t> ids;
  std::vector<double> logprobs, sampled_logprobs;
  std::vector<double> advantages;  ///< empty: unknown
};

struct ShownAnswer {
  Sample sample;           ///< without tokens, text and log-probabilities
  int64_t tokens = 0;      ///< of the whole answer
  ShownTokens head, tail;  ///< between them the rest is left out
  bool counts = true;      ///< in the loss
};

struct ShownGroup {
  int64_t number = 0;       ///< Sample::group
  std::string prompt;       ///< shortened
  std::string truth;        ///< as JSON, shortened; empty: none
  std::string data_source;  ///< shortened
  int64_t answers = 0;      ///< of the group
  std::vector<ShownAnswer> shown;
};

/// Groups of a step or an evaluation.
struct ShownSamples {
  int64_t update = 0;  ///< a step: its first update; an evaluation: the last one before it
  int64_t groups = 0;  ///< of which some are shown
  std::vector<ShownGroup> shown;
};

/// Takes up to four groups, evenly spaced, and the first 16 answers of each; at most `most_tokens`
/// tokens of all, the longest answers cut in their middle. `loss_inputs`: advantages, or empty.
ShownSamples shown_samples(int64_t update, std::span<const Sample> samples,
                           std::span<const LossInputs> loss_inputs, const PromptOf& prompt_of,
                           int64_t most_tokens);

/// Returns the groups as HTML. Bytes that are no character, control characters and those that
/// change the order or visibility of text are shown as signs or by their number.
std::string to_html(const ShownSamples& samples, const data::Tokenizer& tokenizer);

/// Returns text as HTML of the same appearance; see to_html.
std::string visible_html(std::string_view text);

/// Returns text of at most about `limit` bytes, whole characters of its beginning and its end.
std::string without_middle(std::string_view text, size_t limit);

}  // namespace hocket::rl

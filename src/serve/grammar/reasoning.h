// SPDX-License-Identifier: Apache-2.0
// Reasoning before a constrained text: free tokens up to </think>.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/grammar/vocabulary.h"

namespace hocket::serve::grammar {

class Reasoning {
 public:
  enum class State : uint8_t {
    may_begin,  ///< the token <think> may come, or the text itself
    running,
    over,
  };
  /// `is_open`: the prompt ends with <think>. `ends`: tokens that reasoning has not. Requires: the
  /// vocabulary outlives it.
  Reasoning(const GrammarVocabulary& vocabulary, bool is_open, std::vector<int32_t> ends);

  State state() const { return state_; }
  /// Adds the bits of its tokens: of all but the ends while it runs, else of <think>.
  void allow(std::span<uint32_t> mask) const;
  /// Takes the next token. Returns the bytes of it that belong to the text behind the reasoning,
  /// whose leading white space is dropped; none: the token is all of the reasoning.
  std::optional<std::string> take(int32_t token);

 private:
  const GrammarVocabulary& vocabulary_;
  State state_;
  std::vector<int32_t> ends_;
  std::vector<int32_t> opening_;  // tokens <think>
  std::string held_;              // the beginning of </think>
};

}  // namespace hocket::serve::grammar

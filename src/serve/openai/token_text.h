// SPDX-License-Identifier: Apache-2.0
// Tokens and their log-probabilities in answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "data/tokenizer/tokenizer.h"
#include "serve/request.h"

namespace hocket::serve {

/// Names of tokens in one answer.
class TokenNames {
 public:
  /// `as_ids`: names are "token_id:7".
  TokenNames(const data::Tokenizer& tokenizer, bool as_ids)
      : tokenizer_(tokenizer), as_ids_(as_ids) {}

  /// Returns a token's bytes; "" for an id that the tokenizer has not.
  std::string_view bytes(int32_t id) const;
  /// Returns its text; of bytes that are no text "bytes:\xe2\x80", as OpenAI has it.
  std::string name(int32_t id) const;

 private:
  const data::Tokenizer& tokenizer_;
  const bool as_ids_;
};

/// Returns characters that begin in `bytes`.
int64_t characters(std::string_view bytes);

/// A finite number for JSON: at least -9999, as vLLM has it.
double shown_logprob(double logprob);

/// Writes the value of a chat's `logprobs`: {"content": [...]}.
void write_chat_logprobs(const TokenNames& names, const std::vector<TokenLogprobs>& tokens,
                         bool sampled, JsonWriter* json);

/// The value of /v1/completions' `logprobs`, token by token.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(bool sampled) : sampled_(sampled) {}
  /// Appends a token; null log-probabilities: the first of a prompt has none.
  void add(const TokenNames& names, int32_t id, const TokenLogprobs* logprobs);
  /// Hides the first so many characters of the next tokens, which are not in the text: they have no
  /// place.
  void hide(int64_t characters) { hidden_ = characters; }
  /// Writes what was added since the last time.
  void write(JsonWriter* json);

 private:
  struct Row {
    std::string name;
    int64_t offset = 0;
    bool known = false;
    double logprob = 0, sampled = 0;
    std::vector<std::pair<std::string, double>> top = {};
  };
  bool sampled_;
  int64_t offset_ = 0;  ///< characters before the next token
  int64_t hidden_ = 0;
  std::vector<Row> rows_;
};

/// Writes the value of `prompt_logprobs`, as vLLM does: null for the first token, then an object by
/// token id.
void write_prompt_logprobs(const TokenNames& names, const std::vector<TokenLogprobs>& tokens,
                           JsonWriter* json);

}  // namespace hocket::serve

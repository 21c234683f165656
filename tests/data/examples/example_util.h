// SPDX-License-Identifier: Apache-2.0
// Helpers of tests about fine-tuning data: a byte-level tokenizer for chats, and examples.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/ordered_json.h"
#include "data/examples/example.h"
#include "data/tokenizer/tokenizer_impl.h"

namespace hocket::data {

/// Ids 0 to 255 are the bytes, then come the results of merges, then the special tokens
/// <|endoftext|> (the end of text), <|im_start|> and <|im_end|>.
inline TokenizerSpec chat_spec(const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerSpec spec;
  std::map<std::string, int32_t> ids;
  const auto append = [&](const std::string& bytes) {
    ids.emplace(bytes, static_cast<int32_t>(spec.tokens.size()));
    spec.tokens.push_back(bytes);
  };
  for (int b = 0; b < 256; ++b) {
    append(std::string(1, static_cast<char>(b)));
  }
  for (const auto& [left, right] : merges) {
    append(left + right);
  }
  for (const auto& [left, right] : merges) {
    spec.merges.push_back({ids.at(left), ids.at(right)});
  }
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    AddedToken token;
    token.id = static_cast<int32_t>(spec.tokens.size());
    token.text = text;
    token.special = true;
    append(text);
    spec.added.push_back(token);
  }
  spec.eos = ids.at("<|endoftext|>");
  return spec;
}

inline Example chat_example(const std::string& messages) {
  Example out;
  out.kind = Example::Kind::chat;
  out.messages = parse_ordered_json(messages, "test");
  return out;
}

/// A prompt and its completion, both as JSON.
inline Example answer_example(const std::string& prompt, const std::string& completion) {
  Example out;
  out.kind = Example::Kind::completion;
  out.prompt = parse_ordered_json(prompt, "test");
  out.completion = parse_ordered_json(completion, "test");
  return out;
}

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Metadata of GGUF files with a small tokenizer of either kind.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "data/tokenizer/byte_alphabet.h"
#include "gguf/metadata.h"

namespace hocket::data {

inline gguf::Metadata tokens_metadata(const char* model, std::vector<std::string> tokens,
                                      std::vector<int64_t> kinds) {
  using gguf::Value;
  gguf::Metadata out("f");
  out.add("tokenizer.ggml.model", Value::of_string(model));
  out.add("tokenizer.ggml.tokens", Value::of_strings(std::move(tokens)));
  out.add("tokenizer.ggml.token_type", Value::of_i32s(std::move(kinds)));
  out.add("tokenizer.ggml.bos_token_id", Value::of_u32(1));
  out.add("tokenizer.ggml.eos_token_id", Value::of_u32(2));
  return out;
}

/// A BPE of characters by scores: <unk>, <s>, </s>, 256 bytes, and a few tokens.
inline gguf::Metadata scored_metadata() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int64_t> kinds = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    kinds.push_back(6);
  }
  std::vector<double> scores(tokens.size());
  const std::pair<const char*, double> more[] = {
      {"\u2581", 0}, {"a", 0},    {"b", 0},         {"c", 0},        {"ab", -2},
      {"bc", -1},    {"abc", -9}, {"\u2581ab", -3}, {"\u2581a", -8}, {"abab", -7}};
  for (const auto& [text, score] : more) {
    tokens.emplace_back(text);
    kinds.push_back(1);
    scores.push_back(score);
  }
  gguf::Metadata out = tokens_metadata("llama", std::move(tokens), std::move(kinds));
  out.add("tokenizer.ggml.scores", gguf::Value::of_f32s(std::move(scores)));
  out.add("tokenizer.ggml.unknown_token_id", gguf::Value::of_u32(0));
  return out;
}

/// A byte-level BPE: <unk>, <s>, </s>, 256 bytes, and two merges.
inline gguf::Metadata byte_level_metadata() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int64_t> kinds = {3, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(to_alphabet(std::string(1, static_cast<char>(byte))));
  }
  tokens.insert(tokens.end(), {"ab", "\u0120ab"});
  kinds.resize(tokens.size(), 1);
  gguf::Metadata out = tokens_metadata("gpt2", std::move(tokens), std::move(kinds));
  out.add("tokenizer.ggml.pre", gguf::Value::of_string("gpt-2"));
  out.add("tokenizer.ggml.merges", gguf::Value::of_strings({"a b", "\u0120 ab"}));
  return out;
}

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Names and numbers of tokenizers in GGUF files, for the reader (gguf.cc) and the writer
// (gguf_write.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/special_tokens.h"

namespace hocket::data::gguf_kinds {

using gguf::TokenKind;
using enum gguf::TokenKind;

inline constexpr const char* kPrefix = gguf::kTokenizerPrefix;

/// The mark of blanks in tokenizers of sentencepiece's kind.
inline constexpr const char* kBlank = "\xE2\x96\x81";

/// Digits one by one, and GPT-2's words between them, as one expression: white space before a digit
/// is as that at the end of a text.
extern const char* const kDigitsPattern;
/// GPT-2's pattern as it is also written.
extern const char* const kGpt2Spelled;

/// Pre-tokenizers by their names in tokenizer.ggml.pre.
struct Pretokenizer {
  std::vector<const char*> names;     ///< the first one is written
  std::vector<const char*> patterns;  ///< cut a text one after the other
  bool ignore_merges = false;
  bool nfc = false;
  bool adds_bos = false;  ///< without tokenizer.ggml.add_bos_token
};

const std::vector<Pretokenizer>& pretokenizers();
/// Every first name, for errors.
std::string pretokenizer_names();

}  // namespace hocket::data::gguf_kinds

// SPDX-License-Identifier: Apache-2.0
// Names and numbers of tokenizers in GGUF files, for the reader (gguf.cc) and the writer
// (gguf_write.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hocket::data::gguf_kinds {

/// Kinds of tokens in tokenizer.ggml.token_type.
enum TokenKind : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

inline constexpr const char* kPrefix = "tokenizer.ggml.";

/// The mark of blanks in tokenizers of sentencepiece's kind.
inline constexpr const char* kBlank = "\xE2\x96\x81";

/// Control tokens that end a turn of a chat, where a file does not name one: the first present one.
inline constexpr const char* kTurnEnds[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"};

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

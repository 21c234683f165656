// SPDX-License-Identifier: Apache-2.0
// Tokenizers in the metadata of GGUF files, as tokenizer.json of Hugging Face and back: one reader
// has the meaning of both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gguf/file.h"
#include "gguf/metadata.h"

namespace hocket::data {

/// Tokenizer of a GGUF file, with what callers need besides.
struct GgufTokenizer {
  std::string json;           ///< tokenizer.json
  std::string config;         ///< tokenizer_config.json, with the special tokens and the template
  std::string chat_template;  ///< empty: none
  std::optional<int32_t> bos, eos, padding;
  std::string eos_text;   ///< empty: none
  bool adds_bos = false;  ///< `bos` comes before a text
};

/// Reads the tokenizer of a file. Throws Error for none, another model than byte-level BPE, and a
/// pre-tokenizer that is not known. Throws it also for tokens and types of other counts, and ids
/// without a token.
GgufTokenizer read_gguf_tokenizer(const gguf::Metadata& metadata);

/// Adds the keys of a tokenizer for a model of `vocabulary` tokens, of which those without a text
/// are marked as unused. `json` is a tokenizer.json that Tokenizer reads and `config` the
/// tokenizer_config.json beside it, or empty. Throws Error, in the name of `where`, for a tokenizer
/// that GGUF has no name for.
void add_gguf_tokenizer(std::string_view json, std::string_view config,
                        const std::string& chat_template, int64_t vocabulary,
                        const std::string& where, gguf::Metadata* metadata);

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Special tokens that the metadata of a GGUF file names, by their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gguf/metadata.h"

namespace hocket::gguf {

/// Kinds of tokens in tokenizer.ggml.token_type.
enum TokenKind : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

inline constexpr const char* kTokenizerPrefix = "tokenizer.ggml.";

/// Tokens that end a turn of a chat, where a file does not name one: the first present one.
inline constexpr const char* kTurnEnds[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"};

/// Id of a special token: "bos_token_id" and the like. Without the key it is llama.cpp's, <s> 1 and
/// </s> 2 of sentencepiece's kind, where these are control tokens. Throws Error for a key of
/// another type. The id may be no token.
std::optional<int64_t> special_token(const Metadata& metadata, const char* name);

/// Tokens that end a text, a turn or a message, each once. Without a key the end of a turn is the
/// first token of kTurnEnds. llama.cpp ends texts at more tokens, by a list of texts such as
/// <|endoftext|>. Here keys count before texts: an export with an eot_token_id has the ids of its
/// original. Throws Error as special_token() does.
std::vector<int64_t> stop_tokens(const Metadata& metadata);

}  // namespace hocket::gguf

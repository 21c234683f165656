// SPDX-License-Identifier: Apache-2.0
// Files beside a model's weights that say how it reads and writes text: chat template, stop tokens,
// defaults of sampling; of a Hugging Face folder, a checkpoint of ours, or a GGUF file.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "models/config.h"

namespace hocket::data {

/// Sampling that a model's files recommend, as far as they say it.
struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_new_tokens;
  std::vector<std::string> ignored;  ///< keys that change the text and are not supported
  std::string source;                ///< path of the file
};

/// Reads generation_config.json in a model's folder, or what a GGUF file recommends
/// (gguf_sampling); a model without either says nothing. `do_sample: false` is temperature 0.
/// Throws Error for values out of range.
SamplingDefaults read_sampling_defaults(const std::string& model);

/// Returns the tokens that end a text: the union of eos_token_id in config.json and in
/// generation_config.json, the tokenizer's end of text, and a GGUF file's end of turn (without an
/// eot_token_id the token <|eot_id|>, <|im_end|>, <|end|> or <end_of_turn>). Sorted, without ids
/// that are no tokens.
std::vector<int32_t> stop_tokens(const std::string& model, const models::ModelConfig& config,
                                 const Tokenizer& tokenizer);

/// Loads the tokenizer beside a model of `vocabulary` tokens, that of its GGUF file, or the one at
/// `named` (a tokenizer.json or its folder; "": none). `where` is the command in errors, `key` the
/// option or key that gives `named`. Throws Error if it is absent, too large, or not the model's.
Tokenizer load_model_tokenizer(const std::string& where, const std::string& model,
                               const std::string& named, int64_t vocabulary,
                               const std::string& key = "--tokenizer");

/// Tokens that come before a text at the beginning of a document: those of the tokenizer's
/// post-processor or of a GGUF file's metadata. In a checkpoint of ours they are those of its
/// training: what its run.json says (of examples and prompts), else the end of text.
std::vector<int32_t> beginning_of_text(const std::string& model, const Tokenizer& tokenizer);

/// Returns the ids of a text behind `beginning`. Throws Error for an id that the model has not, and
/// for no id.
std::vector<int32_t> document_ids(const std::string& where, const std::vector<int32_t>& beginning,
                                  const Tokenizer& tokenizer, std::string_view text,
                                  int64_t vocabulary, const EncodeOptions& encode_options = {});

/// Throws Error, in the name of `where`, if one of the ids is not below the model's vocab_size.
void require_ids(const std::string& where, const std::vector<int32_t>& ids,
                 const Tokenizer& tokenizer, int64_t vocabulary);

/// Returns the model's chat template. Throws Error, with the model's name, if it has none.
ChatTemplate load_chat_template(const std::string& model);

/// The same, or nothing for a model without one. `file`, unless empty, has the template in place
/// of the model's; special tokens are the model's. `key`: the option or key that names `file`, for
/// errors.
std::optional<ChatTemplate> find_chat_template(const std::string& model,
                                               const std::string& file = "",
                                               const std::string& key = "--chat-template");

/// Returns a model's special tokens by their keys ("bos_token").
std::map<std::string, std::string> special_tokens(const std::string& model);

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// Files that stand beside the weights in a model's folder: tokenizer, chat template, special
// tokens, defaults of generation, license. They go into every checkpoint and every export.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gguf/metadata.h"
#include "models/config.h"

namespace hocket::checkpoint {

inline constexpr const char* kTokenizerFile = "tokenizer.json";
inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr const char* kSpecialTokensFile = "special_tokens_map.json";
inline constexpr const char* kAddedTokensFile = "added_tokens.json";
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
inline constexpr const char* kGenerationFile = "generation_config.json";

/// Files beside a model's weights.
struct ModelFiles {
  std::map<std::string, std::string> texts;  ///< by name
  std::vector<std::string> left;             ///< names in the folder that do not go along

  bool has(const std::string& name) const { return texts.contains(name); }
};

/// Reads the files of a MODEL: its folder, or a GGUF file (its metadata become the same files).
/// Without a tokenizer there is none. Throws Error for a tokenizer that is not JSON or is too
/// large, and for one of a GGUF file that is not supported.
ModelFiles read_model_files(const std::string& model);

/// Replaces whatever concerns the tokenizer by the files of `path`: a tokenizer.json or its folder,
/// or a GGUF file. Throws Error if it is absent.
void take_tokenizer(const std::string& path, ModelFiles* files);

/// Completes files that have a tokenizer.json so that transformers' AutoTokenizer opens them: a
/// missing tokenizer_config.json is made, with the end of text of `config`.
void complete_tokenizer(const models::ModelConfig& config, ModelFiles* files);

/// Adds `ids` to the eos_token_id of generation_config.json, which is made of `config` where there
/// is none. Returns a sentence about the change; empty: they were all there.
std::string add_stop_tokens(const std::vector<int64_t>& ids, const models::ModelConfig& config,
                            ModelFiles* files);

/// Gives a model the ids of the special tokens (begin, end, padding) of `files`, where these are
/// not those of `base`, in `config` and in generation_config.json. Texts still end at the tokens
/// that ended them before. Returns a sentence for each change. Throws Error for a token beyond the
/// rows of the model.
std::vector<std::string> take_special_tokens(const ModelFiles& base, models::ModelConfig* config,
                                             ModelFiles* files);

/// Makes `text` the only chat template of the files. Returns whether they had one before.
bool set_chat_template(const std::string& text, ModelFiles* files);

/// Returns whether the files have a chat template.
bool has_chat_template(const ModelFiles& files);

/// Replaces the chat templates by those of `from`, unless it has none. Requires:
/// complete_tokenizer() has made a tokenizer_config.json for a tokenizer without one.
void take_chat_template(const ModelFiles& from, ModelFiles* files);

/// Returns the chat template: a file of its own comes first. Throws Error, in the name of `where`,
/// for several without a default.
std::string chat_template_of(const ModelFiles& files, const std::string& where);

/// Adds to the metadata of a GGUF file all that it can hold of the files: tokenizer, special
/// tokens, chat templates, stop tokens, sampling, license. Returns a sentence for each part that it
/// cannot hold. Throws Error for a tokenizer that GGUF has no name for.
std::vector<std::string> add_gguf_files(const ModelFiles& files, const models::ModelConfig& config,
                                        const std::string& where, gguf::Metadata* metadata);

}  // namespace hocket::checkpoint

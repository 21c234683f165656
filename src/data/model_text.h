// SPDX-License-Identifier: Apache-2.0
// Files beside a model's weights that say how it reads and writes text: chat template, stop tokens,
// defaults of sampling; of a Hugging Face folder, a checkpoint of ours, or a GGUF file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"
#include "models/config.h"

namespace hocket::data {

/// Sampling of a generation_config.json, as far as it says it.
struct SamplingDefaults {
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k, max_new_tokens;
  std::vector<std::string> ignored;  ///< keys that change the text and are not supported
};

/// Reads generation_config.json in a model's folder; a file without one, and a GGUF file, says
/// nothing. `do_sample: false` is temperature 0. Throws Error for values out of range.
SamplingDefaults read_sampling_defaults(const std::string& model);

/// Returns the tokens that end a text: the union of eos_token_id in config.json and in
/// generation_config.json, the tokenizer's end of text, and a GGUF file's end of turn. Sorted.
std::vector<int32_t> stop_tokens(const std::string& model, const models::ModelConfig& config,
                                 const Tokenizer& tokenizer);

/// Returns the model's chat template. Throws Error, with the model's name, if it has none.
ChatTemplate load_chat_template(const std::string& model);

}  // namespace hocket::data

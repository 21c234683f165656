// SPDX-License-Identifier: Apache-2.0
// Sampling that a GGUF file recommends.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "gguf/metadata.h"

namespace hocket::data {

/// Returns the sampling of general.sampling.* under the names of generation_config.json, as
/// llama.cpp reads it: a temperature below 0 is 0, and a penalty of the last 0 tokens is none. But
/// a penalty without penalty_last_n is one of all tokens, as in transformers (llama.cpp: of 64).
/// Appends keys that change the text and are not supported to `ignored`. Throws Error for a key of
/// another type.
nlohmann::json gguf_sampling(const gguf::Metadata& in, std::vector<std::string>* ignored);

}  // namespace hocket::data

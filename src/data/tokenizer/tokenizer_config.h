// SPDX-License-Identifier: Apache-2.0
// The tokenizer_config.json of a tokenizer's folder, with the special_tokens_map.json of older
// ones.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/json.h"

namespace hocket::data {

/// Puts the special tokens of a special_tokens_map.json into a tokenizer_config.json. As in
/// transformers they win where the configuration has no table of added tokens, and else count for
/// nothing. Throws Error if the map is no object, or one of its tokens has no text.
void add_special_tokens_map(const JsonView& map, nlohmann::json* config);

/// Returns a folder's configuration with its map; an empty object if it has neither.
nlohmann::json read_tokenizer_config(const std::string& folder);

}  // namespace hocket::data

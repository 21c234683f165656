// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenizer_config.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"

namespace hocket::data {
namespace {

/// Returns whether the map counts. A configuration that is no object is its reader's to refuse.
bool takes_map(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto table = config.find("added_tokens_decoder");
  return table == config.end() || table->is_null();
}

}  // namespace

void add_special_tokens_map(const JsonView& map, nlohmann::json* config) {
  if (!takes_map(*config)) return;
  if (!map.is_object()) {
    map.fail("is no object");
  }
  for (const auto& [key, value] : map.json().items()) {
    // A switch such as add_bos_token is no token.
    if (!key.ends_with("_token") || value.is_null() || value.is_boolean()) continue;
    const JsonView token = map.at(key);
    const std::string text = token.is_object() ? token.get_string("content") : token.as_string();
    if (!text.empty()) {
      (*config)[key] = value;
    }
  }
}

nlohmann::json read_tokenizer_config(const std::string& folder) {
  const std::string config_file = join_path(folder, "tokenizer_config.json");
  const std::string map_file = join_path(folder, "special_tokens_map.json");
  nlohmann::json config = nlohmann::json::object();
  if (file_exists(config_file)) {
    config = read_json(config_file);
  }
  if (takes_map(config) && file_exists(map_file)) {
    const nlohmann::json map = read_json(map_file);
    add_special_tokens_map(JsonView(map, map_file), &config);
  }
  return config;
}

}  // namespace hocket::data

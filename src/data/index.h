// SPDX-License-Identifier: Apache-2.0
// What can be said of a prepared folder by its index alone, without its tokenizer and shards.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace hocket::data {

/// The file that says what a prepared folder holds.
inline constexpr const char* kIndex = "index.json";

/// Whether files of a prepared folder are held out; none if it is not prepared. Error: a bad index.
/// In a header, since a build that only checks and simulates has nothing else of data.
inline std::optional<bool> holds_out(const std::string& folder) {
  const std::string path = join_path(folder, kIndex);
  if (!file_exists(path)) return std::nullopt;
  const nlohmann::json json = read_json(path);
  return !JsonView(json, path).at("valid").at("shards").as_strings().empty();
}

}  // namespace hocket::data

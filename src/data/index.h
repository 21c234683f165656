// SPDX-License-Identifier: Apache-2.0
// Facts of a prepared folder from its index alone, without tokenizer and shards.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace hocket::data {

/// Manifest of a prepared folder.
inline constexpr const char* kIndex = "index.json";

/// Returns whether a prepared folder has held-out files; nothing if it is not prepared. Throws
/// Error for a bad index. In a header, since a build for check and simulation has no other data
/// code.
inline std::optional<bool> holds_out(const std::string& folder) {
  const std::string path = join_path(folder, kIndex);
  if (!file_exists(path)) return std::nullopt;
  const nlohmann::json json = read_json(path);
  return !JsonView(json, path).at("valid").at("shards").as_strings().empty();
}

}  // namespace hocket::data

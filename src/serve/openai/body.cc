// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/body.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "serve/openai/refusal.h"

namespace hocket::serve {
namespace {

std::string shown(const nlohmann::ordered_json& json) {
  return json.is_structured()
             ? fmt::format("a JSON {}", json.is_array() ? "list" : "object")
             : quote(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                     60);
}

[[noreturn]] void bad(const std::string& param, const nlohmann::ordered_json& got,
                      const char* expected) {
  refuse(param, fmt::format("is {}; expected {}", shown(got), expected));
}

/// Reads a whole number, also one that is written as 5.0.
bool read_integer(const nlohmann::ordered_json& json, int64_t* out) {
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  if (json.is_number_integer()) {
    *out = json.get<int64_t>();
    return true;
  }
  if (!json.is_number_float()) return false;
  const double value = json.get<double>();
  if (std::floor(value) != value || std::abs(value) > 9e15) return false;
  *out = static_cast<int64_t>(value);
  return true;
}

}  // namespace

void refuse(const std::string& param, const std::string& problem) {
  throw Refusal{.status = 400, .message = fmt::format("{} {}", param, problem), .param = param};
}

void refuse_unknown(const std::string& param, const std::vector<std::string>& known) {
  const std::string near = nearest(param, known);
  refuse(param,
         "is no field that this path knows" + (near.empty() ? "" : fmt::format("; try {}", near)));
}

std::vector<int32_t> read_tokens(const nlohmann::ordered_json& json, const std::string& param,
                                 int64_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (const auto& item : json) {
    int64_t id = -1;
    if (!read_integer(item, &id)) bad(param, item, "token ids");
    if (id < 0 || id >= vocab_size) {
      refuse(param, fmt::format("has token {}; expected 0 to {}", id, vocab_size - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Body::Body(const nlohmann::ordered_json& json, std::string path)
    : json_(json), path_(std::move(path)) {
  if (!json.is_object()) bad(path_.empty() ? "the body" : path_, json, "a JSON object");
}

std::string Body::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const nlohmann::ordered_json* Body::find(std::string_view name) const {
  const auto at = json_.find(name);
  return at == json_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<bool> Body::boolean(std::string_view name) const {
  const auto* json = find(name);
  if (json == nullptr) return {};
  if (!json->is_boolean()) bad(path_of(name), *json, "true or false");
  return json->get<bool>();
}

std::optional<double> Body::number(std::string_view name, double least, double most) const {
  const auto* json = find(name);
  if (json == nullptr) return {};
  if (!json->is_number()) bad(path_of(name), *json, "a number");
  const double value = json->get<double>();
  if (!(value >= least && value <= most)) {
    refuse(path_of(name), fmt::format("is {}; expected {} to {}", value, least, most));
  }
  return value;
}

std::optional<int64_t> Body::integer(std::string_view name, int64_t least, int64_t most) const {
  const auto* json = find(name);
  if (json == nullptr) return {};
  int64_t value = 0;
  if (!read_integer(*json, &value)) bad(path_of(name), *json, "a whole number");
  if (value < least || value > most) {
    refuse(path_of(name), most == INT64_MAX
                              ? fmt::format("is {}; expected at least {}", value, least)
                              : fmt::format("is {}; expected {} to {}", value, least, most));
  }
  return value;
}

std::optional<std::string> Body::text(std::string_view name) const {
  const auto* json = find(name);
  if (json == nullptr) return {};
  if (!json->is_string()) bad(path_of(name), *json, "a string");
  return json->get<std::string>();
}

std::vector<std::string> Body::texts(std::string_view name) const {
  const auto* json = find(name);
  if (json == nullptr) return {};
  if (json->is_string()) return {json->get<std::string>()};
  if (!json->is_array()) bad(path_of(name), *json, "a string or a list of strings");
  std::vector<std::string> out;
  for (const auto& item : *json) {
    if (!item.is_string()) bad(path_of(name), item, "strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<int32_t> Body::tokens(std::string_view name, int64_t vocab_size) const {
  const auto* json = list(name);
  return json == nullptr ? std::vector<int32_t>{} : read_tokens(*json, path_of(name), vocab_size);
}

const nlohmann::ordered_json* Body::list(std::string_view name) const {
  const auto* json = find(name);
  if (json != nullptr && !json->is_array()) bad(path_of(name), *json, "a list");
  return json;
}

const nlohmann::ordered_json* Body::object(std::string_view name) const {
  const auto* json = find(name);
  if (json != nullptr && !json->is_object()) bad(path_of(name), *json, "an object");
  return json;
}

}  // namespace hocket::serve

// SPDX-License-Identifier: Apache-2.0
#include "models/config_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace hocket::models {

std::string show(const JsonView& value) {
  using nlohmann::json;
  return quote(value.json().dump(-1, ' ', true, json::error_handler_t::replace), 60);
}

namespace {

int64_t bounded(const JsonView& value, int64_t low, int64_t high) {
  const int64_t got = value.as_int();
  if (got < low || got > high) {
    value.fail(fmt::format("is {}; expected an integer from {} to {}", got, low, high));
  }
  return got;
}

}  // namespace

int64_t read_int(const JsonView& in, std::string_view key, int64_t low, int64_t high,
                 std::optional<int64_t> fallback) {
  return fallback && !in.has(key) ? *fallback : bounded(in.at(key), low, high);
}

double read_number(const JsonView& in, std::string_view key, double low, double high,
                   std::optional<double> fallback) {
  if (fallback && !in.has(key)) return *fallback;
  const JsonView value = in.at(key);
  const double got = value.as_double();
  if (!(got >= low && got <= high)) {
    value.fail(fmt::format("is {}; expected a number from {} to {}", got, low, high));
  }
  return got;
}

std::vector<int64_t> read_ints(const JsonView& in, std::string_view key, int64_t low,
                               int64_t high) {
  std::vector<int64_t> list;
  if (!in.has(key)) return list;
  const JsonView value = in.at(key);
  if (!value.is_array()) return {bounded(value, low, high)};
  for (size_t i = 0; i < value.size(); ++i) {
    list.push_back(bounded(value.at(i), low, high));
  }
  return list;
}

int64_t read_window(const JsonView& in, int64_t absent) {
  constexpr const char* kKey = "sliding_window";
  const std::vector<std::string> keys = in.keys();
  const bool there = std::find(keys.begin(), keys.end(), kKey) != keys.end();
  return read_int(in, kKey, 1, std::numeric_limits<int32_t>::max(), there ? 0 : absent);
}

void refuse(const JsonView& in, std::string_view key, std::string_view advice) {
  if (!in.has(key)) return;
  const JsonView value = in.at(key);
  if (value.is_bool() && !value.as_bool()) return;
  value.fail(fmt::format("is {}, which is not supported; {}", show(value), advice));
}

}  // namespace hocket::models

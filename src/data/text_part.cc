// SPDX-License-Identifier: Apache-2.0
#include "data/text_part.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace hocket::data {

namespace {

constexpr const char* kText = "text";

/// Returns the column `text` of a line; nothing if it is no object that has one.
std::optional<std::string> text_in(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains(kText) || !json[kText].is_string()) return std::nullopt;
  return json[kText].get<std::string>();
}

/// Calls the function with every line that is not blank, its first byte and its number from 1,
/// until it returns false.
void for_each_line(
    const std::string& path,
    const std::function<bool(int64_t begin, int64_t number, std::string_view)>& take) {
  std::string rest;  // of a line that the last piece began
  int64_t begin = 0, number = 0;
  bool goes_on = true;
  const auto end_line = [&](std::string_view line) {
    ++number;
    if (line.find_first_not_of(" \t\r") != line.npos) {
      goes_on = take(begin, number, line);
    }
    begin += std::ssize(line) + 1;
  };
  read_pieces(path, [&](std::string_view piece) {
    for (size_t at = 0; goes_on && at < piece.size();) {
      const size_t end = piece.find('\n', at);
      rest += piece.substr(at, end == piece.npos ? piece.npos : end - at);
      if (end == piece.npos) break;
      end_line(rest);
      rest.clear();
      at = end + 1;
    }
    return goes_on;
  });
  if (goes_on && !rest.empty()) {
    end_line(rest);
  }
}

}  // namespace

std::string TextPart::read() const {
  if (!is_json) {
    std::string text = read_file(path);
    if (begin == 0 && bytes < 0) return text;
    const size_t from = std::min<size_t>(text.size(), static_cast<size_t>(begin));
    return text.substr(from, bytes < 0 ? text.npos : static_cast<size_t>(bytes));
  }
  const RandomFile file(path);
  std::string line(static_cast<size_t>(std::clamp<int64_t>(file.size() - begin, 0, bytes)), '\0');
  file.read(begin, line.data(), line.size());
  return text_in(line).value_or("");  // a file that changed: the text has another hash
}

bool is_json_lines(const std::string& path) {
  if (!path.ends_with(".jsonl") && !path.ends_with(".ndjson")) return false;
  bool is = false;
  for_each_line(path, [&](int64_t, int64_t, std::string_view line) {
    is = text_in(line).has_value();
    return false;
  });
  return is;
}

void for_each_json_line(const std::string& path, const std::function<void(JsonLine&&)>& take) {
  for_each_line(path, [&](int64_t begin, int64_t number, std::string_view line) {
    std::optional<std::string> text = text_in(line);
    if (!text) {
      fail("data",
           "{}:{} is no object with a string {}, as the lines before it are; expected one, or a "
           "name that does not end with .jsonl for plain text",
           path, number, kText);
    }
    take({begin, std::ssize(line), number, *std::move(text)});
    return true;
  });
}

}  // namespace hocket::data

// SPDX-License-Identifier: Apache-2.0
// A run of bytes of a file: a text, where one file has several, among them the lines of JSON Lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace hocket::data {

struct TextPart {
  /// A whole file, or the part that begins at a byte of it; `bytes` below 0: to its end. `is_json`:
  /// a line of JSON, whose column `text` is the text.
  TextPart(std::string path, int64_t begin = 0, int64_t bytes = -1,  // NOLINT: a path is one
           bool is_json = false)
      : path(std::move(path)), begin(begin), bytes(bytes), is_json(is_json) {}

  std::string path;
  int64_t begin = 0, bytes = -1;
  bool is_json = false;

  /// Error: as read_file.
  std::string read() const;
};

/// Returns whether a file is JSON Lines of texts: named .jsonl or .ndjson, and its first line is an
/// object with a string `text`.
bool is_json_lines(const std::string& path);

struct JsonLine {
  int64_t begin = 0, bytes = 0;  ///< in the file, without the line end
  int64_t number = 0;            ///< from 1
  std::string text;
};
/// Calls the function with the lines of such a file in order, but for blank ones. Throws Error for
/// a line that is no object with a string `text`.
void for_each_json_line(const std::string& path, const std::function<void(JsonLine&&)>& take);

}  // namespace hocket::data

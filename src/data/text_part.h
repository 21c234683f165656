// SPDX-License-Identifier: Apache-2.0
// A run of bytes of a file: a text, where one file has several.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/file.h"

namespace hocket::data {

struct TextPart {
  /// A whole file, or the part that begins at a byte of it; `bytes` below 0: to its end.
  TextPart(std::string path, int64_t begin = 0, int64_t bytes = -1)  // NOLINT: a path is one
      : path(std::move(path)), begin(begin), bytes(bytes) {}

  std::string path;
  int64_t begin = 0, bytes = -1;

  /// Error: as read_file.
  std::string read() const {
    std::string text = read_file(path);
    if (begin == 0 && bytes < 0) return text;
    const size_t from = std::min<size_t>(text.size(), begin);
    return text.substr(from, bytes < 0 ? text.npos : bytes);
  }
};

}  // namespace hocket::data

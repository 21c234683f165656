// SPDX-License-Identifier: Apache-2.0
// A run of bytes of a file: a text, where one file has several, among them the lines of JSON Lines.
// Files of gzip and zstd, named .gz, .zst or .zstd, are read as what they unpack to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "data/examples/bytes.h"

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

  /// Returns the text. Throws Error as read_file() does, and for compressed data that is damaged or
  /// cut off.
  std::string read() const;
};

/// Reads one part after the other; parts of a compressed file in the order of their places cost one
/// pass over it.
class TextReader {
 public:
  /// Reads a part. Throws Error as TextPart::read() does.
  std::string read(const TextPart& part);

 private:
  std::string unpacked(const TextPart& part);

  std::string path_;  ///< of the compressed file that is open
  std::unique_ptr<ByteSource> open_;
  int64_t at_ = 0;  ///< bytes that were read of it, unpacked
};

/// Calls the function with one piece of the text after the other, until it returns false. All but
/// the last have a mebibyte. Throws Error as TextPart::read() does.
void read_text_pieces(const std::string& path, const std::function<bool(std::string_view)>& take);

/// Returns whether a file is JSON Lines of texts: named .jsonl or .ndjson (.jsonl.gz, ...), and its
/// first line is an object with a string `text`.
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

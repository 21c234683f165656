// SPDX-License-Identifier: Apache-2.0
// A text in pieces that are examples: its lines, the entries of its JSON array, or all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/examples/bytes.h"

namespace hocket::data {

struct Record {
  std::string text;
  int64_t line = 0;       ///< where it begins, from 1
  int64_t entry = 0;      ///< in an array, from 1; else 0
  bool too_long = false;  ///< and its text is not kept
};

/// Reads one record at a time, and keeps no more than that.
class RecordReader {
 public:
  enum class Form {
    lines,  ///< those with more than blanks
    json,   ///< entries of an array if the text begins with one, else lines
    whole
  };
  /// `path` names the text in errors.
  RecordReader(std::unique_ptr<ByteSource> source, std::string path, Form form, int64_t max_bytes);

  /// Reads the next record; false at the end. Throws Error for UTF-16, for an array that does not
  /// end or has text after it, and for a damaged file.
  bool next(Record* record);

 private:
  int peek();  ///< the next byte, -1 at the end
  bool fill();
  void begin();
  bool next_line(Record* record);
  bool next_entry(Record* record);
  void read_entry(Record* record);
  void skip_blanks();
  void append(Record* record, const char* from, size_t bytes);

  std::unique_ptr<ByteSource> source_;
  std::string path_;
  Form form_;
  size_t max_bytes_;
  std::string buffer_;
  size_t at_ = 0, end_ = 0;
  int64_t line_ = 1;   ///< of the next byte
  int64_t entry_ = 0;  ///< entries read
  int64_t array_line_ = 1;
  bool begun_ = false, in_array_ = false, ended_ = false;
};

}  // namespace hocket::data
